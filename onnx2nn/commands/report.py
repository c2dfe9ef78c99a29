"""The command `onnx2nn report`: writes what there is to know of a model and its import as one HTML file."""

from __future__ import annotations

import argparse
from typing import Any

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, add_input_shape, add_inputs, add_seed
from onnx2nn.commands.options import add_blocks, add_limit_and_debug, add_onnx_path, add_page, reading_of
from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal

EXTRAS: tuple[str, ...] = ("torch", "verify")
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser(
        "report",
        help="write a model's modules, graphs, weights and differences as one HTML page",
        description="Writes one HTML file, which needs no network: the tree of modules, the graph of each block, "
        "weights, the difference from ONNX Runtime node by node, what the import changed and why. A file that cannot "
        "be imported has a page too, with the reasons. The status is 1 then, and where outputs differ.",
    )
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    add_page(parser, required=True)
    add_input_shape(
        parser,
        help="shape of an input in the run, such as input:1,3,224,224; once for each input that the file leaves open",
    )
    add_inputs(parser)
    add_seed(parser)
    parser.add_argument("--skip_comparison", action="store_true", help="do not compare with ONNX Runtime")
    add_blocks(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Imports, runs and compares a model, and writes the page."""
    check_writable(arguments.output)
    inputs = ModelInputs.of(arguments)
    compared = {} if arguments.skip_comparison else {"verify": "onnxruntime"}
    require_extras("A report", torch="torch", **compared)
    report = onnx2nn.report(
        arguments.onnx_path,
        **inputs.chosen(),
        compared=not arguments.skip_comparison,
        blocks=arguments.blocks,
        **reading_of(arguments),
        step=terminal.step,
    )
    report.save(arguments.output)
    terminal.line(f"wrote {arguments.output}")
    for problem in report.problems:
        terminal.line(problem)
    terminal.verdict(report.verdict, good=report.ok)
    return OK if report.ok else FAILED
