"""The command `onnx2nn compare`: two models side by side, and where their values part."""

from __future__ import annotations

import argparse
from typing import Any

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, add_input_shape, add_seed
from onnx2nn.commands.options import add_blocks, add_follow_links, add_limit_and_debug, add_page, reading_of
from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal
from onnx2nn.reporting.model_comparison import MOST_ROWS, ModelComparison

EXTRAS: tuple[str, ...] = ("torch",)
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser(
        "compare",
        help="show two models side by side: modules, weights, and where their values part",
        description="Aligns the modules of two models by their paths, and runs both on the same inputs. The status is "
        "0 where the outputs agree, whatever else differs.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("onnx_path", metavar="A.onnx", help="the first ONNX file")
    parser.add_argument("other_path", metavar="B.onnx", help="the second ONNX file")
    add_page(parser, required=False)
    add_follow_links(parser)
    add_input_shape(
        parser,
        help="shape of an input of the first model, such as input:1,3,224,224; once for each that the file leaves open",
    )
    add_seed(parser)
    add_blocks(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Imports and compares two models."""
    if arguments.output:
        check_writable(arguments.output)
    inputs = ModelInputs.of(arguments)
    require_extras("Comparing models", torch="torch")
    comparison = onnx2nn.compare(
        arguments.onnx_path,
        arguments.other_path,
        **inputs.chosen(),
        blocks=arguments.blocks,
        **reading_of(arguments),
        step=terminal.step,
    )
    _print(comparison, terminal)
    if arguments.output:
        comparison.save(arguments.output)
        terminal.line(f"wrote {arguments.output}")
    terminal.verdict(comparison.verdict, good=comparison.ok)
    return OK if comparison.ok else FAILED


def _print(comparison: ModelComparison, terminal: Terminal) -> None:
    """Prints the modules that differ, and the first one whose values part."""
    pairs = [pair for pair in comparison.modules if pair.status != "same" or pair.parts]
    shown = pairs[:MOST_ROWS]
    rows = []
    for pair in shown:
        difference = "" if pair.difference is None else f"{pair.difference:.2g}"
        changes = "; ".join([*pair.changes, *(["values part here"] if pair.parts else [])])
        kinds = [side.partition("(")[0] or "-" for side in (pair.left, pair.right)]  # `changes` has the arguments
        rows.append([pair.path or "the model", *kinds, difference, changes])
    if rows:
        head = ["module", comparison.left, comparison.right, "difference", ""]
        terminal.table(head, rows, numeric=[3], bad=[pair.parts for pair in shown])
    if len(pairs) > len(shown):
        terminal.line(f"and {len(pairs) - len(shown)} more modules")
    for output in comparison.outputs:
        apart = "cannot be compared" if output.difference is None else f"max abs difference {output.difference:.3g}"
        terminal.line(f"output {output.name}: {output.value}, {apart}{f', {output.reason}' if output.reason else ''}")
    for note in comparison.notes:
        terminal.line(note)
