"""What calls of operators are drawn with, and the model of a call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

F16, F32, F64 = np.float16, np.float32, np.float64
INTS = (np.int32, np.int64, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64)
CONTRIB = "com.microsoft"

_FLOATS = (F32, F32, F32, F64, F16)
_NUMBERS = (F32, F32, F64, F16, *INTS)
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7)

T = TypeVar("T")


@dataclass
class Call:
    """A call of one operator.

    Attributes:
        op: the operator.
        opset: the version of its domain.
        inputs: values of its inputs, None for one that is left out.
        attributes: its attributes.
        outputs: how many outputs it has.
        static: the inputs that are constants in most files.
        constant: the inputs that are constants always.
        rtol: the difference that is rounding, of the largest element.
        domain: the operator's.
        open_: the inputs whose dimensions may be open; None for all.
        skipped: outputs that are left out.
    """

    op: str
    opset: int
    inputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    static: frozenset[int] = frozenset()
    constant: frozenset[int] = frozenset()
    rtol: float = 1e-4
    domain: str = ""
    open_: frozenset[int] | None = None
    skipped: frozenset[int] = frozenset()


Drawn = Callable[["Draw"], Call]
CALLS: dict[tuple[str, str], Drawn] = {}
"""What draws the calls of an operator, by domain and name."""


def call(*names: str, domain: str = "") -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Registers a function that draws calls of operators; it also takes the name, where these are several."""

    def register(function: Callable[..., Call]) -> Callable[..., Call]:
        for name in names:
            CALLS[domain, name] = function if len(names) == 1 else lambda d, name=name: function(d, name)
        return function

    return register


