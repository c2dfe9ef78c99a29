"""The command `onnx2nn` with its subcommands."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

from onnx2nn.commands import doctor
from onnx2nn.commands.running import EXIT_STATUS, Parser, run

_SUBCOMMANDS = (*doctor.EXAMINED, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `onnx2nn`.

    Args:
        arguments: the command line without the program's name; `sys.argv` if left out.

    Returns:
        The exit status.
    """
    return run(parser(), arguments)


def parser() -> Parser:
    """Returns the parser of the command line, with the subcommands."""
    made = Parser(prog="onnx2nn", description="ONNX files as live nn.Modules.", epilog=EXIT_STATUS)
    made.add_argument("--version", action="version", version=f"onnx2nn {_version()}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for subcommand in _SUBCOMMANDS:
        subcommand.add(commands)
    return made


def _version() -> str:
    try:
        return importlib.metadata.version("onnx2nn")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
