"""The entrance of an import to PyTorch: a model and its plan come in, a `torch.fx.GraphModule` goes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from torch import fx

from onnx2nn.fx.attempt import Attempt
from onnx2nn.fx.import_state import Known, Subject, TorchImport
from onnx2nn.fx.trace_errors import ShapeConflictError
from onnx2nn.importing.plan import Plan

_CHOICES = 8
"""The most imports that reverse choices by sizes."""


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
    return _accepted(Subject.of(model, plan, input_shapes or {})).module()


def import_strictly(
    model: ir.Model, plan: Plan, *, input_shapes: Mapping[str, Sequence[int | str | None]]
) -> fx.GraphModule:
    """Returns `model` as a module, like `import_graph`, if the shapes in every node fit.

    Raises:
        ShapeConflictError: the shapes in a node fit for no sizes.
        UnsupportedModelError: lists all nodes that cannot be imported.
    """
    return _consistent(Subject.of(model, plan, input_shapes), {}).module()


def _accepted(subject: Subject) -> Attempt:
    """Returns the import whose program is taken: one in which all shapes fit, else one with opaque calls."""
    try:
        attempt = _consistent(subject, {})
    except ShapeConflictError:
        attempt = Attempt(TorchImport(subject, {}, False, {}))
        attempt.run()
        return attempt
    while (known := attempt.known()) != attempt.state.known and attempt.was_late(known):
        try:
            attempt = _consistent(subject, known)
        except ShapeConflictError:
            break
    return attempt


def _consistent(subject: Subject, known: Mapping[str, Known]) -> Attempt:
    """Returns an import in which all shapes fit. Choices by sizes are reversed, the last one first, until they do.

    Raises:
        ShapeConflictError: no choice of those that were tried leads to an end.
    """
    choices: dict[str, bool] = {}
    conflict: ShapeConflictError | None = None
    for _ in range(_CHOICES):
        attempt = Attempt(TorchImport(subject, known, True, choices))
        try:
            attempt.run()
        except ShapeConflictError as error:
            if conflict is not None and error.step < conflict.step:
                choices.pop(next(reversed(choices)))  # the other way led further
                break
            conflict = error
            reversible = [(repr(c), truth) for c, truth in error.chosen if repr(c) not in choices]
            if not reversible:
                raise
            condition, truth = reversible[-1]
            choices[condition] = not truth
        else:
            return attempt
    assert conflict is not None
    raise conflict
