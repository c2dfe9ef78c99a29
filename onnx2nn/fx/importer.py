"""From an ONNX model to a `torch.fx.GraphModule`: the model comes in as `plan.plan` planned it, the module goes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from torch import fx

from onnx2nn.errors import UnsupportedModelError
from onnx2nn.fx.attempts import Attempts
from onnx2nn.fx.sample_sizes import Fixed, StuckError
from onnx2nn.importing.plan import Plan


def import_graph(
    model: ir.Model,
    plan: Plan,
    *,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> fx.GraphModule:
    """Returns `model` as a module in eval mode.

    Args:
        model: as `reader.read` gives it.
        plan: as `plan.plan` gives it: every node has a row or a function.
        input_shapes: dimensions by input name that replace those of the file; a str or None is dynamic.

    Raises:
        UnsupportedModelError: nodes whose operator refuses what they ask for, all of them.
    """
    attempts = Attempts(model, plan, input_shapes or {})
    try:
        return _import_strictly(attempts)
    except StuckError as stuck:
        attempts.apart = stuck.branch is not None
    if attempts.apart:
        try:
            return _import_strictly(attempts)
        except (StuckError, UnsupportedModelError):
            pass
    return attempts.lenient()  # give up on the node's shapes, not on the model


def _import_strictly(attempts: Attempts) -> fx.GraphModule:
    """Imports with sizes that go through every node.

    Raises:
        StuckError: there are none.
    """
    fixed: Fixed = {}
    while True:
        try:
            return attempts.run(fixed)
        except StuckError as stuck:
            fixed, module = attempts.repaired(fixed, stuck)
        if module is not None:
            return _widest(attempts, fixed, module)


def _widest(attempts: Attempts, fixed: Fixed, module: fx.GraphModule) -> fx.GraphModule:
    """Returns `module`, imported with `fixed`, with every bounds as wide as the model allows."""
    bounds = {name: size for name, size in fixed.items() if isinstance(size, tuple)}
    reached = {name: attempts.widened(fixed, name, size) for name, size in bounds.items()}
    wider: Fixed = {name: size if size[0] < size[-1] else size[0] for name, size in reached.items()}
    try:
        return attempts.run({**fixed, **wider}) if wider != bounds else module
    except (StuckError, UnsupportedModelError):
        return module
