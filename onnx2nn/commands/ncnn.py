"""The command `onnx2nn ncnn`: converts a model to NCNN and compares it there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, Shapes, add_input_shape, add_seed, input_shape, named_shapes
from onnx2nn.commands.options import add_limit_and_debug, add_onnx_path, reading_of
from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.errors import NcnnError
from onnx2nn.ground.atomic_files import check_folder_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal
from onnx2nn.importing.inputs import InputSpec, resolve_shapes

EXTRAS: tuple[str, ...] = ("torch", "ncnn")
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser("ncnn", help="take a model on to NCNN and compare it there, in fp32 and fp16")
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="gets M.param, M.bin and M.fp16.*")
    add_input_shape(parser, help="shape of an input that the file leaves open, as for convert; an open batch is 1")
    parser.add_argument(
        "--other_shape",
        action="append",
        type=input_shape,
        default=[],
        metavar="NAME:DIMS",
        help="a second shape of an input: the sizes in which it differs stay open, a text's length for instance",
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
    name = Path(arguments.onnx_path).stem
    try:
        with terminal.step("converting to NCNN and comparing"):
            model = onnx2nn.to_ncnn(module, arguments.output, name=name, example_inputs=example, other_inputs=other)
    except NcnnError as error:
        terminal.line(str(error))
        terminal.verdict(f"NOT CONVERTED: {len(error.obstacles)} obstacles", good=False)
        return FAILED
    terminal.line(str(model))
    terminal.verdict(f"OK saved {arguments.output}/{name}.param, .bin, .fp16.param and .fp16.bin", good=True)
    return OK


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
