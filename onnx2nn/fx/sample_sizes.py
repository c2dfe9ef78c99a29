"""Sample sizes of a model's dynamic dimensions, and candidates for restrictions if the model refuses them."""

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
from onnx2nn.optable.shape_values import ShapeValues


class InBranch(NamedTuple):
    """A dynamic dimension in one branch of an If, which may accept other sizes than the other branch."""

    branch: ir.Graph
    name: str


Size = int | str | tuple[int, ...]
Fixed = Mapping[str | InBranch, Size]
"""Restricted dynamic dimensions, see `Sizes`."""


class BranchConflictError(OperatorError):
    """A shape conflict in a branch of an If, of shapes that are all known: no input may choose the branch."""


class Sizes:
    """Sample values for the dynamic dimensions of a model, by name.

    Args:
        family: the number of the sample family.
        fixed: restricted dimensions: an int is the only size, a str the name of an equal dimension, a tuple the bounds
            with sample values between. Restrictions in a branch hold for sample points of the branch's own, behind the
            others.
        needed: whether there are data-dependent dimensions.

    Attributes:
        family: as given.
        data_dependent: whether all dynamic dimensions are data-dependent.
        sampled: whether the model's inputs have dynamic dimensions.
        least: the first sample value of data-dependent dimensions, None for several small values.
        values: the sample values of each dimension, by name.
        points: the number of sample points.
        dynamic: names of the dimensions without a restriction.
        branches: the sample points and the sizes of each branch with points of its own.
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
        inside: dict[ir.Graph, dict[str | InBranch, Size]] = {}
        for key, size in fixed.items():
            if isinstance(key, InBranch):
                inside.setdefault(key.branch, {})[key.name] = size
        around: dict[str | InBranch, Size] = {k: size for k, size in fixed.items() if not isinstance(k, InBranch)}
        self._choose(names, around, needed)
        self.data_dependent = needed and not names
        self.sampled = bool(names)
        self._around = (slice(0, self.points), copy.copy(self))
        self.branches: dict[ir.Graph, tuple[slice, Sizes]] = {}
        for branch, own in inside.items():
            sizes = Sizes(names, family, {**around, **own}, needed)
            self.branches[branch] = (slice(self.points, self.points + sizes.points), sizes)
            self.points += sizes.points
            self.values = {name: values + sizes.values[name] for name, values in self.values.items()}

    def inside(self, branch: ir.Graph) -> tuple[slice, Sizes]:
        """Returns the sample points and sizes of a branch; those of the enclosing graph if it has none of its own."""
        return self.branches.get(branch, self._around)

    def _choose(self, names: Sequence[str], around: Fixed, needed: bool) -> None:
        """Sets the values of all points, except those of branches."""
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

    def with_smaller_data_sizes(self) -> list[Sizes]:
        """Returns the same sizes with smaller samples of data-dependent sizes, so that `min(n, 2)` varies."""
        smaller = [copy.copy(self), copy.copy(self)]
        smaller[0].least, smaller[1].least = 1, 0  # 1 first, because some operators refuse empty tensors
        return smaller

    def _named_after_others(self, name: str) -> tuple[int, ...] | None:
        """Returns the values of a dimension named `past + length`, from those of its terms; None for other names."""
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


class ShapeConflictError(Exception):
    """A node does not accept the sample sizes.

    Attributes:
        node: the node.
        inputs: its inputs.
        call: the arguments of the failing call in its body.
        sizes: the sample sizes, those of `branch` inside a branch.
        step: the progress of the import: nodes, and calls in the last node.
        branch: the enclosing branch of an If that is chosen at run time, None where there is none.
        assumed: the comparisons of sizes by which the import chose branches, and their truth.
        point: the first sample point that fails, 0 if unknown.
        others: the errors of other sample sizes, with less progress.
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
        self.others: list[ShapeConflictError] = []

    @property
    def ways(self) -> list[bool]:
        """The truth of the comparisons by which the import chose branches."""
        return [truth for _, truth in self.assumed]


