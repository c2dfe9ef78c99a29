"""The command `onnx2nn convert`: imports a model, compares it with ONNX Runtime and saves it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import onnx2nn
from onnx2nn.commands import simplify
from onnx2nn.commands.model_inputs import ModelInputs, add_input_options
from onnx2nn.commands.options import add_blocks, add_limit_and_debug, add_onnx_path, reading_of
from onnx2nn.commands.verdict import report
from onnx2nn.errors import InputError
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal
from onnx2nn.importing.inputs import InputSpec
from onnx2nn.output.python_source import check_folder
from onnx2nn.output.save import check_target
from onnx2nn.verification.outputs import Verification

if TYPE_CHECKING:
    import onnx

PYTORCH_PATH_HELP = (
    "where the PyTorch model is saved; the ending says how: .pth or .pt the whole module, .safetensors its weights, "
    ".pt2 a torch.export program, .torchscript a traced module, / a folder of source, weights and config.json; left "
    "out: only compared"
)

EXTRAS: tuple[str, ...] = ("torch", "verify")
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser("convert", help="import a model, compare it with ONNX Runtime, save it")
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    parser.add_argument("pytorch_path", metavar="M.pth", nargs="?", help=PYTORCH_PATH_HELP)
    parser.add_argument("--python", metavar="FOLDER", help="gets the model as source: model.py, weights.safetensors")
    add_options(parser, simplify_by_default=False)


def add_options(parser: argparse.ArgumentParser, *, simplify_by_default: bool) -> None:
    """Adds the options that `convert` and the command `onnx2pytorch` share."""
    parser.add_argument(
        "--simplify_path",
        metavar="M-simplify.onnx",
        help="where the simplified ONNX model is saved (dropout and constants folded)",
    )
    group = add_input_options(parser)
    group.add_argument(
        "--dynamic",
        action="append",
        type=_dynamic_axis,
        default=[],
        metavar="NAME:AXIS=DIM",
        help="free a dimension that the file fixes, such as input:0=batch; once for each; equal names are equal sizes; "
        "the file is then imported as it is, unsimplified",
    )
    simplify.add_options(parser)
    if simplify_by_default:
        parser.add_argument(
            "--skip_simplify", dest="simplify", action="store_false", help="import the file as it is, unsimplified"
        )
    else:
        parser.add_argument(
            "--simplify", action="store_true", help="simplify before the import (--simplify_path implies it)"
        )
    add_blocks(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Simplifies, imports, compares and saves a model."""
    if arguments.pytorch_path:
        check_target(arguments.pytorch_path)
    if arguments.simplify_path:
        check_writable(arguments.simplify_path)
    if arguments.python:
        check_folder(arguments.python)
    inputs, reading = ModelInputs.of(arguments), reading_of(arguments)
    given, sizes = inputs.shapes, inputs.sizes()
    with terminal.step("loading PyTorch and ONNX Runtime"):
        require_extras("Converting a model", torch="torch", verify="onnxruntime")

    model: str | onnx.ModelProto = arguments.onnx_path
    freed = _freed_axes(arguments.dynamic)
    if (arguments.simplify and not freed) or arguments.simplify_path:
        simplification = simplify.simplified(arguments, given, terminal)
        model = simplification.model if simplification and simplification.simplified and not freed else model
    elif unused := simplify.given_options(arguments):
        terminal.line(f"not simplified: {', '.join(unused)} {'change' if len(unused) > 1 else 'changes'} nothing")
    with terminal.step(f"importing {arguments.onnx_path}"):
        module = onnx2nn.load(
            model,
            input_shapes=None if arguments.dynamic_input_shape else given,
            dynamic=freed or None,
            blocks=arguments.blocks,
            **reading,
        )
    with terminal.step("comparing with ONNX Runtime"):
        result = onnx2nn.verify(arguments.onnx_path, module, **inputs.chosen(), **reading)
    if arguments.pytorch_path:
        with terminal.step(f"saving {arguments.pytorch_path}"):
            dynamic = _dynamic_axes(inputs.specs, () if arguments.dynamic_input_shape else given)
            dynamic = {name: axes | freed.get(name, {}) for name, axes in dynamic.items()}
            written = onnx2nn.save(
                module,
                arguments.pytorch_path,
                example_inputs=inputs.examples(_export_sizes(sizes, dynamic, result)),
                dynamic_axes=[dynamic[spec.name] for spec in inputs.specs],
            )
        terminal.line(f"saved {arguments.pytorch_path}: {written}")
    if arguments.python:
        with terminal.step(f"writing source to {arguments.python}"):
            written = onnx2nn.to_python(module, arguments.python, example_inputs=inputs.examples(sizes))
        terminal.line(f"wrote {written}")
    return report(result, terminal)


def _dynamic_axes(specs: Sequence[InputSpec], fixed: Collection[str]) -> dict[str, dict[int, str]]:
    """Returns the axes of every input that stay dynamic, axis → dimension's name."""
    return {
        spec.name: {}
        if spec.name in fixed
        else {axis: size for axis, size in enumerate(spec.shape or ()) if isinstance(size, str)}
        for spec in specs
    }


def _export_sizes(
    sizes: dict[str, tuple[int, ...]], dynamic: dict[str, dict[int, str]], result: Verification
) -> dict[str, tuple[int, ...]]:
    """Returns the sizes to trace with: 2 instead of 1 on dynamic axes, as torch.export takes a 1 for a constant."""
    if result.notes:  # the file only claims that the axis is dynamic
        return sizes
    return {
        name: tuple(2 if size == 1 and axis in dynamic[name] else size for axis, size in enumerate(shape))
        for name, shape in sizes.items()
    }


def _dynamic_axis(text: str) -> tuple[str, int, str]:
    place, _, label = text.rpartition("=")
    name, _, axis = place.rpartition(":")
    if not name or not axis.isdecimal() or not label.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:AXIS=DIM, such as input:0=batch")
    return name, int(axis), label


def _freed_axes(given: Sequence[tuple[str, int, str]]) -> dict[str, dict[int, str]]:
    """Returns the dimensions to free, as `onnx2nn.load` takes them.

    Raises:
        InputError: a dimension has two names.
    """
    freed: dict[str, dict[int, str]] = {}
    for name, axis, label in given:
        if freed.setdefault(name, {}).setdefault(axis, label) != label:
            raise InputError(
                f"--dynamic calls axis {axis} of {name!r} both {freed[name][axis]!r} and {label!r}. Give one name."
            )
    return freed
