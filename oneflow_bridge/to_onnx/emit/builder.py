"""Builds ONNX nodes at a chosen opset: emit functions are written in the newest operators, old forms are made here."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx_ir as ir

from oneflow_bridge.to_onnx.job import DIMENSIONS, Dimensions, attribute, sizes_of
from onnx2nn.errors import OperatorError

INT64_MAX = 2**63 - 1


class NeedsOpsetError(OperatorError):
    """The op can be written, but only from a later opset on."""

    def __init__(self, operator: str, opset: int):
        super().__init__(f"needs ONNX {operator}, which exists from opset {opset} on.")
        self.opset = opset


@functools.cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        versions = [s.since_version for s in _all_schemas(op_type)]
        if not versions:
            raise OperatorError(f"needs ONNX {op_type}, which the installed onnx does not have.") from None
        raise NeedsOpsetError(op_type, min(versions)) from None


@functools.cache
def _all_schemas(op_type: str) -> tuple[onnx.defs.OpSchema, ...]:
    return tuple(s for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and s.domain == "")


@functools.cache
def _allowed_types(op_type: str, opset: int) -> dict[str, frozenset[str]]:
    return {c.type_param_str: frozenset(c.allowed_type_strs) for c in _schema(op_type, opset).type_constraints}


@functools.cache
def _formals(op_type: str, opset: int) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """Type strings of the inputs, whether the last repeats, type strings of the outputs."""
    schema = _schema(op_type, opset)
    variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return tuple(i.type_str for i in schema.inputs), variadic, tuple(o.type_str for o in schema.outputs)


_TYPE_STRINGS = {
    ir.DataType.FLOAT: "tensor(float)",
    ir.DataType.DOUBLE: "tensor(double)",
    ir.DataType.FLOAT16: "tensor(float16)",
    ir.DataType.BFLOAT16: "tensor(bfloat16)",
    ir.DataType.INT8: "tensor(int8)",
    ir.DataType.INT16: "tensor(int16)",
    ir.DataType.INT32: "tensor(int32)",
    ir.DataType.INT64: "tensor(int64)",
    ir.DataType.UINT8: "tensor(uint8)",
    ir.DataType.UINT16: "tensor(uint16)",
    ir.DataType.UINT32: "tensor(uint32)",
    ir.DataType.UINT64: "tensor(uint64)",
    ir.DataType.BOOL: "tensor(bool)",
    ir.DataType.COMPLEX64: "tensor(complex64)",
    ir.DataType.COMPLEX128: "tensor(complex128)",
}
_DATA_TYPES = {text: dtype for dtype, text in _TYPE_STRINGS.items()}

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_WIDER = {
    ir.DataType.BOOL: (ir.DataType.INT32, ir.DataType.FLOAT),
    ir.DataType.INT8: (ir.DataType.INT32, ir.DataType.FLOAT),
    ir.DataType.UINT8: (ir.DataType.INT32, ir.DataType.FLOAT),
    ir.DataType.INT32: (ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.FLOAT),
    ir.DataType.INT64: (ir.DataType.DOUBLE, ir.DataType.FLOAT),
    ir.DataType.FLOAT16: (ir.DataType.FLOAT,),
    ir.DataType.BFLOAT16: (ir.DataType.FLOAT,),
}
"""Types to compute in where an operator's revision does not take a type, the nearest first.