def candidates(conflict: ShapeConflictError) -> Iterable[tuple[tuple[str, Size], ...]]:
    """Yields restrictions of dynamic dimensions that may resolve a conflict, the likeliest first.

    Two names may denote one dimension, because exporters name every unknown dimension differently. An exporter may have
    baked the traced size into a constant: a dimension or the number of elements of one input then equals the constant
    divided by the factor of the dynamic dimension.
    """
    varying: list[tuple[float, ...]] = []
    static: list[int] = []
    given: set[int] = set()
    for position, value in enumerate((*conflict.inputs, *conflict.call)):
        if isinstance(value, Tensor) and value.spec.shapes is not None:
            columns = list(zip(*value.spec.shapes, strict=True))
            varying += [column for column in columns if len(set(column)) > 1]
            varying.append(tuple(math.prod(shape) for shape in value.spec.shapes))
            static += [column[0] for column in columns if len(set(column)) == 1]
        elif isinstance(value, (Constant, ShapeValues)) and math.prod(getattr(value, "shape", (1,))) < 64:
            array = value.array if isinstance(value, ShapeValues) else value.numpy()
            varying += [n.values for n in np.ravel(array).tolist() if isinstance(n, Dim)]
            numbers = [n for n in np.ravel(array).tolist() if isinstance(n, int) and n > 0]
            static += numbers
            static.append(math.prod(numbers))
        if isinstance(value, (Constant, torch.Tensor)):
            static += list(value.shape)
        if position == len(conflict.inputs) - 1:
            given = set(static)  # the call's arguments have dimensions of 1 that the body added
    present = [n for n in conflict.sizes.dynamic if conflict.sizes.values[n] in varying]
    present += [n for n in conflict.sizes.dynamic if n not in present and _divides(conflict.sizes.values[n], varying)]
    yield from (((b, a),) for i, a in enumerate(present) for b in present[i + 1 :])
    yield from _beside_constants(conflict)
    yield from ((size,) for size in _in_place(conflict))
    yield from ((size,) for size in _bounded(conflict))
    yield from ((size,) for size in _strided(conflict))
    yield from _squares(conflict)
    ones = []
    for name in conflict.sizes.dynamic:
        ratios = {_ratio(column, conflict.sizes.values[name]) for column in varying} - {0}
        whole = {int(n / ratio) for ratio in ratios for n in static if n > max(ratio, 1) and n % ratio == 0}
        # The size 1 comes last: broadcasting accepts it nearly everywhere.
        yield from (((name, n),) for n in sorted(whole, reverse=True))
        ones += [name] * any(ratio in given for ratio in ratios)
    yield from ((size,) for size in _shrunk(conflict, static))
    yield from (((name, 1),) for name in ones)


