"""Sizes of the dynamic dimensions of a model: samples that an import is traced with, and what limits them."""

from __future__ import annotations

import ast
import copy
import itertools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from onnx2nn.errors import OperatorError
from onnx2nn.fx.constants import Constant
from onnx2nn.fx.dim import Dim
from onnx2nn.fx.tensor import Tensor
from onnx2nn.optable.registry import load_rows
from onnx2nn.optable.shape_values import Host


class Inside(NamedTuple):
    """A dynamic dimension as one branch of an If sees it, which may serve less than the other."""

    branch: ir.Graph
    name: str


Size = int | str | tuple[int, ...]
Fixed = Mapping[str | Inside, Size]
"""Dynamic dimensions that are less free than the file says, see `Sizes`."""


class MisfitError(OperatorError):
    """Shapes that are all known do not fit a node: where it is in a branch of an If, no input may choose that."""


class Sizes:
    """Sample values for the dynamic dimensions of a model, by name.

    Args:
        family: which of the sample families to use.
        fixed: dimensions that have turned out to have one value only, or to equal another one, by its name, or to lie
            between bounds: then three values or more, from least to most. Those inside a branch hold for sample points
            of its own, behind the others.
        needed: whether there are other dynamic dimensions, those of results that depend on data.

    Attributes:
        family: as given.
        of_data: whether all dynamic dimensions are those.
        least: the first sample value of those, None for one of some that are small.
        branches: which points are those of a branch that has some of its own, and its sizes at them.
    """

    least: int | None = None
    values: dict[str, tuple[int, ...]]
    points: int
    dynamic: list[str]

    FAMILIES: Sequence[Any] = (
        lambda k: (5 + 2 * k, 13 + 4 * k, 257 + 6 * k),
        lambda k: (64 * (3 + k), 64 * (5 + 2 * k), 64 * (11 + 3 * k)),
        lambda k: (2 + k, 4 + 2 * k, 7 + 3 * k),
        lambda k: (1009 - 3 * k, 1511 - 5 * k, 2017 - 7 * k),
    )

    def __init__(self, names: Sequence[str], family: int, fixed: Fixed, needed: bool = False):
        self.family = family
        inside: dict[ir.Graph, dict[str | Inside, Size]] = {}
        for key, size in fixed.items():
            if isinstance(key, Inside):
                inside.setdefault(key.branch, {})[key.name] = size
        around: dict[str | Inside, Size] = {k: size for k, size in fixed.items() if not isinstance(k, Inside)}
        self._choose(names, around, needed)
        self.of_data = needed and not names
        self.sampled = bool(names)
        self._around = (slice(0, self.points), copy.copy(self))
        self.branches: dict[ir.Graph, tuple[slice, Sizes]] = {}
        for branch, own in inside.items():
            sizes = Sizes(names, family, {**around, **own}, needed)
            self.branches[branch] = (slice(self.points, self.points + sizes.points), sizes)
            self.points += sizes.points
            self.values = {name: values + sizes.values[name] for name, values in self.values.items()}

    def inside(self, branch: ir.Graph) -> tuple[slice, Sizes]:
        """Returns which points are those of a branch, of one that has none of its own those of what is around it."""
        return self.branches.get(branch, self._around)

    def _choose(self, names: Sequence[str], around: Fixed, needed: bool) -> None:
        """Sets the values of all points but those of branches."""
        fixed = {str(name): size for name, size in around.items()}
        equal = {name: other for name, other in fixed.items() if isinstance(other, str)}
        dynamic = [name for name in names if name not in fixed]
        bounded = {name: size for name, size in fixed.items() if isinstance(size, tuple)}
        self.points = max(map(len, bounded.values()), default=3 if dynamic or needed else 1)
        self.values = {}
        for name, size in fixed.items():
            if isinstance(size, int):
                self.values[name] = (size,) * self.points
        chosen = {**bounded, **{name: self.FAMILIES[self.family](k) for k, name in enumerate(dynamic)}}
        self.values |= {n: tuple(itertools.islice(itertools.cycle(v), self.points)) for n, v in chosen.items()}
        for name in equal:
            other = name
            while other in equal:
                other = equal[other]
            self.values[name] = self.values[other]
        for name in dynamic:
            self.values[name] = self._named_after_others(name) or self.values[name]
        self.dynamic = dynamic

    def of_less_data(self) -> list[Sizes]:
        """Returns the same sizes with smaller ones of what data decide: `min(n, 2)` is 2 for all that are not."""
        less = [copy.copy(self), copy.copy(self)]
        less[0].least, less[1].least = 1, 0  # of nothing at all some operators make an error
        return less

    def _named_after_others(self, name: str) -> tuple[int, ...] | None:
        """Returns the values of a dimension called `past + length`, by those of the two; None for other names."""
        if name.isidentifier() or len(name) > 200:
            return None
        try:
            expression = ast.parse(name, mode="eval").body
            values = tuple(self._value(expression, point) for point in range(self.points))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None
        return values if min(values) > 0 and max(values) < 1 << 20 else None

    def _value(self, expression: ast.expr, point: int) -> int:
        match expression:
            case ast.BinOp(left, sign, right) if type(sign) in _ARITHMETIC:
                return _ARITHMETIC[type(sign)](self._value(left, point), self._value(right, point))
            case ast.Constant(int(number)):
                return number
            case ast.Name(name) if name in self.values:
                return self.values[name][point]
        raise ValueError("no arithmetic of other dimensions")


