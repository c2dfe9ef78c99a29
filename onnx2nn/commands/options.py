"""Options that several commands take, and the types of their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from onnx2nn.errors import InputError
from onnx2nn.importing.inputs import InputSpec, fixed_shapes


def add_onnx_path(parser: argparse.ArgumentParser) -> None:
    """Adds the ONNX file, the first argument of a subcommand."""
    parser.add_argument("onnx_path", metavar="M.onnx", help="the ONNX file")


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Adds `--debug`, which every command takes."""
    parser.add_argument("--debug", action="store_true", help="show warnings, and the traceback of an error")


def add_input_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds the options for the sizes and values of a model's inputs, and returns their group."""
    group = parser.add_argument_group("inputs")
    add_input_shape(
        group,
        help="shape of an input, such as input:1,3,224,224; once for each input that the file leaves open; the name "
        "may contain ':'; dims alone (1,3,224,224) mean the only input",
    )
    group.add_argument(
        "--dynamic_input_shape",
        action="store_true",
        help="use --input_shape for the comparisons only: sizes that the file leaves open stay open",
    )
    add_seed(group)
    return group


def add_input_shape(parser: argparse._ActionsContainer, *, help: str) -> None:
    """Adds `--input_shape`, which `named_shapes` reads."""
    parser.add_argument("--input_shape", action="append", type=input_shape, default=[], metavar="NAME:DIMS", help=help)


def add_seed(parser: argparse._ActionsContainer) -> None:
    """Adds `--seed`."""
    parser.add_argument("--seed", type=count, default=0, help="of the random inputs (default 0)")


def named_shapes(shapes: Sequence[tuple[str | None, list[int]]], specs: Sequence[InputSpec]) -> dict[str, list[int]]:
    """Returns the shapes by input name, with the shapes of other inputs that follow from them.

    Args:
        shapes: the values of `--input_shape`; a shape without a name is the only input's.
        specs: the model's inputs.

    Raises:
        InputError: a bare shape for a model with several inputs, an input named twice, or shapes that do not fit.
    """
    named: dict[str, list[int]] = {}
    for name, sizes in shapes:
        if name is None and len(specs) != 1:
            inputs = ", ".join(spec.name for spec in specs)
            dims = ",".join(map(str, sizes))
            raise InputError(f"--input_shape {dims}: the model has {len(specs)} inputs ({inputs}). Write NAME:{dims}.")
        name = specs[0].name if name is None else name
        if name in named:
            raise InputError(f"--input_shape gives input {name!r} twice. Give it once.")
        named[name] = sizes
    return {name: list(sizes) for name, sizes in fixed_shapes(specs, named).items()}


def input_shape(text: str) -> tuple[str | None, list[int]]:
    """Parses `NAME:DIMS` or `DIMS`."""
    name, colon, dims = text.rpartition(":")
    try:
        sizes = [int(size) for size in dims.split(",")] if dims or not colon else []
        if any(size < 1 for size in sizes):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:DIMS with positive sizes, such as input:1,3,224,224"
        ) from None
    return (name if colon else None), sizes


def count(text: str) -> int:
    """Parses a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positive(text: str) -> float:
    """Parses a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
