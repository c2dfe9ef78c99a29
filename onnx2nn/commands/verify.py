"""The command `onnx2nn verify`: compares the imported model with ONNX Runtime, outputs first, then node by node."""

from __future__ import annotations

import argparse
import json
from typing import Any

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, add_input_options, add_inputs
from onnx2nn.commands.options import (
    add_blocks,
    add_limit_and_debug,
    add_onnx_path,
    count_from_one,
    positive,
    reading_of,
)
from onnx2nn.commands.statuses import FAILED
from onnx2nn.commands.verdict import report
from onnx2nn.ground.atomic_files import check_folder_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal
from onnx2nn.verification.block_reports import shown_blocks
from onnx2nn.verification.gaps import Gap
from onnx2nn.verification.node_reports import NodeVerification

EXTRAS: tuple[str, ...] = ("torch", "verify")
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser("verify", help="compare the imported model with ONNX Runtime, node by node")
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    add_input_options(parser)
    add_inputs(parser, " (then one comparison)")
    parser.add_argument(
        "--tolerance",
        type=positive,
        metavar="T",
        help="largest difference that a node may introduce, relative to the largest magnitude of its output",
    )
    parser.add_argument(
        "--memory_limit",
        type=positive,
        default=2.0,
        metavar="GIB",
        help="intermediate values held at a time; more come from several sessions of ONNX Runtime (default 2)",
    )
    parser.add_argument("--repro", metavar="FOLDER", help="write the first node over the threshold there, as a model")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON, and nothing else")
    parser.add_argument(
        "--comparisons", type=count_from_one, default=3, metavar="N", help="number of random inputs (default 3)"
    )
    add_blocks(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Imports a model, compares the outputs, then every node."""
    require_extras("Comparing a model", torch="torch", verify="onnxruntime")
    if arguments.repro:
        check_folder_writable(arguments.repro)
    terminal = Terminal(silent=True) if arguments.json else terminal
    inputs, reading = ModelInputs.of(arguments), reading_of(arguments)
    shapes = inputs.shapes
    if inputs.arrays is not None:
        shapes = {name: list(array.shape) for name, array in inputs.arrays.items()}
    chosen = {**inputs.chosen(), "input_shapes": shapes, **reading}
    with terminal.step(f"importing {arguments.onnx_path}"):
        module = onnx2nn.load(
            arguments.onnx_path,
            input_shapes=None if arguments.dynamic_input_shape else shapes,
            blocks=arguments.blocks,
            **reading,
        )
    with terminal.step("comparing with ONNX Runtime"):
        result = onnx2nn.verify(arguments.onnx_path, module, runs=arguments.comparisons, **chosen)
    status = report(result, terminal)
    with terminal.step("comparing node by node"):
        nodes = onnx2nn.verify_nodes(
            arguments.onnx_path,
            module,
            tolerance=arguments.tolerance,
            memory_limit=int(arguments.memory_limit * 2**30),
            **chosen,
        )
    if arguments.json:
        outputs = {"outputs_verdict": result.verdict, "ok": nodes.ok and result.ok}
        print(json.dumps({**nodes.to_dict(), **outputs}, indent=1, allow_nan=False))
    _report_nodes(nodes, terminal)
    if arguments.repro and nodes.first is not None:
        terminal.line(f"wrote {nodes.write_repro(arguments.repro)}, its inputs and what ONNX Runtime makes of them")
    return status if nodes.ok else FAILED


def _report_nodes(nodes: NodeVerification, terminal: Terminal) -> None:
    """Prints the table of the nodes to look at and names the first node over the threshold."""
    head = ["operator", "node", "introduced abs", "rel", "ULP", "noise", "inherited abs", "rel", "ULP", ""]
    rows = []
    shown = nodes.shown
    for node in shown:
        noise = "" if node.introduced.noise is None else f"{node.introduced.noise:.2g}"
        cells = [*_cells(node.introduced), noise, *_cells(node.inherited)]
        rows.append([node.operator, node.node, *cells, _verdict(node.introduced)])
    terminal.table(head, rows, numeric=range(2, 9), bad=[not node.introduced.ok for node in shown])
    _report_blocks(nodes, terminal)
    for output in nodes.outputs:
        if not output.agrees:
            terminal.line(str(output))
    for line in nodes.remarks:
        terminal.line(line)
    terminal.verdict(nodes.verdict, good=nodes.ok)


def _report_blocks(nodes: NodeVerification, terminal: Terminal) -> None:
    """Prints the table of the blocks that introduce most, where the module has blocks."""
    shown = shown_blocks(nodes.blocks)
    if len(shown) < 2:
        return
    head = ["block", "class", "values", "introduced abs", "inherited abs", "total abs", "worst node", ""]
    rows = []
    for block in shown:
        figures = [f"{value:.2g}" for value in (block.introduced, block.inherited, block.total)]
        name = "  " * block.depth + (block.path or "the model")
        rows.append(
            [name, block.kind, str(block.nodes), *figures, block.worst, "" if block.ok else "over the threshold"]
        )
    terminal.table(head, rows, numeric=range(2, 6), bad=[not block.ok for block in shown])


def _verdict(introduced: Gap) -> str:
    if introduced.ok:
        return "" if introduced.noise is None else "within its noise"
    return introduced.reason or "over the threshold"


def _cells(gap: Gap) -> list[str]:
    return [f"{gap.max_abs:.2g}", f"{gap.max_rel:.2g}", "" if gap.ulp is None else str(gap.ulp)]
