"""The command `onnx2nn ncnn`: converts a model to NCNN and compares it there."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, Shapes, add_input_shape, add_seed, input_shape, named_shapes
from onnx2nn.commands.options import add_limit_and_debug, add_onnx_path, reading_of
from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.errors import InputError, NcnnError
from onnx2nn.ground.atomic_files import check_folder_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal
from onnx2nn.importing.inputs import InputSpec, resolve_shapes

EXTRAS: tuple[str, ...] = ("torch", "ncnn")
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser("ncnn", help="take a model on to NCNN and compare it there, in fp32, fp16 and int8")
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="gets M.param, M.bin, M.fp16.* and M.int8.*"
    )
    add_input_shape(parser, help="shape of an input that the file leaves open, as for convert; an open batch is 1")
    parser.add_argument(
        "--other_shape",
        action="append",
        type=input_shape,
        default=[],
        metavar="NAME:DIMS",
        help="a second shape of an input: the sizes in which it differs stay open, a text's length for instance",
    )
    parser.add_argument(
        "--calibration",
        metavar="SAMPLES.npz",
        help="inputs as they occur, an array for each input with the samples along its first axis: also writes "
        "M.int8.*, with 8-bit integers whose scales they decide",
    )
    add_seed(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Imports a model with fixed sizes, converts it to NCNN and compares; prints all obstacles."""
    require_extras("Going on to NCNN", torch="torch", ncnn="ncnn")
    check_folder_writable(arguments.output)
    inputs = ModelInputs.of(arguments)
    sizes = inputs.sizes()
    others = _other_sizes(arguments, inputs.specs, sizes)
    with terminal.step(f"importing {arguments.onnx_path}"):
        module = onnx2nn.load(
            arguments.onnx_path,
            input_shapes=sizes if others is None else _open(inputs.specs, sizes, others),
            **reading_of(arguments),
        )
    example, other = (None if shapes is None else inputs.examples(shapes) for shapes in (sizes, others))
    measured = _calibration(arguments.calibration, sizes) if arguments.calibration else None
    name = Path(arguments.onnx_path).stem
    try:
        with terminal.step("converting to NCNN and comparing"):
            model = onnx2nn.to_ncnn(
                module,
                arguments.output,
                name=name,
                example_inputs=example,
                other_inputs=other,
                calibration=measured,
            )
    except NcnnError as error:
        terminal.line(str(error))
        terminal.verdict(f"NOT CONVERTED: {len(error.obstacles)} obstacles", good=False)
        return FAILED
    terminal.line(str(model))
    endings = ".param, .bin, .fp16.param and .fp16.bin"
    if measured is not None:
        endings = ".param, .bin, .fp16.param, .fp16.bin, .int8.param and .int8.bin"
    terminal.verdict(f"OK saved {arguments.output}/{name}{endings}", good=True)
    return OK


def _calibration(path: str, sizes: Shapes) -> list[list[np.ndarray]]:
    """Returns the samples of a file, for each an array for each input; an input's first size of 1 may be left out.

    Raises:
        InputError: the file cannot be read, or has not the same number of samples of each input's shape.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:  # what numpy raises for other files
        raise InputError(f"Cannot read {path} as an .npz file of arrays: {error}") from error
    if wrong := sorted(sizes.keys() ^ arrays.keys()):
        raise InputError(f"{path} needs an array for each input, {', '.join(sizes)}: {', '.join(wrong)} does not fit.")
    columns = []
    for name, shape in sizes.items():
        found = arrays[name].shape[1:]
        if tuple(shape) not in (found, (1, *found)):
            raise InputError(f"{path}: each sample of {name!r} needs the shape {list(shape)}; they have {list(found)}.")
        columns.append([sample.reshape(shape) for sample in arrays[name]])
    if len({len(column) for column in columns}) > 1:
        raise InputError(f"{path} has different numbers of samples: {', '.join(str(len(c)) for c in columns)}.")
    return [list(sample) for sample in zip(*columns, strict=True)]


def _other_sizes(
    arguments: argparse.Namespace, specs: Sequence[InputSpec], sizes: Shapes
) -> dict[str, tuple[int, ...]] | None:
    """Returns the second shape of each input, None without `--other_shape`."""
    if not arguments.other_shape:
        return None
    others = named_shapes(arguments.other_shape, specs, "--other_shape")
    return resolve_shapes(specs, {**sizes, **others})


def _open(specs: Sequence[InputSpec], sizes: Shapes, others: Shapes) -> dict[str, list[int | str | None]]:
    """Returns the shapes to import with: the file's dimension where two sizes differ, else the size."""
    found: dict[str, list[int | str | None]] = {}
    for spec in specs:
        dims = spec.shape or (None,) * len(sizes[spec.name])
        pairs = zip(dims, sizes[spec.name], others[spec.name], strict=True)
        found[spec.name] = [one if one == other else dim or None for dim, one, other in pairs]
    return found
