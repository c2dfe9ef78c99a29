"""Errors of recording, which lead to an opaque call or to an error of the node."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx2nn.errors import OperatorError
from onnx2nn.optable.row import NeedsValues
from onnx2nn.sizes.conditions import Condition


class TraceError(NeedsValues):
    """A body cannot be recorded; its node becomes an opaque call."""


class ShapeMismatch(TraceError):
    """The shapes in a call fit for no sizes of the inputs that the import allows."""


class BranchConflictError(OperatorError):
    """The shapes in a branch of an If fit for no sizes of the inputs: no input may choose the branch."""


class ShapeConflictError(Exception):
    """The shapes in a node fit for no sizes of the inputs, after the choices that the import made.

    Attributes:
        node: the node.
        step: the progress of the import: nodes, and calls in the last node.
        chosen: the conditions on sizes by which the structure of the program was chosen, and their truths.
    """

    def __init__(self, reason: str, node: ir.Node, step: tuple[int, int], chosen: Sequence[tuple[Condition, bool]]):
        super().__init__(reason)
        self.node, self.step, self.chosen = node, step, list(chosen)
