"""The command `onnx2pytorch`: converts one ONNX file, with the options of `onnx2nn convert`."""

from __future__ import annotations

from collections.abc import Sequence

from onnx2nn.commands import convert
from onnx2nn.commands.options import ONNX_PATH_HELP, add_follow_links
from onnx2nn.commands.running import EXIT_STATUS, Parser, run


def onnx2pytorch(arguments: Sequence[str] | None = None) -> int:
    """The command `onnx2pytorch`: convert one ONNX file, compare with ONNX Runtime, save.

    Args:
        arguments: the command line without the program's name; `sys.argv` if left out.

    Returns:
        The exit status.
    """
    return run(parser(), arguments)


def parser() -> Parser:
    """Returns the parser of the command line."""
    made = Parser(
        prog="onnx2pytorch",
        description="Turn an ONNX file into a PyTorch module with its weights, compare its outputs with ONNX Runtime's "
        "on the same seeded input, and save it.",
        epilog=EXIT_STATUS,
    )
    files = made.add_argument_group("files")
    files.add_argument("--onnx_path", required=True, metavar="M.onnx", help=ONNX_PATH_HELP)
    add_follow_links(files)
    files.add_argument("--pytorch_path", metavar="M.pth", help=convert.PYTORCH_PATH_HELP)
    convert.add_options(made, simplify_by_default=True)
    made.set_defaults(python=None, command=convert.run)
    return made
