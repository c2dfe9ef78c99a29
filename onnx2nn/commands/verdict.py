"""Prints the comparison of a module's outputs with ONNX Runtime's."""

from __future__ import annotations

from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.ground.terminal import Terminal
from onnx2nn.verification.outputs import Verification


def report(result: Verification, terminal: Terminal) -> int:
    """Prints a comparison and returns the exit status that it implies."""
    terminal.line(f"compared with {result.oracle}:")
    for output in result.outputs:
        terminal.line(f"  {output}")
    for note in result.notes:
        terminal.line(f"  {note}")
    terminal.verdict(result.verdict, good=result.ok)
    return OK if result.ok else FAILED
