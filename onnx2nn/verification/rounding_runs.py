"""Measures noise by runs with moved values: of one node in the oracle, and of a whole module."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx2nn.errors import VerificationError
from onnx2nn.verification.module_runs import inputs_for, moved_tensor
from onnx2nn.verification.moved_scales import with_moved_scales
from onnx2nn.verification.noise import Changes, growing_changes, moved_feeds
from onnx2nn.verification.probe import Probe
from onnx2nn.verification.widening import HALF, SINGLE, widened, widened_feeds

if TYPE_CHECKING:
    from torch import fx

    from onnx2nn.verification.oracle import Oracle


def node_changes(probe: Probe, output: str, known: Collection[str]) -> Iterator[Changes]:
    """Yields how far the oracle's own value of a node changes where the node's inputs are moved by more and more ULP.

    The value that the oracle computes in a wider type (float64, float32 for half precision) counts as one such change:
    an algorithm may round more than moves of its inputs show, as ONNX Runtime's Fourier transforms of lengths that are
    no power of two do. Where coordinates are computed from scales, these are moved too.

    Only the oracle runs, so that nothing that a wrong import does can enlarge the noise.

    Args:
        probe: the model and its inputs.
        output: the value's name.
        known: names of the values that the module was given there; the nodes between them and the value are run.
    """
    try:
        segment = probe.segment(output, known)
        if segment is None:
            return
        model, feeds = segment
        oracle = probe.oracle_of(model)
    except VerificationError:  # what cannot run on its own has no measured noise, and no excuse
        return

    types = HALF if output in probe.halves else SINGLE
    lengths = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]

    @functools.cache
    def resizing(ulps: int) -> Oracle | None:
        moved = with_moved_scales(model, ulps) if ulps else None
        other = None if moved is None else probe.oracle_of(moved)
        return other if other is not None and other.name == oracle.name else None

    def run(ulps: int, trial: int) -> Sequence[Any] | None:
        inputs = moved_feeds(feeds, ulps, trial)
        with contextlib.suppress(VerificationError):  # another length where the model demands this one
            if other := resizing(ulps):
                values = other.run(inputs)
                if list(np.shape(values[0])) == lengths:
                    return values
        try:
            return oracle.run(inputs)
        except VerificationError:  # an input that must be exact, such as a size
            return None

    def exact() -> Sequence[Any] | None:
        try:
            wide = probe.oracle_of(widened(model, types))
            if wide.name != oracle.name:  # another oracle's meaning
                return None
            return wide.run(widened_feeds(feeds, types))
        except VerificationError:  # an operator that takes no float64
            return None

    yield from growing_changes(run, [output], exact)


def module_changes(
    module: fx.GraphModule,
    feeds: Sequence[Any],
    names: Sequence[str],
    rounding: Mapping[fx.Node, np.ndarray | None],
    drawn: Mapping[fx.Node, Any],
) -> Iterator[Changes]:
    """Yields how far a module's outputs change where every value that it rounds is moved by more and more ULP.

    This is the noise of the whole computation: inputs and the results of rounding nodes are moved, element by element.
    A node that was found to round more than by units in the last place is moved by its own noise.

    Args:
        module: a module whose nodes agree with the oracle, each by itself; a wrong one may be noisier than the model.
        feeds: its inputs, arrays.
        names: the outputs' names.
        rounding: nodes whose results differ from the oracle's by rounding → the noise of each element of the result,
            None where it was not measured.
        drawn: values of random nodes.
    """
    import torch

    def run(ulps: int, trial: int) -> Sequence[Any] | None:
        try:
            with torch.no_grad():
                return _moved_run(module, feeds, rounding, drawn, ulps, trial)
        except Exception:  # any error of the module's nodes, on values that they may refuse
            return None

    yield from growing_changes(run, names)


def _moved_run(
    module: fx.GraphModule,
    feeds: Sequence[Any],
    rounding: Mapping[fx.Node, np.ndarray | None],
    drawn: Mapping[fx.Node, Any],
    ulps: int,
    trial: int,
) -> Sequence[Any]:
    from torch import fx

    interpreter = fx.Interpreter(module)
    inputs = iter(inputs_for(module, feeds))
    for position, node in enumerate(module.graph.nodes):
        if node.op == "output":
            break
        value = next(inputs) if node.op == "placeholder" else drawn.get(node)
        value = interpreter.run_node(node) if value is None else value
        if ulps and (node in rounding or node.op == "placeholder"):
            # Another direction at each node: trials 0 and 1 move all values of one run up, or down.
            value = _moved_value(value, ulps, trial if trial < 2 else trial + 2 * position, rounding.get(node))
        interpreter.env[node] = value
        for unused in interpreter.user_to_last_uses.get(node, ()):
            interpreter.env.pop(unused, None)
    result = interpreter.run_node(node)
    return result if isinstance(result, tuple) else (result,)


def _moved_value(value: Any, ulps: int, trial: int, noise: np.ndarray | None = None) -> Any:
    import torch

    if isinstance(value, (list, tuple)):
        return type(value)(_moved_value(item, ulps, trial) for item in value)
    moved = moved_tensor(value, ulps, trial)
    if noise is None or not isinstance(value, torch.Tensor) or tuple(noise.shape) != tuple(value.shape):
        return moved
    direction = torch.sign(moved - value)  # the noise goes where the unit in the last place goes
    return moved + direction * torch.from_numpy(noise).to(value)