The result is cast back, so wrap-around of the small integers is kept.
"""


class Builder:
    """Appends ONNX nodes to a graph while the ops of a job are walked.

    Any attribute that is not defined below is an ONNX operator: `g.Mul(x, g.Sigmoid(x))`. Numbers and numpy arrays
    among its inputs become constants, numbers in the type of the operator's first tensor.

    Attributes:
        opset: the opset that is written.
        nodes: the nodes so far.
        constants: the constants so far, as initialized values.
        graph_inputs: the inputs of the graph that is written, whose shapes give dynamic sizes.
    """

    def __init__(self, model: ir.Model, opset: int):
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.constants: dict[Any, ir.Value] = {}
        self.node: ir.Node | None = None
        self._dimensions: Dimensions = model.meta.get(DIMENSIONS) or Dimensions()
        self.graph_inputs: list[ir.Value] = []
        self._taken = {value.name for value in (*model.graph.inputs, *model.graph.initializers.values())}
        self._written: dict[str, int] = {}

    def __getattr__(self, op_type: str) -> Any:
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return functools.partial(self.append, op_type)

    # ---- the op being written

    def start(self, node: ir.Node, results: dict[str, ir.Value]) -> None:
        """Names the job op whose nodes follow."""
        self.node = node
        self._results = results
        self._count = 0

    def result(self, name: str = "") -> ir.Value:
        """The job's own value for an output of the op being written: its shape and dtype."""
        return self._results[name] if name else next(iter(self._results.values()))

    def job_outputs(self) -> list[ir.Value]:
        """The job's own values for all outputs of the op being written, in order."""
        return list(self.node.outputs) if self.node is not None else []

    def used(self, name: str) -> bool:
        """Whether an output of the op being written has a reader."""
        value = self._results.get(name)
        return value is not None and (bool(value.uses()) or value.is_graph_output())

    def refuse(self, reason: str) -> NoReturn:
        """Ends the op being written: it means something ONNX cannot express."""
        raise OperatorError(reason)

    def needs(self, operator: str, opset: int) -> None:
        """Ends the op being written unless the opset is at least `opset`."""
        if self.opset < opset:
            raise NeedsOpsetError(operator, opset)

    # ---- constants and sizes

    def const(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant; equal ones are made once. `dtype` defaults to the array's own."""
        array = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy())
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            name = self._unique("constant")
            tensor = ir.Tensor(array, name=name)
            self.constants[key] = ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
        return self.constants[key]

    def ints(self, values: Sequence[int]) -> ir.Value:
        """A 1-D int64 constant."""
        return self.const(np.asarray(values, dtype=np.int64))

    def full(self, number: float, like: ir.Value) -> ir.Value:
        """A 0-D constant of the type of `like`."""
        self.fixed(number)
        return self.const(number, like.dtype)

    def sizes(self, value: ir.Value) -> list[int | str]:
        """The shape of a value: sizes, and names where they are dynamic."""
        return sizes_of(value)

    def rank(self, value: ir.Value) -> int:
        """The number of axes of a value."""
        return len(sizes_of(value))

    def static(self, size: int | str, what: str) -> int:
        """The size itself; a dynamic one is refused."""
        if isinstance(size, int):
            return size
        self.refuse(f"{what} depends on the dynamic dimension {size!r}; export with that dimension fixed.")

    def fixed(self, number: Any) -> None:
        """Refuses a number that differs between traces."""
        if isinstance(number, (tuple, str)):
            self.refuse(f"uses a number that depends on a dynamic dimension ({number}); export with it fixed.")

    def shape(self, sizes: Sequence[int | str], *sources: ir.Value) -> ir.Value:
        """A 1-D int64 tensor of sizes; dynamic ones are computed from the shape of a source or of a graph input."""
        if all(isinstance(size, int) for size in sizes):
            return self.ints([int(size) for size in sizes])
        for source in sources:
            if self.sizes_or_none(source) == list(sizes):
                return self.append("Shape", source)
        parts = [self.ints([s]) if isinstance(s, int) else self.size(s, *sources) for s in sizes]
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def size(self, name: str, *sources: ir.Value) -> ir.Value:
        """A dynamic dimension as a 1-D int64 tensor of one element."""
        wanted = self._dimensions.sizes[name]
        for source in (*sources, *self.graph_inputs):
            for axes, factor in self._factors(source, wanted):
                return self._product(source, axes, factor)
        self.refuse(f"the size {name} (sizes {wanted} in the traces) cannot be computed from the inputs of the op.")

    def _factors(self, source: ir.Value, wanted: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        """Dynamic axes of a value, and the constant with which their product is `wanted`; few axes first."""
        sizes = {axis: size for axis, size in enumerate(self.sizes(source)) if isinstance(size, str)}
        for count in range(1, len(sizes) + 1):
            for axes in itertools.combinations(sizes, count):
                columns = zip(*(self._dimensions.sizes[sizes[axis]] for axis in axes), strict=True)
                ratios = {Fraction(w, math.prod(column)) for w, column in zip(wanted, columns, strict=True)}
                if len(ratios) == 1:
                    yield axes, ratios.pop()

    def _product(self, source: ir.Value, axes: tuple[int, ...], factor: Fraction) -> ir.Value:
        total = self._axis_size(source, axes[0])
        for axis in axes[1:]:
            total = self.Mul(total, self._axis_size(source, axis))
        total = total if factor.numerator == 1 else self.Mul(total, self.ints([factor.numerator]))
        return total if factor.denominator == 1 else self.Div(total, self.ints([factor.denominator]))

    def _axis_size(self, source: ir.Value, axis: int) -> ir.Value:
        return self.Slice(self.Shape(source), [axis], [axis + 1], [0])

    # ---- nodes

    def append(self, op_type: str, *inputs: Any, n_outputs: int = 1, **attributes: Any) -> Any:
        """Appends a node.

        Args:
            op_type: ONNX operator.
            inputs: values, numbers, arrays, or None for an optional input left out.
            n_outputs: number of outputs.
            attributes: attributes; None leaves one out.

        Returns:
            The output, or a tuple of them.

        Raises:
            OperatorError: the operator does not exist at this opset or does not take these types.
        """
        formals, variadic, results = _formals(op_type, self.opset)
        kinds = [formals[i] if i < len(formals) else formals[-1] for i in range(len(inputs))]
        if len(inputs) > len(formals) and not variadic:
            raise OperatorError(f"ONNX {op_type} takes {len(formals)} inputs at opset {self.opset}, not {len(inputs)}.")
        values = self._operands(inputs, kinds)
        bound = {k: v.dtype for k, v in zip(kinds, values, strict=True) if v is not None and v.dtype is not None}
        wide = self._widened(op_type, bound)
        if wide:
            return self._append_wide(op_type, values, kinds, bound, wide, n_outputs, attributes)
        outputs = [self._fresh(self._output_type(op_type, results, i, bound, attributes)) for i in range(n_outputs)]
        plain = [attribute(k, _plain(v)) for k, v in attributes.items() if v is not None]
        while values and values[-1] is None:
            values.pop()
        self.nodes.append(ir.Node("", op_type, values, plain, outputs=outputs, name=self._node_name(op_type)))
        return outputs[0] if n_outputs == 1 else tuple(outputs)

    def _operands(self, inputs: Sequence[Any], kinds: Sequence[str]) -> list[ir.Value | None]:
        types: dict[str, ir.DataType] = {}
        for kind, value in zip(kinds, inputs, strict=True):
            if isinstance(value, ir.Value) and value.dtype is not None:
                types.setdefault(kind, value.dtype)
        values: list[ir.Value | None] = []
        for kind, value in zip(kinds, inputs, strict=True):
            if value is None or isinstance(value, ir.Value):
                values.append(value)
            elif isinstance(value, np.ndarray):
                values.append(self.const(value))
            else:
                self.fixed(value)
                values.append(self.const(value, types.get(kind) or _DATA_TYPES.get(kind)))
        return values

    def _widened(self, op_type: str, bound: dict[str, ir.DataType]) -> dict[str, ir.DataType]:
        """Type variables whose type this revision does not take → the type to compute in."""
        wide = {}
        allowed = _allowed_types(op_type, self.opset)
        for kind, dtype in bound.items():
            if kind not in allowed or _TYPE_STRINGS[dtype] in allowed[kind]:
                continue
            wider = next((w for w in _WIDER.get(dtype, ()) if _TYPE_STRINGS[w] in allowed[kind]), None)
            if wider is None or op_type in _NEVER_WIDENED or (dtype, wider) in _LOSSY:
                raise OperatorError(f"ONNX {op_type} does not take {dtype.name} at opset {self.opset}.")
            wide[kind] = wider
        return wide

    def _append_wide(self, op_type, values, kinds, bound, wide, n_outputs, attributes):  # type: ignore[no-untyped-def]
        cast = [
            self.Cast(v, to=wide[k]) if v is not None and k in wide else v for k, v in zip(kinds, values, strict=True)
        ]
        outputs = self.append(op_type, *cast, n_outputs=n_outputs, **attributes)
        outputs = (outputs,) if n_outputs == 1 else outputs
        results = _formals(op_type, self.opset)[2]
        back = [
            self.Cast(v, to=bound[results[min(i, len(results) - 1)]])
            if results[min(i, len(results) - 1)] in wide
            else v
            for i, v in enumerate(outputs)
        ]
        return back[0] if n_outputs == 1 else tuple(back)

    def _output_type(
        self,
        op_type: str,
        results: Sequence[str],
        index: int,
        bound: dict[str, ir.DataType],
        attributes: dict[str, Any],
    ) -> ir.DataType | None:
        kind = results[min(index, len(results) - 1)]
        if kind in bound:
            return bound[kind]
        if kind in _DATA_TYPES:
            return _DATA_TYPES[kind]
        chosen = attributes.get("to", attributes.get("dtype", attributes.get("value")))
        if isinstance(chosen, ir.DataType):
            return chosen
        if isinstance(chosen, ir.TensorProtocol):
            return chosen.dtype
        allowed = _allowed_types(op_type, self.opset).get(kind, frozenset())
        return _DATA_TYPES[next(iter(allowed))] if len(allowed) == 1 else None

    def _fresh(self, dtype: ir.DataType | None) -> ir.Value:
        return ir.Value(type=None if dtype is None else ir.TensorType(dtype))

    def _node_name(self, op_type: str) -> str:
        assert self.node is not None
        self._count += 1
        return self._unique(str(self.node.name) if self._count == 1 else f"{self.node.name}/{op_type}")

    def _unique(self, name: str) -> str:
        number = self._written.get(name, 0)
        self._written[name] = number + 1
        unique = f"{name}_{number}" if number else name
        if unique in self._taken:
            return self._unique(name)
        self._taken.add(unique)
        return unique

    # ---- operators whose form changed between opsets, in their newest form

    def Cast(self, x: ir.Value, to: ir.DataType | None) -> ir.Value:
        """x in another type; x itself where it has it."""
        if to is None:
            self.refuse("asks for a type that is not known.")
        return x if x.dtype == to else self.append("Cast", x, to=to)

    def Identity(self, x: ir.Value) -> ir.Value:
        """x itself."""
        return x

    def Reshape(self, x: ir.Value, sizes: Sequence[int | str]) -> ir.Value:
        """x in another shape. A dynamic size is written as 0 where x has it in the same place, one more as -1."""
        old = self.sizes_or_none(x) or []
        places = [
            0 if isinstance(size, str) and axis < len(old) and old[axis] == size else size
            for axis, size in enumerate(sizes)
        ]
        if sum(isinstance(size, str) for size in places) > 1:
            return self.append("Reshape", x, self.shape(sizes, x))
        return self.append("Reshape", x, self.ints([-1 if isinstance(size, str) else size for size in places]))

    def Transpose(self, x: ir.Value, perm: Sequence[int]) -> ir.Value:
        """x with its axes permuted; x itself where the permutation changes nothing."""
        return x if list(perm) == list(range(len(perm))) else self.append("Transpose", x, perm=list(perm))

    def Squeeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """x without axes of size 1."""
        if self.opset >= 13:
            return self.append("Squeeze", x, self.ints(axes))
        return self.append("Squeeze", x, axes=list(axes))

    def Unsqueeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """x with axes of size 1 put in."""
        if self.opset >= 13:
            return self.append("Unsqueeze", x, self.ints(axes))
        return self.append("Unsqueeze", x, axes=list(axes))

    def reduce(self, op_type: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
        """A Reduce operator; its axes became an input at opset 13 (ReduceSum) and 18 (the others)."""
        keep = int(bool(keepdims))
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.append(op_type, x, self.ints(axes), keepdims=keep)
        return self.append(op_type, x, axes=list(axes), keepdims=keep)

    def Softmax(self, x: ir.Value, axis: int, op_type: str = "Softmax") -> ir.Value:
        """Softmax over one axis; before opset 13 the operator took all axes from `axis` on together."""
        rank = len(x.shape) if x.shape is not None else None
        if self.opset >= 13 or (rank is not None and axis == rank - 1):
            return self.append(op_type, x, axis=axis)
        if rank is None:
            raise NeedsOpsetError(op_type, 13)
        perm = list(range(rank))
        perm[axis], perm[-1] = perm[-1], perm[axis]
        return self.Transpose(self.append(op_type, self.Transpose(x, perm), axis=rank - 1), perm)

    def LogSoftmax(self, x: ir.Value, axis: int) -> ir.Value:
        """Logarithm of Softmax."""
        return self.Softmax(x, axis, "LogSoftmax")

    def Slice(
        self,
        x: ir.Value,
        starts: Sequence[int] | ir.Value,
        ends: Sequence[int] | ir.Value,
        axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> ir.Value:
        """A part of x; its bounds became inputs at opset 10."""
        steps = None if steps is None or all(s == 1 for s in steps) else steps
        if self.opset >= 10:
            bounds = [b if isinstance(b, ir.Value) else self.ints(b) for b in (starts, ends)]
            return self.append("Slice", x, *bounds, self.ints(axes), None if steps is None else self.ints(steps))
        if steps is not None or isinstance(starts, ir.Value) or isinstance(ends, ir.Value):
            raise NeedsOpsetError("Slice with steps or computed bounds", 10)
        return self.append("Slice", x, starts=list(starts), ends=list(ends), axes=list(axes))

    def Split(self, x: ir.Value, sizes: Sequence[int], axis: int) -> tuple[ir.Value, ...]:
        """x cut into parts of the given sizes."""
        if len(sizes) == 1:
            return (x,)
        if self.opset >= 13:
            return self.append("Split", x, self.ints(sizes), axis=axis, n_outputs=len(sizes))
        return self.append("Split", x, split=list(sizes), axis=axis, n_outputs=len(sizes))

    def Clip(self, x: ir.Value, low: float | None, high: float | None) -> ir.Value:
        """x within bounds; they became inputs at opset 11, integers came at 12."""
        if self.opset >= 12 or (self.opset == 11 and x.dtype in FLOATS):
            return self.append("Clip", x, *(None if b is None else self.full(b, x) for b in (low, high)))
        if x.dtype in FLOATS:
            bounds = (None if b is None else float(b) for b in (low, high))
            return self.append("Clip", x, min=next(bounds), max=next(bounds))
        x = x if low is None else self.Max(x, self.full(low, x))
        return x if high is None else self.Min(x, self.full(high, x))

    def Max(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of two, elementwise; integers came at opset 12."""
        if self.opset >= 12 or a.dtype in FLOATS:
            return self.append("Max", a, b)
        return self.Where(self.Greater(a, b), a, b)

    def Min(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The smaller of two, elementwise; integers came at opset 12."""
        if self.opset >= 12 or a.dtype in FLOATS:
            return self.append("Min", a, b)
        return self.Where(self.Less(a, b), a, b)

    def Equal(self, a: ir.Value, b: Any) -> ir.Value:
        """a == b; floats came at opset 11."""
        b = b if isinstance(b, ir.Value) else self.full(b, a)
        if self.opset >= 11 or a.dtype not in FLOATS:
            return self.append("Equal", a, b)
        unordered = self.Or(self.IsNaN(a), self.IsNaN(b))
        return self.Not(self.Or(self.Or(self.Less(a, b), self.Greater(a, b)), unordered))

    def GreaterOrEqual(self, a: ir.Value, b: Any) -> ir.Value:
        """a >= b; an operator since opset 12."""
        b = b if isinstance(b, ir.Value) else self.full(b, a)
        return (
            self.append("GreaterOrEqual", a, b) if self.opset >= 12 else self.Or(self.Greater(a, b), self.Equal(a, b))
        )

    def LessOrEqual(self, a: ir.Value, b: Any) -> ir.Value:
        """a <= b; an operator since opset 12."""
        b = b if isinstance(b, ir.Value) else self.full(b, a)
        return self.append("LessOrEqual", a, b) if self.opset >= 12 else self.Or(self.Less(a, b), self.Equal(a, b))

    def Round(self, x: ir.Value) -> ir.Value:
        """x rounded half to even; an operator since opset 11."""
        if self.opset >= 11:
            return self.append("Round", x)
        whole = self.Floor(x)
        part = self.Sub(x, whole)
        odd = self.Greater(self.Sub(whole, self.Mul(self.Floor(self.Mul(whole, 0.5)), 2)), 0.5)
        up = self.Or(self.Greater(part, 0.5), self.And(self.Equal(part, 0.5), odd))
        return self.Add(whole, self.Cast(up, to=x.dtype))

    def Pad(self, x: ir.Value, pads: Sequence[int], mode: str = "constant", value: float = 0) -> ir.Value:
        """x with a border; the widths became an input at opset 11. Negative widths cut."""
        if not any(pads):
            return x
        if self.opset < 11 and x.dtype not in FLOATS:
            raise NeedsOpsetError(f"Pad of {x.dtype}", 11)
        if self.opset >= 11:
            fill = self.full(value, x) if mode == "constant" and value else None
            return self.append("Pad", x, self.ints(pads), fill, mode=mode)
        return self.append("Pad", x, pads=list(pads), mode=mode, value=float(value))

    def TopK(self, x: ir.Value, k: int, axis: int, largest: bool = True) -> tuple[ir.Value, ir.Value]:
        """The k largest or smallest along an axis and their int64 indices, sorted."""
        if self.opset >= 11:
            return self.append("TopK", x, self.ints([k]), axis=axis, largest=int(largest), n_outputs=2)
        if x.dtype not in FLOATS:
            raise NeedsOpsetError(f"TopK of {x.dtype}", 11)
        operands = (x if largest else self.Neg(x),)
        if self.opset >= 10:
            values, indices = self.append("TopK", *operands, self.ints([k]), axis=axis, n_outputs=2)
        else:
            values, indices = self.append("TopK", *operands, k=k, axis=axis, n_outputs=2)
        return (values if largest else self.Neg(values)), indices

    def ArgMax(self, x: ir.Value, axis: int, keepdims: bool) -> ir.Value:
        """The index of the largest along an axis, the first of equals."""
        return self.append("ArgMax", x, axis=axis, keepdims=int(keepdims))

    def Expand(self, x: ir.Value, sizes: Sequence[int | str], *sources: ir.Value) -> ir.Value:
        """x broadcast to a shape."""
        return x if self.sizes_or_none(x) == list(sizes) else self.append("Expand", x, self.shape(sizes, x, *sources))

    def sizes_or_none(self, value: ir.Value) -> list[int | str] | None:
        """`sizes`, or None for a value that is no job value and has no shape."""
        return None if value.shape is None else self.sizes(value)


_LOSSY = frozenset(
    {
        (ir.DataType.INT64, ir.DataType.DOUBLE),
        (ir.DataType.INT64, ir.DataType.FLOAT),
        (ir.DataType.INT32, ir.DataType.FLOAT),
    }
)
_NEVER_WIDENED = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, ir.DataType)):
        return int(value)
    return value
