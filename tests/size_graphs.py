"""Random graphs that compute sizes from sizes, and what becomes of them beside ONNX Runtime.

    python -m tests.size_graphs --graphs 500 --seed 0  # a table, and the smallest graph of each cause
    python -m tests.size_graphs --seed 0 --only 17     # one graph, and its result at each of its sizes
    python -m tests.size_graphs --importer oneflow     # in an environment with OneFlow, which needs no PyTorch
    python -m tests.size_graphs --importer .onnx       # what `export_onnx` writes of them; `save`: .pt2, .torchscript

A graph starts from one or two float inputs with the dynamic dimensions `n` and `m`. Steps compute numbers from the
shapes so far (`tests/size_numbers.py`), consumers make tensors whose shapes or values depend on them
(`tests/size_consumers.py`, `tests/size_structures.py`), and further steps take the shapes of those. All choices are
integers of one generator, simplest options first, so that hypothesis shrinks a graph by shrinking its choices.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import onnx2nn
from tests.size_builder import FLOAT, PRODUCT, SIZES, Builder, Number, Tensor, add_input
from tests.size_numbers import size_of, step
from tests.size_structures import consume

POINTS = 12
"""Sizes, or pairs of them, at which a graph runs."""

RTOL = 1e-6
"""Of the largest element, for floats that were computed with; all else is equal bit by bit."""

INPUTS: tuple[tuple[tuple[str | int, ...], ...], ...] = (
    (("n",),),
    (("n", 4),),
    (("n", "m"),),
    (("n",), ("m",)),
    ((3, "n"),),
    (("n", 2, 3),),
    ((1, 2, "n"),),
    (("n", 3), ("m", 3)),
    (("n", "n"),),
    (("m", 2, "n"),),
    (("n",), ("n", 2)),
)
"""The shapes of the inputs."""


@dataclass(frozen=True)
class SizeGraph:
    """A model, the sizes at which to run it, and which of its outputs must be equal bit by bit."""

    model: onnx.ModelProto
    points: tuple[dict[str, int], ...]
    exact: tuple[bool, ...]

    def inputs(self, point: dict[str, int]) -> dict[str, np.ndarray]:
        """Returns a ramp of distinct float32 values for each input, with dimensions at the sizes of a point."""
        values = {}
        for info in self.model.graph.input:
            shape = [point[d.dim_param] if d.dim_param else d.dim_value for d in info.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            values[info.name] = ((np.arange(count, dtype=np.float32) - count // 3) / 8).reshape(shape)
        return values

    def __repr__(self) -> str:
        return f"{onnx.printer.to_text(self.model)}\nat {', '.join(map(str, self.points))}"


def build(rng: random.Random) -> SizeGraph:
    """Builds a graph from the integers that a generator chooses."""
    g = Builder(rng)
    g.least = g.choice([1, 0])
    shapes = g.choice(INPUTS)
    for name, shape in zip("xy", shapes, strict=False):
        add_input(g, name, shape)
    outputs: list[Number | Tensor] = []
    for remaining in reversed(range(g.choice([1, 1, 2, 2, 3]))):
        for _ in range(g.choice([1, 2, 3, 4, 5, 6])):
            step(g)
        if g.chance(30):
            outputs.append(g.numbers[-1])
        tensors = consume(g)
        if not remaining or g.chance(80):
            outputs += tensors
        if tensors[0].rank and g.chance(60):
            g.numbers.append(size_of(g, tensors[0], g.rng.randint(0, tensors[0].rank - 1)))
    if g.chance(30):
        outputs.append(g.numbers[-1])
    outputs = [replace(value, name=g.op("Identity", value)) for value in outputs]
    exact = tuple(value.dtype != FLOAT if isinstance(value, Number) else value.exact for value in outputs)
    return SizeGraph(g.model(outputs), draw_points(rng, g.least, shapes), exact)


def draw_points(rng: random.Random, least: int, shapes: Sequence[Sequence[str | int]]) -> tuple[dict[str, int], ...]:
    """Returns the sizes at which a graph runs, as one choice of the generator: their order need not shrink."""
    draws = random.Random(rng.randint(0, 9999))
    names = sorted({d for shape in shapes for d in shape if isinstance(d, str)}, reverse=True)
    sizes = SIZES if least else (0, *SIZES)
    chosen = [dict(zip(names, pair, strict=False)) for pair in ((a, b) for a in sizes for b in sizes)]
    points = {tuple(point.items()): point for point in chosen}.values()
    small = [point for point in points if all(_product(point, shape) <= PRODUCT for shape in shapes)]
    return tuple(sorted(draws.sample(small, min(POINTS, len(small))), key=lambda point: tuple(point.values())))


def _product(point: dict[str, int], shape: Iterable[str | int]) -> int:
    return int(np.prod([point[d] for d in shape if isinstance(d, str)]))


def size_graphs() -> st.SearchStrategy[SizeGraph]:
    """Size graphs, which shrink to few steps with simple operators."""
    return st.randoms(use_true_random=False, note_method_calls=False).map(build)


def _cropped_first(graph: onnx.GraphProto) -> None:
    """Replaces each Pad by a Slice that crops, for negative pads, and a Pad that does not."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _cropped_first(attribute.g)
        if node.op_type != "Pad":
            nodes.append(node)
            continue
        data, pads, _value, axes = [*node.input, "", ""][:4]
        text = f"""crop (data, pads{", axes" if axes else ""}) => (part, added) {{
            zero = Constant <value_int = 0> ()
            negative = Neg (pads)
            crops = Max (negative, zero)
            added = Max (pads, zero)
            before, after = Split <axis = 0, num_outputs = 2> (crops)
            whole = Shape (data)
            sizes = {"Gather (whole, axes)" if axes else "Identity (whole)"}
            ends = Sub (sizes, after)
            part = Slice (data, before, ends{", axes" if axes else ""})
        }}"""
        body = onnx.parser.parse_graph(text)
        known = {"data": data, "pads": pads, "axes": axes}
        for inner in body.node:
            for names in (inner.input, inner.output):
                names[:] = [known.get(name, f"{node.output[0]}_{name}") for name in names]
        padded = onnx.NodeProto()
        padded.CopyFrom(node)
        padded.input[:2] = [f"{node.output[0]}_part", f"{node.output[0]}_added"]
        nodes += [*body.node, padded]
    del graph.node[:]
    graph.node.extend(nodes)