_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class StuckError(Exception):
    """The sample sizes do not go through the graph.

    Holds the node that refuses them, its inputs, what its failing call got, the sizes, how far the import went, and the
    errors of other sizes that did not come so far. In a branch of an If that is chosen at run time, sizes are what that
    branch sees, and `branch` is its graph. `assumed` are the comparisons of sizes that settled which way the import
    went, `point` is the first sample point that fails, 0 if unknown.
    """

    def __init__(
        self,
        reason: str,
        node: ir.Node,
        inputs: Sequence[Any],
        call: Sequence[Any],
        sizes: Sizes,
        step: tuple[int, int],
        branch: ir.Graph | None = None,
        assumed: Sequence[tuple[tuple[Any, Dim, Any], bool]] = (),
        point: int = 0,
    ):
        super().__init__(reason)
        self.branch, self.assumed, self.point = branch, list(assumed), point
        self.node, self.inputs, self.call, self.sizes, self.step = node, inputs, call, sizes, step
        self.others: list[StuckError] = []

    @property
    def ways(self) -> list[bool]:
        """What the comparisons were taken for that settled which way the import went."""
        return [truth for _, truth in self.assumed]


def candidates(stuck: StuckError) -> Iterable[tuple[tuple[str, Size], ...]]:
    """Yields what dynamic dimensions may really be, by what surrounds the node that fails: one of them, or several.

    Two names may stand for one dimension: exporters give every unknown dimension a name of its own.
    An exporter may have baked the traced size into a constant: then a dimension, or the number of elements, of one
    input is that constant divided by what the dynamic dimension is multiplied with.
    """
    varying: list[tuple[float, ...]] = []
    static: list[int] = []
    given: set[int] = set()
    for position, value in enumerate((*stuck.inputs, *stuck.call)):
        if isinstance(value, Tensor) and value.spec.shapes is not None:
            columns = list(zip(*value.spec.shapes, strict=True))
            varying += [column for column in columns if len(set(column)) > 1]
            varying.append(tuple(math.prod(shape) for shape in value.spec.shapes))
            static += [column[0] for column in columns if len(set(column)) == 1]
        elif isinstance(value, (Constant, Host)) and math.prod(getattr(value, "shape", (1,))) < 64:
            array = value.array if isinstance(value, Host) else value.numpy()
            varying += [n.values for n in np.ravel(array).tolist() if isinstance(n, Dim)]
            numbers = [n for n in np.ravel(array).tolist() if isinstance(n, int) and n > 0]
            static += numbers
            static.append(math.prod(numbers))
        if isinstance(value, (Constant, torch.Tensor)):
            static += list(value.shape)
        if position == len(stuck.inputs) - 1:
            given = set(static)  # what the body made of it has ones of its own
    present = [n for n in stuck.sizes.dynamic if stuck.sizes.values[n] in varying]
    present += [n for n in stuck.sizes.dynamic if n not in present and _divides(stuck.sizes.values[n], varying)]
    yield from (((b, a),) for i, a in enumerate(present) for b in present[i + 1 :])
    yield from _beside_constants(stuck)
    yield from ((size,) for size in _in_place(stuck))
    yield from ((size,) for size in _bounded(stuck))
    yield from ((size,) for size in _strided(stuck))
    yield from _squares(stuck)
    ones = []
    for name in stuck.sizes.dynamic:
        ratios = {_ratio(column, stuck.sizes.values[name]) for column in varying} - {0}
        whole = {int(n / ratio) for ratio in ratios for n in static if n > max(ratio, 1) and n % ratio == 0}
        # A dimension of 1 fits everything, by broadcasting.
        yield from (((name, n),) for n in sorted(whole, reverse=True))
        ones += [name] * any(ratio in given for ratio in ratios)
    yield from ((size,) for size in _shrunk(stuck, static))
    yield from (((name, 1),) for name in ones)


