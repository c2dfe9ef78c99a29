"""Options that several commands take, and the types of their values; those of a model's inputs: `model_inputs`."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
from typing import Any, TypedDict

from onnx2nn.errors import InputError
from onnx2nn.ground.limits import Account, Limits
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


MODELS = ("onnx_path", "other_path")
"""The arguments that name models which a command reads."""


def keep_models(arguments: argparse.Namespace) -> None:
    """Refuses to write over a model that the command reads; `--simplify_path` may name it.

    Raises:
        InputError: the output is such a file, perhaps by another name.
    """
    outputs, models = (
        [path for name in names if (path := getattr(arguments, name, None)) and os.path.exists(path)]
        for names in (("pytorch_path", "output"), MODELS)
    )
    for output, model in itertools.product(outputs, models):
        if os.path.samefile(output, model):
            raise InputError(f"Cannot write {output}: it is the model that the command reads. Name another file.")


def fetch_model(arguments: argparse.Namespace) -> None:
    """Puts the paths of copies in the places of models' URLs, before the command begins.

    Raises:
        InputError, LimitError, MissingDependencyError, ModelFileError: the limits are wrong, or it cannot be fetched.
    """
    for name in MODELS:
        if is_url(given := getattr(arguments, name, None)):
            setattr(arguments, name, local_source(given, Account(limits_of(arguments))))


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Adds `--debug`, which every command takes."""
    parser.add_argument("--debug", action="store_true", help="show warnings, and the traceback of an error")


def add_limit_and_debug(parser: argparse.ArgumentParser) -> None:
    """Adds `--limit` and `--debug`, which stand last in the help of every command that reads a model."""
    _add_limit(parser)
    add_debug(parser)


def _add_limit(parser: argparse.ArgumentParser) -> None:
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


class Reading(TypedDict):
    """What the functions that read a model take of the command line."""

    follow_links: bool
    limits: Limits


def reading_of(arguments: argparse.Namespace) -> Reading:
    """Returns how the command line says to read models.

    Raises:
        InputError: a limit is out of range, or is given twice.
    """
    return {"follow_links": arguments.follow_links, "limits": limits_of(arguments)}


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


def count(text: str, least: int = 0) -> int:
    """Parses a whole number of at least `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def count_from_one(text: str) -> int:
    """Parses a whole number of at least 1."""
    return count(text, least=1)


def positive(text: str) -> float:
    """Parses a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