def _shrunk(conflict: ShapeConflictError, numbers: Iterable[int]) -> Iterable[tuple[str, Size]]:
    """Yields sizes of dimensions that convolutions without padding shrink, from the required size after them.

    The required size is one of the node's numbers, or such a number divided by the other dimensions: `[-1, 1060]` with
    10 channels requires a width of 106. The last dimensions come first, because they are usually flattened.
    """
    for tensor in conflict.inputs:
        shapes = tensor.spec.shapes if isinstance(tensor, Tensor) else None
        columns = list(zip(*shapes, strict=True)) if shapes is not None else []
        beside = math.prod(column[0] for column in columns if len(set(column)) == 1) or 1
        shared = {n // beside for n in numbers if n % beside == 0 and n > beside}
        wanted = [*sorted(shared, reverse=True), *sorted(set(numbers) - shared, reverse=True)]
        for column, name in itertools.product(reversed(columns), conflict.sizes.dynamic):
            sizes = conflict.sizes.values[name]
            if len(set(sizes)) < len(sizes) or len(set(column)) < len(column):
                continue
            slope = Fraction(column[1] - column[0], sizes[1] - sizes[0])
            cut = slope * sizes[0] - column[0]
            if slope > 0 and cut > 0 and all(slope * v - cut == w for v, w in zip(sizes, column, strict=True)):
                yield from ((name, int(size)) for n in wanted if (size := (n + cut) / slope).denominator == 1)


def _beside_constants(conflict: ShapeConflictError) -> Iterable[tuple[tuple[str, Size], ...]]:
    """Yields several dimensions at once, with the sizes of a constant in the same positions, for broadcasting."""
    if conflict.node.op_type not in load_rows().operators("broadcasting"):
        return
    tensors = [v.spec.shapes for v in conflict.inputs if isinstance(v, Tensor) and v.spec.shapes is not None]
    names = {conflict.sizes.values[name]: name for name in conflict.sizes.dynamic}
    for shapes, constant in itertools.product(tensors, (v for v in conflict.inputs if isinstance(v, Constant))):
        pairs = zip(reversed(list(zip(*shapes, strict=True))), reversed(constant.shape), strict=False)
        sizes = tuple((names[column], size) for column, size in pairs if column in names and size > 1)
        if len(dict(sizes)) == len(sizes) > 1:
            yield sizes


def _in_place(conflict: ShapeConflictError) -> Iterable[tuple[str, Size]]:
    """Yields sizes that an exporter baked into the target of a Reshape, for dimensions that keep their position."""
    if conflict.node.op_type != "Reshape" or len(conflict.inputs) < 2 or not isinstance(conflict.inputs[0], Tensor):
        return
    target, shapes = conflict.inputs[1], conflict.inputs[0].spec.shapes
    if not isinstance(target, Constant) or shapes is None:
        return
    for column, wanted in zip(zip(*shapes, strict=True), target.numpy().tolist(), strict=False):
        for name in conflict.sizes.dynamic:
            ratio = _ratio(column, conflict.sizes.values[name])
            if ratio >= 1 and wanted > ratio and wanted % ratio == 0:
                yield name, int(wanted / ratio)


def _bounded(conflict: ShapeConflictError) -> Iterable[tuple[str, Size]]:
    """Yields bounds of a dimension that the network must reduce to a certain size.

    Text recognisers are declared for every height, and require one that their pooling reduces to a single row. No
    constant of the file holds it; the rows that remain at other heights lead to it.
    """
    found = []
    for error in (conflict, *conflict.others):
        for name in error.sizes.dynamic:
            sizes = error.sizes.values[name]
            for column, wanted in set(_conflicting(error)):
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
        yield (
            name,
            (least, least + step // 2 - 1, least + step),
        )  # samples with the same remainder would hide a division
        yield name, (least,) * 3


def _strided(conflict: ShapeConflictError) -> Iterable[tuple[str, Size]]:
    """Yields sizes at which strided windows have the number of positions that an untaken branch requires."""
    for error in (conflict, *conflict.others):
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


def _squares(conflict: ShapeConflictError) -> Iterable[tuple[tuple[str, Size], ...]]:
    """Yields the size of a square image with as many patches as the network has position embeddings.

    Exporters declare the images of transformers for every height and width, even if the position embeddings are
    constants. Bounds from a whole number of patches on are tried first.
    """
    found = []
    for error in (conflict, *conflict.others):
        for height, width in itertools.combinations_with_replacement(error.sizes.dynamic, 2):
            areas = [h * w for h, w in zip(error.sizes.values[height], error.sizes.values[width], strict=True)]
            for column, wanted in set(_conflicting(error)):
                edges = [math.sqrt(area / rest) for area, rest in zip(areas, column, strict=True)]
                edge = round(statistics.median(edges))
                if edge > 1 and max(edges) / min(edges) < 1.05 and wanted > 1:
                    found.append((max(edges) / min(edges), height, width, edge, int(edge * math.sqrt(wanted))))
    for _, height, width, edge, size in sorted(found):
        least = size // edge * edge
        same = [] if width == height else [(width, height)]
        yield (height, (least, least + edge // 2, least + edge - 1)), *same
        yield (height, least), *same


def fitting(conflict: ShapeConflictError) -> int:
    """Returns the number of leading sample points that the node accepts."""
    counts = [conflict.point]
    for error in (conflict, *conflict.others):
        for column, wanted in _conflicting(error):
            counts.append(next((i for i, rest in enumerate(column) if rest != wanted), len(column)))
    return max(counts)


def _conflicting(conflict: ShapeConflictError) -> Iterable[tuple[tuple[float, ...], int]]:
    """Yields quantities (one number for each sample point) with the constant that they would have to equal."""
    tensors = [v.spec.shapes for v in conflict.inputs if isinstance(v, Tensor) and v.spec.shapes is not None]
    columns = [list(zip(*shapes, strict=True)) for shapes in tensors]
    yield from _passed_by(conflict)
    varying = [column for column in (columns or [[]])[0] if len(set(column)) > 1 and min(column) > 0]
    if conflict.node.op_type == "Squeeze":
        yield from ((column, 1) for column in varying)
    elif conflict.node.op_type == "Reshape" and tensors:
        counts = _counts(conflict.inputs[1], tensors[0]) if len(conflict.inputs) > 1 else []
        left = tuple(math.prod(a) / b for a, b in zip(tensors[0], counts, strict=True)) if counts else ()
        yield from [(left, 1)] if left and min(left) > 0 else []
    else:
        points = len(tensors[0]) if tensors else 0
        columns += [[(size,) * points for size in v.shape] for v in conflict.inputs if isinstance(v, Constant)]
        for one, other in itertools.permutations(columns, 2):
            for mine, yours in zip(one, other, strict=False) if len(one) == len(other) else ():
                if len(set(mine)) > 1 and len(set(yours)) == 1 and min(mine) > 0 and yours[0] > 0:
                    yield mine, yours[0]


def _passed_by(conflict: ShapeConflictError) -> Iterable[tuple[tuple[float, ...], int]]:
    """Yields sizes (one for each sample point) with the number that an If compares them with, if they differ.

    The branch for equal sizes may not contain the failing node.
    """
    for (compare, size, wanted), truth in conflict.assumed:
        if compare in (operator.eq, operator.ne) and (compare is operator.eq) != truth and isinstance(wanted, int):
            yield from [(size.values, wanted)] if wanted > 0 and min(size.values) > 0 else []


def _counts(target: Any, shapes: Sequence[Sequence[int]]) -> list[int]:
    """Returns the number of elements in a Reshape's target at each sample point, nothing where -1 leaves it open."""
    array = (
        target.array if isinstance(target, ShapeValues) else target.numpy() if isinstance(target, Constant) else None
    )
    if array is None or array.ndim != 1 or any(not isinstance(n, Dim) and n < 0 for n in array.tolist()):
        return []
    counts = []
    for point, shape in enumerate(shapes):
        sizes = [n.values[point] if isinstance(n, Dim) else n for n in array.tolist()]
        counts.append(math.prod(n or (shape[axis] if axis < len(shape) else 1) for axis, n in enumerate(sizes)))
    return counts if all(counts) else []


def _divides(sizes: Sequence[int], columns: Iterable[Sequence[float]]) -> bool:
    """Returns whether a column is a multiple of a dimension, such as batch times heads."""
    return any(ratio >= 1 and ratio % 1 == 0 for ratio in (_ratio(column, sizes) for column in columns))


def _ratio(column: Sequence[float], sizes: Sequence[int]) -> float:
    """Returns the ratio of `column` to `sizes`, a factor or one over a whole divisor; 0 where there is none."""
    ratios = {w / v for w, v in zip(column, sizes, strict=True)}
    if len(ratios) == 1:
        return ratios.pop()
    divisors = {v // w for w, v in zip(column, sizes, strict=True) if w > 0}
    divisor = divisors.pop() if len(divisors) == 1 else 0
    same = divisor > 1 and all(w == v // divisor for w, v in zip(column, sizes, strict=True))
    return 1 / divisor if same else 0
