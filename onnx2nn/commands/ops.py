"""The command `onnx2nn ops`: lists the operators that can be imported."""

from __future__ import annotations

import argparse
from typing import Any

from onnx2nn.commands.options import add_debug
from onnx2nn.commands.statuses import OK
from onnx2nn.ground.terminal import Terminal

EXTRAS: tuple[str, ...] = ()
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser("ops", help="list the operators that can be imported")
    parser.set_defaults(command=run)
    add_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Prints the op table: operator, revisions, types of its first input or output, how it is built, scores."""
    from onnx2nn.optable.catalog import entries  # no other command reads the measured scores

    def score(pair: tuple[int, int] | None) -> str:
        return f"{pair[0]}/{pair[1]}" if pair else "-"

    table = entries()
    rows = [
        [
            *(e.domain, e.operator, " ".join(map(str, e.revisions)), " ".join(e.types) or "-", e.built),
            *(score(e.exported), score(e.oneflow_import), str(len(e.oneflow_export)) if e.oneflow_export else "-"),
        ]
        for e in table
    ]
    head = ["domain", "operator", "revisions", "types", "built", "torch.export", "OneFlow import", "OneFlow export"]
    terminal.table(head, rows, numeric=(5, 6, 7), bad=[False] * len(rows))
    terminal.line("torch.export: cases that pass, of ONNX's suite, else of this project; OneFlow import: of the suite;")
    terminal.line("OneFlow export: OneFlow ops written so")
    terminal.line(f"{len(table)} operators")
    return OK
