"""The entrance of an import to PyTorch: a model and its plan come in, a `torch.fx.GraphModule` goes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from torch import fx

from onnx2nn.errors import UnsupportedModelError
from onnx2nn.fx.attempts import Attempt, Attempts
from onnx2nn.fx.sample_sizes import Fixed, ShapeConflictError
from onnx2nn.importing.plan import Plan


def import_graph(
    model: ir.Model,
    plan: Plan,
    *,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> fx.GraphModule:
    """Returns `model` as a module in eval mode.

    Args:
        model: from `reader.read`.
        plan: from `plan.plan`.
        input_shapes: dimensions by input name that replace those of the file; a str or None is dynamic.

    Raises:
        UnsupportedModelError: lists all nodes that cannot be imported.
    """
    return _accepted(Attempts(model, plan, input_shapes or {})).module()


def _accepted(attempts: Attempts) -> Attempt:
    """Returns the attempt whose program is taken: at sizes that all nodes accept, else with opaque calls."""
    try:
        return _import_strictly(attempts)
    except ShapeConflictError as conflict:
        attempts.per_branch = conflict.branch is not None
    if attempts.per_branch:
        try:
            return _import_strictly(attempts)
        except (ShapeConflictError, UnsupportedModelError):
            pass
    return attempts.lenient()


def _import_strictly(attempts: Attempts) -> Attempt:
    """Imports at sample sizes that all nodes accept.

    Raises:
        ShapeConflictError: there are no such sizes.
    """
    fixed: Fixed = {}
    while True:
        try:
            return attempts.run(fixed)
        except ShapeConflictError as conflict:
            fixed, attempt = attempts.repaired(fixed, conflict)
        if attempt is not None:
            return _widest(attempts, fixed, attempt)


def _widest(attempts: Attempts, fixed: Fixed, attempt: Attempt) -> Attempt:
    """Returns `attempt`, made with `fixed`, or one with all bounds as wide as the model allows."""
    bounds = {name: size for name, size in fixed.items() if isinstance(size, tuple)}
    reached = {name: attempts.widened(fixed, name, size) for name, size in bounds.items()}
    wider: Fixed = {name: size if size[0] < size[-1] else size[0] for name, size in reached.items()}
    try:
        return attempts.run({**fixed, **wider}) if wider != bounds else attempt
    except (ShapeConflictError, UnsupportedModelError):
        return attempt
