"""The command `onnx2nn check`: lists everything in a model that cannot be imported."""

from __future__ import annotations

import argparse
from typing import Any

import onnx2nn
from onnx2nn.commands.options import add_limit_and_debug, add_onnx_path, reading_of
from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.ground.terminal import Terminal

EXTRAS: tuple[str, ...] = ()
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser("check", help="list everything in a model that cannot be imported")
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Prints everything that cannot be imported."""
    report = onnx2nn.check(arguments.onnx_path, **reading_of(arguments))
    terminal.line(str(report))
    return FAILED if report.problems else OK