def _shrunk(stuck: StuckError, numbers: Iterable[int]) -> Iterable[tuple[str, Size]]:
    """Yields dimensions from which convolutions without padding cut something, by what must be left of them.

    That is one of the numbers that the node knows, or rather what is left of it for the sizes beside: `[-1, 1060]` of
    10 channels wants a width of 106. The last dimensions come first, for they are what is flattened.
    """
    for tensor in stuck.inputs:
        shapes = tensor.spec.shapes if isinstance(tensor, Tensor) else None
        columns = list(zip(*shapes, strict=True)) if shapes is not None else []
        beside = math.prod(column[0] for column in columns if len(set(column)) == 1) or 1
        shared = {n // beside for n in numbers if n % beside == 0 and n > beside}
        wanted = [*sorted(shared, reverse=True), *sorted(set(numbers) - shared, reverse=True)]
        for column, name in itertools.product(reversed(columns), stuck.sizes.dynamic):
            sizes = stuck.sizes.values[name]
            if len(set(sizes)) < len(sizes) or len(set(column)) < len(column):
                continue
            slope = Fraction(column[1] - column[0], sizes[1] - sizes[0])
            cut = slope * sizes[0] - column[0]
            if slope > 0 and cut > 0 and all(slope * v - cut == w for v, w in zip(sizes, column, strict=True)):
                yield from ((name, int(size)) for n in wanted if (size := (n + cut) / slope).denominator == 1)


def _beside_constants(stuck: StuckError) -> Iterable[tuple[tuple[str, Size], ...]]:
    """Yields several dimensions as the sizes that a constant has in their places; one alone would not help."""
    if stuck.node.op_type not in load_rows().operators("broadcasting"):
        return
    tensors = [v.spec.shapes for v in stuck.inputs if isinstance(v, Tensor) and v.spec.shapes is not None]
    names = {stuck.sizes.values[name]: name for name in stuck.sizes.dynamic}
    for shapes, constant in itertools.product(tensors, (v for v in stuck.inputs if isinstance(v, Constant))):
        pairs = zip(reversed(list(zip(*shapes, strict=True))), reversed(constant.shape), strict=False)
        sizes = tuple((names[column], size) for column, size in pairs if column in names and size > 1)
        if len(dict(sizes)) == len(sizes) > 1:
            yield sizes


def _in_place(stuck: StuckError) -> Iterable[tuple[str, Size]]:
    """Yields dimensions that a Reshape keeps where they stand, as the size that an exporter baked into its shape."""
    if stuck.node.op_type != "Reshape" or len(stuck.inputs) < 2 or not isinstance(stuck.inputs[0], Tensor):
        return
    target, shapes = stuck.inputs[1], stuck.inputs[0].spec.shapes
    if not isinstance(target, Constant) or shapes is None:
        return
    for column, wanted in zip(zip(*shapes, strict=True), target.numpy().tolist(), strict=False):
        for name in stuck.sizes.dynamic:
            ratio = _ratio(column, stuck.sizes.values[name])
            if ratio >= 1 and wanted > ratio and wanted % ratio == 0:
                yield name, int(wanted / ratio)


def _bounded(stuck: StuckError) -> Iterable[tuple[str, Size]]:
    """Yields bounds of a dimension of which the network must leave a certain size, around the one that does.

    Text recognisers are declared for every height and need one of which their pooling leaves a single row. No constant
    of the file says which; what is left of other heights does.
    """
    found = []
    for error in (stuck, *stuck.others):
        for name in error.sizes.dynamic:
            sizes = error.sizes.values[name]
            for column, wanted in set(_misfits(error)):
                fits = [size for size, rest in zip(sizes, column, strict=True) if rest == wanted]
                if len(fits) > 1:
                    yield name, (fits[0], (fits[0] + fits[-1]) // 2, fits[-1])
                shrunk = [size / rest for size, rest in zip(sizes, column, strict=True)]
                spread = max(shrunk) / min(shrunk) - 1
                if min(shrunk) >= 4 and spread < 0.2:
                    found.append((spread, name, statistics.median(shrunk) * wanted))
    for _, name, size in sorted(found):
        step = 16 if size >= 16 else 4
        least = int(size // step * step)
        yield name, (least, least + step // 2 - 1, least + step)  # sizes of one remainder would hide what divides them
        yield name, (least,) * 3


def _strided(stuck: StuckError) -> Iterable[tuple[str, Size]]:
    """Yields sizes in which windows of one stride leave as many places as an If asks for that was passed by."""
    for error in (stuck, *stuck.others):
        for name, (column, wanted) in itertools.product(error.sizes.dynamic, set(_passed_by(error))):
            sizes = error.sizes.values[name]
            if column[-1] <= column[0] or sizes[-1] <= sizes[0]:
                continue
            stride = (sizes[-1] - sizes[0]) / (column[-1] - column[0])
            first = sizes[0] - (column[0] - wanted) * stride
            places = [(size - first) / stride + wanted for size in sizes]
            if stride >= 2 and all(abs(a - b) < 1 for a, b in zip(places, column, strict=True)):
                likely = (int(first + part * stride) for part in (0, 0.5, -0.5))
                yield from ((name, (size,) * 3) for size in likely if size > 1)


def _squares(stuck: StuckError) -> Iterable[tuple[tuple[str, Size], ...]]:
    """Yields the size of a square image of which as many patches are left as the network has positions.

    Exporters declare images of transformers for every height and width, also where the positions are constants. Of the
    sizes that leave as many patches, those from a whole number of patches on are tried first.
    """
    found = []
    for error in (stuck, *stuck.others):
        for height, width in itertools.combinations_with_replacement(error.sizes.dynamic, 2):
            areas = [h * w for h, w in zip(error.sizes.values[height], error.sizes.values[width], strict=True)]
            for column, wanted in set(_misfits(error)):
                edges = [math.sqrt(area / rest) for area, rest in zip(areas, column, strict=True)]
                edge = round(statistics.median(edges))
                if edge > 1 and max(edges) / min(edges) < 1.05 and wanted > 1:
                    found.append((max(edges) / min(edges), height, width, edge, int(edge * math.sqrt(wanted))))
    for _, height, width, edge, size in sorted(found):
        least = size // edge * edge
        same = [] if width == height else [(width, height)]
        yield (height, (least, least + edge // 2, least + edge - 1)), *same
        yield (height, least), *same


def fitting(stuck: StuckError) -> int:
    """Returns how many sample points, from the first on, are none at which the node fails."""
    counts = [stuck.point]
    for error in (stuck, *stuck.others):
        for column, wanted in _misfits(error):
            counts.append(next((i for i, rest in enumerate(column) if rest != wanted), len(column)))
    return max(counts)


def _misfits(stuck: StuckError) -> Iterable[tuple[tuple[float, ...], int]]:
    """Yields quantities, one number a sample point, that would have to be another number, the same at every point."""
    tensors = [v.spec.shapes for v in stuck.inputs if isinstance(v, Tensor) and v.spec.shapes is not None]
    columns = [list(zip(*shapes, strict=True)) for shapes in tensors]
    yield from _passed_by(stuck)
    varying = [column for column in (columns or [[]])[0] if len(set(column)) > 1 and min(column) > 0]
    if stuck.node.op_type == "Squeeze":
        yield from ((column, 1) for column in varying)
    elif stuck.node.op_type == "Reshape" and tensors:
        counts = _counts(stuck.inputs[1], tensors[0]) if len(stuck.inputs) > 1 else []
        left = tuple(math.prod(a) / b for a, b in zip(tensors[0], counts, strict=True)) if counts else ()
        yield from [(left, 1)] if left and min(left) > 0 else []
    else:
        points = len(tensors[0]) if tensors else 0
        columns += [[(size,) * points for size in v.shape] for v in stuck.inputs if isinstance(v, Constant)]
        for one, other in itertools.permutations(columns, 2):
            for mine, yours in zip(one, other, strict=False) if len(one) == len(other) else ():
                if len(set(mine)) > 1 and len(set(yours)) == 1 and min(mine) > 0 and yours[0] > 0:
                    yield mine, yours[0]


def _passed_by(stuck: StuckError) -> Iterable[tuple[tuple[float, ...], int]]:
    """Yields sizes, one a sample point, that were not the number that an If asks for: its way may lack the node."""
    for (compare, size, wanted), truth in stuck.assumed:
        if compare in (operator.eq, operator.ne) and (compare is operator.eq) != truth and isinstance(wanted, int):
            yield from [(size.values, wanted)] if wanted > 0 and min(size.values) > 0 else []


def _counts(target: Any, shapes: Sequence[Sequence[int]]) -> list[int]:
    """Returns how many elements a Reshape asks for at each sample point, none where it leaves that open."""
    array = target.array if isinstance(target, Host) else target.numpy() if isinstance(target, Constant) else None
    if array is None or array.ndim != 1 or any(not isinstance(n, Dim) and n < 0 for n in array.tolist()):
        return []
    counts = []
    for point, shape in enumerate(shapes):
        sizes = [n.values[point] if isinstance(n, Dim) else n for n in array.tolist()]
        counts.append(math.prod(n or (shape[axis] if axis < len(shape) else 1) for axis, n in enumerate(sizes)))
    return counts if all(counts) else []


def _divides(sizes: Sequence[int], columns: Iterable[Sequence[float]]) -> bool:
    """Returns whether a column is a multiple of a dimension, as that of the heads of all samples is."""
    return any(ratio >= 1 and ratio % 1 == 0 for ratio in (_ratio(column, sizes) for column in columns))


def _ratio(column: Sequence[float], sizes: Sequence[int]) -> float:
    """Returns what `sizes` are multiplied with, or as a whole number divided by, to give `column`; 0 for nothing."""
    ratios = {w / v for w, v in zip(column, sizes, strict=True)}
    if len(ratios) == 1:
        return ratios.pop()
    divisors = {v // w for w, v in zip(column, sizes, strict=True) if w > 0}
    divisor = divisors.pop() if len(divisors) == 1 else 0
    same = divisor > 1 and all(w == v // divisor for w, v in zip(column, sizes, strict=True))
    return 1 / divisor if same else 0