def second_opinion(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """Asks another oracle about operators of which ONNX Runtime is known to be wrong; None for others.

    ONNX Runtime 1.23 does not write Pad's padding where a crop leaves nothing; see `_is_disputed` for another.
    """
    disputed, pads = any(map(_is_disputed, model.graph.node)), "Pad" in operators_of(model.graph)
    if pads:
        twin = onnx.ModelProto()
        twin.CopyFrom(model)
        _cropped_first(twin.graph)
        model = twin
    if disputed:
        return _with_reference(model, inputs)
    return oracle(model.SerializeToString()).run(None, inputs) if pads else None


def _is_disputed(node: onnx.NodeProto) -> bool:
    """Whether ONNX Runtime's result contradicts the data that the standard stores of such a node, or is none.

    It is Resize with align_corners and scales: ONNX Runtime rounds the length of the output to a whole number before it
    computes coordinates, and the data (`resize_downsample_scales_linear_align_corners`) do not. And it is Pad that
    reflects more elements than there are: ONNX Runtime 1.23 gives what lies in memory, later ones refuse.
    """
    if node.op_type == "Pad":
        return any(a.name == "mode" and a.s == b"reflect" for a in node.attribute)
    modes = [a.s for a in node.attribute if a.name == "coordinate_transformation_mode"]
    return node.op_type == "Resize" and modes == [b"align_corners"] and len(node.input) < 4


def _with_reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Returns a file's outputs, of which onnx's reference computes the disputed nodes and ONNX Runtime all others."""
    rest, values = onnx.ModelProto(), dict(inputs)
    rest.CopyFrom(model)
    nodes = rest.graph.node
    while (place := next((i for i, node in enumerate(nodes) if _is_disputed(node)), None)) is not None:
        node = nodes[place]
        before = onnx.ModelProto()
        before.CopyFrom(rest)
        del before.graph.node[place:], before.graph.output[:]
        names = [name for name in node.input if name]
        before.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        given = dict(zip(names, oracle(before.SerializeToString()).run(None, values), strict=True))
        results = ReferenceEvaluator(node).run(None, given)
        assert isinstance(results, list)
        values[node.output[0]] = results[0]
        shape = [None] * results[0].ndim  # of no known rank, ONNX Runtime takes sizes computed from it for no numbers
        rest.graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, shape))
        del nodes[place]
    return oracle(rest.SerializeToString()).run(None, values)


def operators_of(graph: onnx.GraphProto) -> set[str]:
    """Returns the operators of a graph and of the graphs in it."""
    inner = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return {node.op_type for node in graph.node}.union(*map(operators_of, inner))


RIGHT, WRONG, REFUSED, NOT_LOADED, DISPUTED, NO_ORACLE = (
    "right",
    "silently wrong",
    "refused",
    "load refused",
    "ONNX Runtime wrong",
    "ONNX Runtime refuses",
)


@dataclass(frozen=True)
class Outcome:
    """What became of a graph at a point."""

    point: dict[str, int]
    kind: str
    detail: Exception | str = ""

    @property
    def cause(self) -> str:
        """The detail without names and numbers, so that equal causes are equal."""
        if isinstance(self.detail, str):
            return re.sub(r" \[.*?\]|, first .*|, not \[.*|at \d+ of \d+ places|\w+_\d+, of ", "", self.detail)
        text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\b\w+_\d+\b", "*", str(self.detail))
        text = re.sub(r"-?\d+", "#", text)
        return f"{type(self.detail).__name__}: {' '.join(text.split())[:200]}"


def oracle(content: bytes) -> onnxruntime.InferenceSession:
    """ONNX Runtime as it computes node by node, without messages."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


Module = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""Runs an imported module on the values of its inputs."""


def _outputs(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def import_to_torch(content: bytes) -> Module:
    """Imports a file for PyTorch."""
    return _in_torch(onnx2nn.load(content))


def import_to_oneflow(content: bytes) -> Module:
    """Imports a file for OneFlow."""
    from oneflow_bridge.runtime import import_oneflow

    flow = import_oneflow()
    module = onnx2nn.load(content, framework="oneflow")

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        with flow.no_grad():
            found = module(*map(flow.tensor, inputs))
        return [value.numpy() for value in _outputs(found)]

    return run


def import_and_write(ending: str) -> Callable[[bytes], Module]:
    """Returns what imports a file for PyTorch, writes it again, and runs what was written, where the module runs."""

    def import_(content: bytes) -> Module:
        import torch

        from onnx2nn.importing.inputs import dynamic_axes
        from onnx2nn.output.trace_examples import runs_of

        module = onnx2nn.load(content)
        axes = dynamic_axes(module)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"again{ending}"
            if ending == ".onnx":
                told = onnx2nn.export_onnx(module, path)
                written = _in_onnxruntime(path.read_bytes())
            else:
                example, _ = next(runs_of(module, axes, None, {}))
                told = onnx2nn.save(module, path, example_inputs=example)
                read = torch.jit.load if ending == ".torchscript" else _program
                written = _in_torch(read(path))

        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            with torch.no_grad():
                module(*map(torch.from_numpy, inputs))
            named = dict(zip(module.meta["onnx2nn"]["inputs"], inputs, strict=True))
            for name, array in named.items():
                for axis, label in axes[name].items():
                    if "it holds" in told or f"{label} is {array.shape[axis]}" in told.partition("other outputs")[2]:
                        raise ValueError(f"{name}, {label} = {array.shape[axis]}: {told}")
            return written(inputs)

        return run

    return import_


def _program(path: Path) -> Callable[..., Any]:
    import torch

    return torch.export.load(path).module()


def _in_onnxruntime(content: bytes) -> Module:
    session = oracle(content)
    names = [info.name for info in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def _in_torch(module: Callable[..., Any]) -> Module:
    import torch

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            found = module(*map(torch.from_numpy, inputs))
        return [value.detach().numpy() for value in _outputs(found)]

    return run


IMPORTERS: Mapping[str, Callable[[bytes], Module]] = {
    "torch": import_to_torch,
    "oneflow": import_to_oneflow,
    **{ending: import_and_write(ending) for ending in (".onnx", ".pt2", ".torchscript")},
}
"""The importers that can be asked, by what they make of a file; each loads its framework when it is called."""


def outcomes(graph: SizeGraph, importer: Callable[[bytes], Module] = import_to_torch) -> list[Outcome]:
    """Loads a graph once, runs it at its points, and compares with ONNX Runtime on the same file."""
    content = graph.model.SerializeToString()
    module: Module | None = None
    failure: Exception | str = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importer(content)
    except Exception as error:  # whatever an import raises is what is measured
        failure = error
    try:
        session = oracle(content)
    except Exception as error:  # ONNX Runtime's errors share no class
        return [Outcome(point, NO_ORACLE, error) for point in graph.points]
    results = []
    for point in graph.points:
        inputs = graph.inputs(point)
        try:
            expected = session.run(None, inputs)
        except Exception as error:  # ONNX Runtime's errors share no class
            results.append(Outcome(point, NO_ORACLE, error))
            continue
        if module is None:
            results.append(Outcome(point, NOT_LOADED, failure))
        else:
            results.append(_outcome(graph, module, point, inputs, expected))
    return results


def _outcome(
    graph: SizeGraph,
    module: Module,
    point: dict[str, int],
    inputs: dict[str, np.ndarray],
    expected: list[np.ndarray],
) -> Outcome:
    try:
        with redirect_stderr(StringIO()):  # torch.fx prints where a forward failed
            arrays = module(list(inputs.values()))
    except Exception as error:  # ours or the framework's: the class is judged by `names_its_reason`
        return Outcome(point, REFUSED, error)
    difference = _difference(graph, arrays, expected)
    if not difference:
        return Outcome(point, RIGHT)
    other = second_opinion(graph.model, inputs)
    if other is None:
        return Outcome(point, WRONG, difference)
    mended = _difference(graph, arrays, other)
    return Outcome(point, WRONG, mended) if mended else Outcome(point, DISPUTED, difference)


def _difference(graph: SizeGraph, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """What differs first, with the operator that made it, or nothing."""
    makers = {name: node.op_type for node in graph.model.graph.node for name in node.output}
    made_from = {node.output[0]: node.input[0] for node in graph.model.graph.node if node.op_type == "Identity"}
    for info, a, b, same in zip(graph.model.graph.output, found, expected, graph.exact, strict=True):
        output = f"{info.name}, of {makers.get(made_from[info.name], 'an input')},"
        if a.dtype != b.dtype:
            return f"{output} is {a.dtype}, not {b.dtype}"
        if a.shape != b.shape:
            return f"{output} has the shape {list(a.shape)}, not {list(b.shape)}"
        largest = np.abs(b).max(initial=0)
        if not (np.array_equal(a, b) if same else np.allclose(a, b, rtol=RTOL, atol=RTOL * largest)):
            places = np.flatnonzero(a != b)
            first = f"{a.flat[places[0]]}, not {b.flat[places[0]]}"
            return f"{output} differs at {len(places)} of {a.size} places, first {first}"
    return ""


def names_its_reason(graph: SizeGraph, outcome: Outcome) -> bool:
    """Whether a refusal is an error of ours whose text names an input and a condition on one of its sizes."""
    text = str(outcome.detail)
    named = any(re.search(rf"\b{info.name}\b", text) for info in graph.model.graph.input)
    conditional = re.search(r"[=<>%]|must be", text)
    return isinstance(outcome.detail, (ValueError, AssertionError)) and named and conditional is not None


@dataclass
class Tally:
    """Counts of points by outcome, and the smallest graph of each cause."""

    graphs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    refused_at: Counter[str] = field(default_factory=Counter)
    unnamed: int = 0
    smallest: dict[tuple[str, str], tuple[SizeGraph, Outcome, str]] = field(default_factory=dict)

    def add(self, graph: SizeGraph, results: Sequence[Outcome], label: str = "") -> None:
        self.graphs += 1
        self.hit.update({result.kind for result in results})
        for result in results:
            self.kinds[result.kind] += 1
            if result.kind == RIGHT:
                continue
            if result.kind in (REFUSED, NOT_LOADED):
                least = min(result.point.values())
                self.refused_at[str(least) if least < 2 else "2 or more"] += 1
            kind = result.kind, result.cause
            if result.kind == REFUSED and not names_its_reason(graph, result):
                self.unnamed += 1
                kind = result.kind, f"names no input, {result.cause}"
            self.causes[kind] += 1
            if kind not in self.smallest or graph.model.ByteSize() < self.smallest[kind][0].model.ByteSize():
                self.smallest[kind] = graph, result, label

    @property
    def points(self) -> int:
        """Points at which ONNX Runtime answers."""
        return sum(self.kinds.values()) - self.kinds[NO_ORACLE]

    @property
    def refused(self) -> int:
        return self.kinds[REFUSED] + self.kinds[NOT_LOADED]

    def table(self) -> str:
        lines = [f"{self.graphs} graphs, {self.points} points at which ONNX Runtime answers"]
        for kind in (RIGHT, WRONG, REFUSED, NOT_LOADED, DISPUTED, NO_ORACLE):
            share = self.kinds[kind] / max(self.points, 1)
            lines.append(f"  {kind:<22}{self.kinds[kind]:>7} points {share:>8.2%}   in {self.hit[kind]} graphs")
        refused = self.refused_at.items()
        lines += [f"  refused where the smallest size is {size}: {count}" for size, count in sorted(refused)]
        if self.unnamed:
            lines.append(f"  refused, and the error names no input or no condition: {self.unnamed}")
        return "\n".join(lines)

    def listing(self, shown: int, kinds: Sequence[str] = (WRONG, REFUSED, NOT_LOADED, DISPUTED)) -> str:
        """Each cause with its count, and for the first ones the smallest graph."""
        lines = []
        for kind in kinds:
            causes = [(cause, count) for (k, cause), count in self.causes.most_common() if k == kind]
            for place, (cause, count) in enumerate(causes):
                graph, outcome, label = self.smallest[kind, cause]
                lines.append(f"{kind}, {count} points ({label or 'smallest'} at {outcome.point}): {cause}")
                if place < shown:
                    lines += [f"    {outcome.detail}", *onnx.printer.to_text(graph.model).splitlines()]
        return "\n".join(lines)


def main() -> int:
    """Command line; returns 1 where a result is silently wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=500, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="other graphs for each seed")
    parser.add_argument("--only", type=int, help="one graph by its number, at each size")
    parser.add_argument("--shown", type=int, default=3, help="of how many causes of each kind to print the graph")
    parser.add_argument("--importer", choices=list(IMPORTERS), default="torch", help="the framework to import for")
    options = parser.parse_args()
    if options.importer == "torch":
        import torch

        torch.set_num_threads(1)
    tally, started = Tally(), time.perf_counter()
    for index in range(options.graphs) if options.only is None else [options.only]:
        graph = build(random.Random(options.seed * 1_000_003 + index))
        results = outcomes(graph, IMPORTERS[options.importer])
        tally.add(graph, results, f"--only {index}")
        if options.only is not None:
            print(graph)
            for result in results:
                print(result.point, result.kind, result.detail)
    seconds = time.perf_counter() - started
    print(tally.listing(options.shown), tally.table(), sep="\n")
    print(f"{seconds:.1f} s, {1000 * seconds / tally.graphs:.0f} ms a graph")
    return 1 if tally.kinds[WRONG] else 0


if __name__ == "__main__":
    sys.exit(main())