class Draw:
    """Draws parts of calls.

    Args:
        rng: makes all choices.
    """

    def __init__(self, rng: random.Random):
        self.r = rng
        self.np = np.random.default_rng(rng.randrange(1 << 30))

    def one(self, items: Sequence[T]) -> T:
        """Returns one of the items."""
        return items[self.r.randrange(len(items))]

    def flag(self, of: int = 2) -> bool:
        """Returns True once in `of` times."""
        return self.r.randrange(of) == of - 1

    def mostly(self, of: int = 4) -> bool:
        """Returns False once in `of` times."""
        return not self.flag(of)

    def int(self, least: int, most: int) -> int:
        """Returns a number from `least` to `most`."""
        return self.r.randrange(least, most + 1)

    def shape(self, least: int = 0, most: int = 4, sizes: Sequence[int] = (1, 2, 3, 4, 5)) -> list[int]:
        """Returns a shape of a rank from `least` to `most`; one in twelve is empty."""
        shape = [self.one(sizes) for _ in range(self.int(least, most))]
        if shape and self.flag(12):
            shape[self.r.randrange(len(shape))] = 0
        return shape

    def filled(self, least: int = 0, most: int = 4, sizes: Sequence[int] = (1, 2, 3, 4, 5)) -> list[int]:
        """Returns a shape that is not empty."""
        return [max(size, 1) for size in self.shape(least, most, sizes)]

    def array(
        self, shape: Sequence[int], dtype: Any = F32, low: Any = None, high: Any = None, special: bool = False
    ) -> np.ndarray:
        """Returns an array, by default of small numbers; `special` puts infinities, NaN and -0 into some."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return self.np.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            if low is None and self.flag(8):
                return self.full(shape, dtype)
            low, high = (max(np.iinfo(dtype).min, -9), 9) if low is None else (low, high)
            return self.np.integers(low, high, shape, endpoint=True).astype(dtype)
        drawn = (
            self.np.uniform(low, high, shape) if low is not None else self.np.normal(size=shape) * self.one((1, 1, 3))
        )
        result = np.asarray(drawn).astype(dtype)
        if special and result.size and self.flag(4):
            for _ in range(self.int(1, 3)):
                result.reshape(-1)[self.r.randrange(result.size)] = self.one(_SPECIAL)
        return result

    def full(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Returns integers of the whole range of a type."""
        info = np.iinfo(dtype)
        return self.np.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)

    def weights(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Returns integers of the right operand of a product, of int8 those of seven bits.

        Without VNNI instructions ONNX Runtime saturates sums of two products of uint8 and int8 at 16 bits.
        """
        return self.full(shape, dtype) // 2 if dtype == np.int8 else self.full(shape, dtype)

    def float(self) -> Any:
        """Returns a type of floats."""
        return self.one(_FLOATS)

    def number(self) -> Any:
        """Returns a type of numbers."""
        return self.one(_NUMBERS)

    def broadcastable(self, shape: Sequence[int]) -> list[int]:
        """Returns a shape that broadcasts to `shape`."""
        tail = list(shape)[self.int(0, len(shape)) :] if self.flag(3) else list(shape)
        return [1 if self.flag(3) else size for size in tail]

    def axis(self, rank: int) -> int:
        """Returns an axis, counted from either end."""
        return self.int(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Returns at least `least` different axes in any order, each counted from either end."""
        chosen = self.r.sample(range(rank), self.int(min(least, rank), rank))
        return [axis - rank if self.flag() else axis for axis in chosen]

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """Returns the items in any order."""
        result = list(items)
        self.r.shuffle(result)
        return result

    def some(self, **options: Any) -> dict[str, Any]:
        """Returns each option once in two times."""
        return {name: value for name, value in options.items() if self.flag()}


def i64(*values: int) -> np.ndarray:
    """Returns a vector of int64."""
    return np.array(values, np.int64)


def window(d: Draw, rank: int, dilations: bool = True, most: Sequence[int] | None = None) -> dict[str, Any]:
    """Returns strides, dilations and pads of a convolution or pool; `most` bounds the pads of each dimension."""
    found: dict[str, Any] = {}
    if d.flag():
        found["strides"] = [d.int(1, 3) for _ in range(rank)]
    if dilations and d.flag(3):
        found["dilations"] = [d.int(1, 2) for _ in range(rank)]
    kind = d.r.randrange(5)
    if kind == 1:
        found["auto_pad"] = d.one(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    elif kind >= 3:
        found["pads"] = [d.int(0, 2 if most is None else most[i % rank]) for i in range(2 * rank)]
    return found


def spatial(d: Draw, rank: int, sizes: Sequence[int] = (3, 4, 5, 6, 7)) -> list[int]:
    """Returns the sizes of an image."""
    return [d.one(sizes) for _ in range(rank)]


def model_of(drawn: Call, d: Draw) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns the model of a call, and the values of its inputs by name.

    Inputs are constants or not, and their dimensions are numbers or open, by chance.
    """
    inputs, constants, names, feeds = [], [], [], dict[str, np.ndarray]()
    for i, value in enumerate(drawn.inputs):
        names.append("" if value is None else f"i{i}")
        if value is None:
            continue
        array = np.asarray(value)
        if i in drawn.constant or (d.mostly(5) if i in drawn.static else i > 0 and d.flag(5)):
            constants.append(numpy_helper.from_array(array, names[i]))
            continue
        may_open = drawn.open_ is None or i in drawn.open_
        shape = [f"i{i}_{k}" if may_open and d.flag(3) else size for k, size in enumerate(array.shape)]
        inputs.append(helper.make_tensor_value_info(names[i], helper.np_dtype_to_tensor_dtype(array.dtype), shape))
        feeds[names[i]] = array
    while names and not names[-1]:
        names.pop()
    outputs = ["" if i in drawn.skipped else f"o{i}" for i in range(drawn.outputs)]
    node = helper.make_node(drawn.op, names, outputs, domain=drawn.domain, **drawn.attributes)
    infos = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    graph = helper.make_graph([node], "drawn", inputs, infos, constants)
    imports = [helper.make_opsetid(drawn.domain, drawn.opset)]
    if drawn.domain:
        imports.append(helper.make_opsetid("", 17))
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    if drawn.domain == "":
        inferred = shape_inference.infer_shapes(model).graph.output
        if all(info.type.tensor_type.elem_type for info in inferred):  # else ONNX Runtime finds the types
            del model.graph.output[:]
            model.graph.output.extend(inferred)
    return model, feeds


def resized(model: onnx.ModelProto, feeds: dict[str, np.ndarray], rng: random.Random) -> dict[str, np.ndarray]:
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
