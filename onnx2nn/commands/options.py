"""Options that several commands take, and the types of their values."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import InputError
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.importing.inputs import InputSpec, fixed_shapes, input_specs
from onnx2nn.reading import reader
from onnx2nn.reading.remote import is_url, local_source

ONNX_PATH_HELP = "the ONNX file; also hf://ORG/REPO[@REVISION]/M.onnx, https://, s3:// and other URLs"


def add_onnx_path(parser: argparse.ArgumentParser) -> None:
    """Adds the ONNX file, the first argument of a subcommand."""
    parser.add_argument("onnx_path", metavar="M.onnx", help=ONNX_PATH_HELP)
    add_follow_links(parser)


def add_follow_links(parser: argparse._ActionsContainer) -> None:
    """Adds `--follow_links`, which every command takes that reads a model."""
    parser.add_argument(
        "--follow_links",
        action="store_true",
        help="read external data also through links, wherever they lead, and from files with several hard links",
    )


def fetch_model(arguments: argparse.Namespace) -> None:
    """Puts the paths of copies in the places of models' URLs, before the command begins.

    Raises:
        InputError, LimitError, MissingDependencyError, ModelFileError: the limits are wrong, or it cannot be fetched.
    """
    for name in ("onnx_path", "other_path"):
        if is_url(given := getattr(arguments, name, None)):
            setattr(arguments, name, local_source(given, Account(limits_of(arguments))))


def specs_of(arguments: argparse.Namespace) -> list[InputSpec]:
    """Returns the inputs of the model that the arguments name.

    Raises:
        InputError: a limit is out of range, or is given twice.
        LimitError: the file costs more than a limit allows.
        ModelFileError: it is not a readable model.
    """
    account = Account(limits_of(arguments))
    with reader.opened(arguments.onnx_path, follow_links=arguments.follow_links, account=account) as model:
        return input_specs(model)


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Adds `--debug`, which every command takes."""
    parser.add_argument("--debug", action="store_true", help="show warnings, and the traceback of an error")


def add_limit(parser: argparse._ActionsContainer) -> None:
    """Adds `--limit`, which every command that reads a file takes; `limits_of` reads it."""
    names = ", ".join(field.name for field in dataclasses.fields(Limits))
    parser.add_argument(
        "--limit",
        action="append",
        type=_limit,
        default=[],
        metavar="NAME=VALUE",
        help=f"raise or lower a limit on what the file may cost beyond its own size; once for each; names: {names}",
    )


def add_blocks(parser: argparse._ActionsContainer) -> None:
    """Adds `--blocks`, which every command takes whose result shows the blocks of the import."""
    parser.add_argument(
        "--blocks",
        choices=("named", "repeated"),
        default="named",
        help="named: what the file names are blocks; repeated: also equal parts of what it names nothing for, as "
        "block.0, block.1, ... (default named)",
    )


def add_page(parser: argparse._ActionsContainer, *, required: bool) -> None:
    """Adds `--output`, the HTML page that a command writes."""
    parser.add_argument("-o", "--output", required=required, metavar="M.html", help="where the page is written")


def limits_of(arguments: argparse.Namespace) -> Limits:
    """Returns the limits that the command line gives.

    Raises:
        InputError: a value is out of range, or a limit is given twice.
    """
    found: dict[str, float] = {}
    for name, value in arguments.limit:
        if name in found:
            raise InputError(f"--limit gives {name} twice. Give it once.")
        found[name] = value
    return Limits(**found)  # type: ignore[arg-type]  # it checks its values itself


def _limit(text: str) -> tuple[str, float]:
    """Parses `NAME=VALUE`."""
    kinds: dict[str, Any] = {limit: type(default) for limit, default in dataclasses.asdict(Limits()).items()}
    name, _, value = text.partition("=")
    if name not in kinds:
        raise argparse.ArgumentTypeError(f"{text!r} names none of the limits: {', '.join(kinds)}")
    try:
        number: float = kinds[name](value)
        Limits(**{name: number})  # type: ignore[arg-type]  # it checks its values itself
    except (ValueError, InputError):
        kind = "a whole number" if kinds[name] is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {name}={kind} above 0") from None
    return name, number


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


def named_shapes(
    shapes: Sequence[tuple[str | None, list[int]]], specs: Sequence[InputSpec], option: str = "--input_shape"
) -> dict[str, list[int]]:
    """Returns the shapes by input name, with the shapes of other inputs that follow from them.

    Args:
        shapes: the values of `option`; a shape without a name is the only input's.
        specs: the model's inputs.
        option: for messages.

    Raises:
        InputError: a bare shape for a model with several inputs, an input named twice, or shapes that do not fit.
    """
    named: dict[str, list[int]] = {}
    for name, sizes in shapes:
        if name is None and len(specs) != 1:
            inputs = ", ".join(spec.name for spec in specs)
            dims = ",".join(map(str, sizes))
            raise InputError(f"{option} {dims}: the model has {len(specs)} inputs ({inputs}). Write NAME:{dims}.")
        name = specs[0].name if name is None else name
        if name in named:
            raise InputError(f"{option} gives input {name!r} twice. Give it once.")
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
