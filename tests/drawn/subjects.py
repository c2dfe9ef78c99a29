"""Drawn models that import right: calls of operators, graphs of patterns, graphs with channels last, and of sizes."""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.rewrite.raising import SWEEPS
from tests import size_graphs
from tests.drawn import contrib, elementwise, layout, ml, norms, others, products, recurrent, reductions, windows
from tests.drawn.channels_last import ChannelsLastGraph
from tests.drawn.draw import CALLS, Draw, model_of
from tests.drawn.graphs import NoCallError
from tests.drawn.oracle import NO_CALL, answer, difference
from tests.drawn.patterns import drawn

FILES = (contrib, elementwise, layout, ml, norms, others, products, recurrent, reductions, windows)
"""They fill `CALLS`."""

MOST_RUNS = 4
"""Of a subject."""

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """Inputs at some sizes, and what they give.

    Attributes:
        feeds: the inputs by name.
        wanted: the outputs in ONNX Runtime.
        imported: the outputs of the import.
    """

    feeds: Feeds
    wanted: list[Any]
    imported: list[Any]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Returns copies of the inputs, which a module may write."""
        return tuple(torch.from_numpy(value.copy()) for value in self.feeds.values())


@dataclass(frozen=True)
class Subject:
    """A model that imports right.

    Attributes:
        name: what was drawn.
        model: the file.
        module: its import.
        runs: first one at the sizes that were drawn, then at others of the open dimensions.
        rtol: the difference that is rounding, of the largest element.
    """

    name: str
    model: onnx.ModelProto
    module: torch.fx.GraphModule
    runs: list[Run]
    rtol: float

    def axes(self) -> list[dict[int, str]]:
        """Returns the open dimensions of each input."""
        shapes = [info.type.tensor_type.shape.dim for info in self.model.graph.input]
        return [{axis: dim.dim_param for axis, dim in enumerate(dims) if dim.dim_param} for dims in shapes]

    def __str__(self) -> str:
        return f"{self.name}: {onnx.printer.to_text(self.model)}"


def resized(model: onnx.ModelProto, feeds: Feeds, rng: random.Random) -> Feeds:
    """Returns inputs of other sizes in the dimensions that are open."""
    found = {}
    for info in model.graph.input:
        array = feeds[info.name]
        open_ = [axis for axis, dim in enumerate(info.type.tensor_type.shape.dim) if dim.dim_param]
        shape = [
            rng.randrange(1, 6) if axis in open_ and rng.random() < 0.5 else s for axis, s in enumerate(array.shape)
        ]
        found[info.name] = np.resize(array, shape)
    return found


def _operator(domain: str, op: str, seed: int) -> tuple[onnx.ModelProto, list[Feeds], float]:
    d = Draw(random.Random(f"{domain}.{op}.{seed}"))
    call = CALLS[domain, op](d)
    model, feeds = model_of(call, d)
    return model, [feeds], call.rtol


def _pattern(pattern: Any, name: str, seed: int) -> tuple[onnx.ModelProto, list[Feeds], float]:
    graph = drawn(Draw(random.Random(f"{name}.{seed}")), pattern)
    if graph is None:
        raise NoCallError("no graph")
    model, feeds = graph.model()
    return model, [feeds], 2e-4


def _channels_last(seed: int) -> tuple[onnx.ModelProto, list[Feeds], float]:
    model, feeds = ChannelsLastGraph(Draw(random.Random(f"channels last.{seed}"))).model()
    return model, [feeds], 2e-4


def _sizes(seed: int) -> tuple[onnx.ModelProto, list[Feeds], float]:
    graph = size_graphs.build(random.Random(seed))
    points = random.Random(seed).sample(graph.points, len(graph.points))
    return graph.model, [graph.inputs(point) for point in points], 1e-5


_RULES = [rule for rules in SWEEPS for rule in rules if rule.name != "MultiheadAttention"]

KINDS = {
    **{f"{domain}.{op}".lstrip("."): (_operator, domain, op) for domain, op in sorted(CALLS)},
    **{f"{rule.name}-{i}": (_pattern, rule.pattern, rule.name) for i, rule in enumerate(_RULES)},
    **{f"channels last-{part}": (lambda part, seed: _channels_last(20 * seed + part), part) for part in range(20)},
    **{f"sizes-{part}": (lambda part, seed: _sizes(60 * seed + part), part) for part in range(60)},
}
"""What draws a model, by name."""


def outputs(found: Any) -> list[Any]:
    """Returns what a module gives as a list of its outputs."""
    return [found] if isinstance(found, torch.Tensor) or not isinstance(found, (tuple, list)) else list(found)


def subject(kind: str, seed: int) -> Subject | None:
    """Returns a drawn model; None where it is no valid one, is refused, or where its import is not right."""
    draw, *given = KINDS[kind]
    try:
        model, points, rtol = draw(*given, seed)
    except NoCallError:
        return None
    rng = random.Random(seed)
    others = [resized(model, points[0], rng) for _ in range(8)] if len(points) == 1 else []
    runs: list[Run] = []
    module = None
    for feeds in itertools.chain(points, others):
        if any(_shapes(feeds) == _shapes(run.feeds) for run in runs) or len(runs) == MOST_RUNS:
            continue
        try:
            module = module or onnx2nn.load(model)
            with torch.no_grad():
                imported = outputs(module(*(torch.from_numpy(value.copy()) for value in feeds.values())))
            wanted = answer(model, feeds)  # asked last: at sizes that do not fit it may read beyond its memory
        except NO_CALL:  # these sizes do not fit each other
            if not runs and len(points) == 1:
                return None
            continue
        except Exception:  # what an import refuses, and why, is asked by other tests
            if not runs:
                return None
            continue
        if all(not difference(a, np.asarray(b), rtol) for a, b in zip(imported, wanted, strict=True)):
            runs.append(Run(feeds, wanted, imported))
        elif not runs:
            return None
    return Subject(f"{kind} {seed}", model, module, runs, rtol) if module is not None and runs else None


def _shapes(feeds: Feeds) -> list[tuple[int, ...]]:
    return [value.shape for value in feeds.values()]
