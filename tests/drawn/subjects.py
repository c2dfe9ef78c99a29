"""Drawn models that import right: calls of operators, graphs of patterns, with channels last and of sizes, programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from tests import size_graphs
from tests.drawn.channels_last import ChannelsLastGraph
from tests.drawn.draw import Draw, model_of, resized
from tests.drawn.graphs import Graph, NoCallError
from tests.drawn.operators import CALLS
from tests.drawn.oracle import NO_CALL, answer, difference
from tests.drawn.patterns import RULES, drawn
from tests.drawn.steps import Program

MOST_RUNS, TRIES = 4, 8
"""Sizes of a subject, the drawn ones among them, and how often others are tried."""

CHANNELS_LAST, OF_SIZES, PROGRAMS = 20, 60, 200
"""Graphs of these kinds for each seed."""

Feeds = dict[str, np.ndarray]
Model = tuple[onnx.ModelProto, list[Feeds], float]
"""A file, its inputs at the sizes that were drawn, and the difference that is rounding, of the largest element."""


@dataclass(frozen=True)
class Run:
    """Inputs at some sizes, and what they give.

    Attributes:
        feeds: the inputs by name.
        wanted: the outputs in ONNX Runtime.
        imported: the outputs of the import, which are right.
    """

    feeds: Feeds
    wanted: list[Any]
    imported: list[Any]

    def tensors(self) -> tuple[Any, ...]:
        """Returns copies of the inputs, which a module may write; texts are arrays."""
        copies = [value.copy() for value in self.feeds.values()]
        return tuple(value if value.dtype.kind == "O" else torch.from_numpy(value) for value in copies)


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

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Returns the inputs of the module, without those that have a default."""
        return given_inputs(self.model.graph)

    def axes(self) -> list[dict[int, str]]:
        """Returns the open dimensions of each input, by axis."""
        return [
            {axis: name for axis, name in enumerate(dimensions(info)) if isinstance(name, str)}
            for info in self.inputs()
        ]

    def __str__(self) -> str:
        return f"{self.name}: {onnx.printer.to_text(self.model)}"


def dimensions(info: onnx.ValueInfoProto) -> list[int | str]:
    """Returns the sizes of an input, names where they are open; one without a name has that of the import."""
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{info.name}:{axis}"
        for axis, dim in enumerate(info.type.tensor_type.shape.dim)
    ]


def given_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Returns the inputs of a graph that have no default."""
    defaults = {tensor.name for tensor in graph.initializer}
    defaults |= {tensor.values.name for tensor in graph.sparse_initializer}
    return [info for info in graph.input if info.name not in defaults]


def _call(domain: str, op: str, seed: int) -> Model:
    d = Draw(random.Random(f"{domain}.{op}.{seed}"))
    call = CALLS[domain, op](d)
    model, feeds = model_of(call, d)
    return model, [feeds], call.rtol


def _of_graph(graph: Graph | None) -> Model:
    if graph is None:
        raise NoCallError("no graph")
    model, feeds = graph.model()
    return model, [feeds], 2e-4


def _pattern(name: str, seed: int) -> Model:
    return _of_graph(drawn(Draw(random.Random(f"{name}.{seed}")), RULES[name].pattern))


def _channels_last(part: int, seed: int) -> Model:
    return _of_graph(ChannelsLastGraph(Draw(random.Random(f"channels last.{CHANNELS_LAST * seed + part}"))))


def _of_sizes(part: int, seed: int) -> Model:
    rng = random.Random(OF_SIZES * seed + part)
    graph = size_graphs.build(rng)
    return graph.model, [graph.inputs(point) for point in rng.sample(graph.points, len(graph.points))], 1e-5


def _program(part: int, seed: int) -> Model:
    """Draws a program: with texts among its inputs and outputs, and sequences and optionals among its outputs."""
    name = f"onward program.{PROGRAMS * seed + part}"
    program = Program(Draw(random.Random(name)))
    rng = random.Random(f"{name}, sizes")
    return program.model(), [program.feeds(), *(program.other_feeds(rng) for _ in range(TRIES))], program.rtol


KINDS: dict[str, Callable[[int], Model]] = {
    **{f"{domain}.{op}".lstrip("."): partial(_call, domain, op) for domain, op in sorted(CALLS)},
    **{name: partial(_pattern, name) for name in RULES},
    **{f"channels last-{part}": partial(_channels_last, part) for part in range(CHANNELS_LAST)},
    **{f"sizes-{part}": partial(_of_sizes, part) for part in range(OF_SIZES)},
    **{f"program-{part}": partial(_program, part) for part in range(PROGRAMS)},
}
"""What draws a model of a seed, by name."""


def outputs(found: Any) -> list[Any]:
    """Returns what a module gives as a list of its outputs; a list is one output, a sequence."""
    return list(found) if isinstance(found, tuple) else [found]


def subject(kind: str, seed: int) -> Subject | None:
    """Returns a drawn model; None for no valid one, and where the import refuses it or is not right."""
    try:
        model, points, rtol = KINDS[kind](seed)
        if len(points) == 1:
            rng = random.Random(seed)
            points += [resized(model, points[0], rng) for _ in range(TRIES)]
        return imported(f"{kind}, seed {seed}", model, points, rtol)
    except (NoCallError, Onnx2nnError):
        return None


def imported(name: str, model: onnx.ModelProto, points: Sequence[Feeds], rtol: float) -> Subject | None:
    """Returns a model with its runs; None where its import is right at none of the sizes.

    Raises:
        Onnx2nnError: the import refuses it.
    """
    module = onnx2nn.load(model)
    runs: list[Run] = []
    for feeds in points:
        if len(runs) < MOST_RUNS and all(_shapes(feeds) != _shapes(run.feeds) for run in runs):
            runs += _run(model, module, feeds, rtol)
    return Subject(name, model, module, runs, rtol) if runs else None


def _run(model: onnx.ModelProto, module: torch.fx.GraphModule, feeds: Feeds, rtol: float) -> Sequence[Run]:
    """Returns the run on some inputs; none where these do not fit, and where the import is not right."""
    run = Run(feeds, [], [])
    try:
        with torch.no_grad():
            run.imported.extend(outputs(module(*run.tensors())))
    except Exception:  # of any class of torch's, at sizes that do not fit each other: other tests ask for the words
        return ()
    try:
        run.wanted.extend(answer(model, feeds))  # asked last, as it may end the process where sizes do not fit
    except NO_CALL:
        return ()
    pairs = zip(run.imported, run.wanted, strict=True)
    return () if any(difference(ours, theirs, rtol) for ours, theirs in pairs) else (run,)


def _shapes(feeds: Feeds) -> list[tuple[int, ...]]:
    return [value.shape for value in feeds.values()]
