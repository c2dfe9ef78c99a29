"""The steps of programs: operators on values of all types, inner graphs, sequences, optionals, and functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.drawn.draw import Draw
from tests.drawn.graphs import NoCallError
from tests.drawn.operators import CALLS
from tests.drawn.programs import (
    DEPTH,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    U8,
    Function,
    Item,
    Program,
    step,
)

_EXACT = ("Neg", "Abs", "Relu", "Sign", "Identity", "Floor", "Ceil", "Round")
_ROUNDED = ("Sigmoid", "Tanh", "Erf", "Softplus", "Sin", "Cos", "Atan", "Softsign", "Exp", "Elu", "LeakyRelu", "Gelu")


@step(3)
def unary(g: Program) -> None:
    op = g.d.one(_EXACT + _ROUNDED)
    needs_exact = op in ("Floor", "Ceil", "Round", "Sign")
    x = g.pick("fffi" if op in ("Neg", "Abs", "Sign", "Identity", "Relu") else "f", exact=needs_exact)
    attributes = {"alpha": g.d.one((0.1, 0.5, 2.0))} if op in ("Elu", "LeakyRelu") and g.d.flag() else {}
    g.emit(op, [x], exact=op in _EXACT, **attributes)


@step(4)
def arithmetic(g: Program) -> None:
    op = g.d.one(("Add", "Sub", "Mul", "Add", "Min", "Max", "Div", "Mod", "Pow", "PRelu", "Sum", "Mean"))
    x = g.pick("fffiu")
    if op in ("Div", "Mod"):
        if op == "Mod" and x.kind == "f":
            raise NoCallError("of exact numbers alone")
        y = g.constant(np.array(g.d.one((2, 3, 4) if x.kind != "i" else (2, 3, -2)), x.dtype))
        g.emit(op, [x, y])
    elif op == "Pow":
        g.emit(op, [x, g.constant(np.array(2, g.d.one((x.dtype, I64, F32))))])
    else:
        pair = [x, g.beside(x)]
        if op in ("Sum", "Mean", "Min", "Max") and g.d.flag(3):
            pair.append(g.beside(x))
        g.emit(op, g.d.shuffled(pair) if op != "PRelu" else pair, exact=op not in ("PRelu", "Mean"))


@step(2)
def whole(g: Program) -> None:
    op = g.d.one(("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Abs", "Sign", "Neg"))
    if op == "BitShift":
        x = g.pick("u")
        by = g.constant(np.array(g.d.int(0, 3), x.dtype))
        g.emit(op, [x, by], direction=g.d.one(("LEFT", "RIGHT")))
    elif op in ("BitwiseNot", "Abs", "Sign", "Neg"):
        g.emit(op, [g.pick("iu")])
    else:
        x = g.pick("iu")
        g.emit(op, [x, g.beside(x)])


@step(2)
def comparison(g: Program) -> None:
    op = g.d.one(("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"))
    x = g.pick("fiu" if op != "Equal" else "fiubO", exact=True)
    y = g.beside(x)
    if not y.exact:
        raise NoCallError("rounding decides")
    g.emit(op, [x, y])


@step(2)
def logic(g: Program) -> None:
    x = g.pick("b")
    if g.d.flag(3):
        g.emit("Not", [x])
    else:
        g.emit(g.d.one(("And", "Or", "Xor")), [x, g.beside(x)])


@step(2)
def where(g: Program) -> None:
    x = g.pick("fiubO")
    y, condition = g.beside(x), g.pick("b")
    g.emit("Where", [condition, *g.d.shuffled([x, y])], exact=True)


@step(3)
def cast(g: Program) -> None:
    x = g.pick("fiub", exact=True)
    to = g.d.one((F32, F32, F64, F16, I64, I32, I8, np.bool_, U8, object))
    if np.dtype(to).kind == "u" and x.kind in "fi":
        x = g.emit("Abs", [x], exact=True)[0]
    if to is object and x.kind not in "iu":
        raise NoCallError("texts of whole numbers alone")
    if g.d.flag(4) and g.opset >= 15:
        g.emit("CastLike", [x, g.pick({"O": "f"}.get(np.dtype(to).kind, np.dtype(to).kind))], exact=True)
    else:
        g.emit("Cast", [x], exact=True, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def _axes(g: Program, op: str, x: Item, axes: list[int], since: int, exact: bool = False, **attributes: Any) -> Item:
    """Emits an operator whose axes became an input."""
    if g.opset >= since:
        return g.emit(op, [x, g.ints(*axes)], exact=exact, **attributes)[0]
    return g.emit(op, [x], exact=exact, axes=[axis % (x.array.ndim + 2) for axis in axes], **attributes)[0]


@step(3)
def reduction(g: Program) -> None:
    d = g.d
    op = d.one(("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "Sum", "Max"))
    x = g.pick("ffi" if op != "LogSumExp" else "f", least=1)
    axes = d.axes(x.array.ndim, 1)
    keep = {"keepdims": d.int(0, 1)} if d.flag() else {}
    if d.flag(5):
        g.emit(f"Reduce{op}", [x], exact=op in ("Max", "Min"), **keep)
    else:
        _axes(
            g,
            f"Reduce{op}",
            x,
            [a % x.array.ndim for a in axes],
            13 if op == "Sum" else 18,
            op in ("Max", "Min"),
            **keep,
        )


@step(2)
def along(g: Program) -> None:
    d = g.d
    op = d.one(("Softmax", "LogSoftmax", "Hardmax", "CumSum", "ArgMax", "ArgMin", "TopK", "Flatten", "LpNormalization"))
    x = g.pick("f" if op != "Flatten" else "fib", least=1, exact=op in ("Hardmax", "ArgMax", "ArgMin", "TopK"))
    axis = d.axis(x.array.ndim)
    if op == "CumSum":
        g.emit(op, [x, g.constant(np.array(axis, d.one((I64, I32))))], **d.some(exclusive=1, reverse=1))
    elif op == "TopK":
        size = x.shape[axis]
        g.emit(op, [x, g.ints(d.int(1, max(1, min(size, 2))))], 2, exact=True, axis=axis, **d.some(largest=0))
    elif op in ("ArgMax", "ArgMin"):
        g.emit(op, [x], axis=axis, **d.some(keepdims=0))
    else:
        g.emit(op, [x], exact=op in ("Hardmax", "Flatten"), **(d.some(axis=axis)))


@step(4)
def moved(g: Program) -> None:
    d = g.d
    op = d.one(("Transpose", "Unsqueeze", "Squeeze", "Reshape", "Tile", "Slice", "Pad", "Identity", "Trilu", "Expand"))
    x = g.pick("ffiubO", least=0 if op in ("Unsqueeze", "Reshape", "Identity", "Expand") else 1)
    rank = x.array.ndim
    if op == "Transpose":
        g.emit(op, [x], exact=True, **d.some(perm=d.shuffled(range(rank))))
    elif op == "Unsqueeze":
        _axes(g, op, x, [d.int(0, rank)], 13, True)
    elif op == "Squeeze":
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
        if not ones:
            raise NoCallError("nothing to squeeze")
        _axes(g, op, x, [d.one(ones)], 13, True)
    elif op == "Reshape":
        _reshape(g, x)
    elif op == "Tile":
        g.emit(op, [x, g.ints(*(d.int(1, 2) for _ in range(rank)))], exact=True)
    elif op == "Slice":
        _slice(g, x)
    elif op == "Pad":
        _pad(g, x)
    elif op == "Expand":
        g.emit(op, [x, g.ints(*([2] if d.flag() else []), *(1 for _ in range(rank)))], exact=True)
    else:
        g.emit(op, [x], exact=True, **(d.some(upper=0) if op == "Trilu" else {}))


def _reshape(g: Program, x: Item) -> None:
    d = g.d
    kind = d.int(0, 3)
    if kind == 0:
        g.emit("Reshape", [x, g.ints(-1)], exact=True)
    elif kind == 1 and x.array.ndim:
        g.emit("Reshape", [x, g.ints(0, -1)], exact=True)
    elif kind == 2:
        shape = g.emit("Shape", [x])[0]
        flat = g.emit("Reshape", [x, g.ints(-1)], exact=True)[0]
        g.emit("Reshape", [g.emit("Identity", [flat], exact=True)[0], shape], exact=True)
    else:
        other = g.pick("fib")
        if other.array.size != x.array.size:
            raise NoCallError("of another size")
        g.emit("Reshape", [x, g.emit("Shape", [other])[0]], exact=True)


def _slice(g: Program, x: Item) -> None:
    d = g.d
    axis, start = d.axis(x.array.ndim), d.int(-2, 2)
    end, step_ = d.one((1, 2, -1, 2**31 - 1, 2**63 - 1)), d.one((1, 1, 2, -1))
    if step_ < 0:
        start, end = -1, d.one((-(2**31), -9))
    if g.opset < 10:
        g.emit("Slice", [x], exact=True, axes=[axis % x.array.ndim], starts=[start], ends=[end])
    else:
        steps = [g.ints(step_)] if step_ != 1 or d.flag() else []
        g.emit("Slice", [x, g.ints(start), g.ints(end), g.ints(axis), *steps], exact=True)


def _pad(g: Program, x: Item) -> None:
    d = g.d
    pads = [d.int(0, 2) for _ in range(2 * x.array.ndim)]
    mode = d.one(("constant", "constant", "edge", "reflect"))
    if mode == "reflect":
        pads = [min(pad, size - 1) for pad, size in zip(pads, 2 * x.shape, strict=True)]
    value = [g.constant(np.array(d.int(0, 2), x.dtype))] if mode == "constant" and x.kind in "fi" and d.flag() else []
    if g.opset < 11:
        g.emit("Pad", [x], exact=True, pads=pads, mode=mode)
    else:
        g.emit("Pad", [x, g.ints(*pads), *value], exact=True, mode=mode)


@step(3)
def gathered(g: Program) -> None:
    d = g.d
    op = d.one(("Gather", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Compress", "OneHot"))
    # of texts ONNX Runtime gathers the first one of each row, and empty ones from the end
    x = g.pick("ffiO" if op not in ("Gather", "ScatterND") else "ffi", least=1)
    axis = d.axis(x.array.ndim)
    if op == "Gather":
        index = g.constant(g.filled(d.shape(0, 2, (1, 2, 3)), d.one((I64, I32)), -1, 0))
        g.emit(op, [x, index], exact=True, axis=axis)
    elif op in ("GatherElements", "ScatterElements"):
        index = g.constant(g.filled([1] * x.array.ndim, I64, -1 if x.kind != "O" else 0, 0))
        if op == "GatherElements":
            g.emit(op, [x, index], exact=True, axis=axis)
        else:
            g.emit(op, [x, index, g.constant(g.filled([1] * x.array.ndim, x.dtype))], exact=True, axis=axis)
    elif op == "GatherND":
        g.emit(op, [x, g.constant(np.array([[0], [-1 if x.kind != "O" else 0]], I64))], exact=True)
    elif op == "ScatterND":
        updates = g.emit("Gather", [x, g.ints(-1)], exact=True)[0]
        g.emit(op, [x, g.constant(np.array([[0]], I64)), updates], exact=True)
    elif op == "Compress":
        flags = g.pick("b", 1, 1)
        g.emit(op, [x, flags], exact=True, **({"axis": axis} if x.shape[axis] >= flags.shape[0] else {}))
    else:
        index = g.pick("i")
        values = g.constant(np.array([0, 1], d.one((F32, I64, np.bool_))))
        g.emit(op, [index, g.constant(np.array(d.int(2, 4), I64)), values], **d.some(axis=d.axis(index.array.ndim + 1)))


@step(2)
def joined(g: Program) -> None:
    d = g.d
    x = g.pick("ffibO", least=1)
    if d.flag(3):
        axis = d.axis(x.array.ndim)
        size = x.shape[axis]
        if size < 2:
            raise NoCallError("nothing to split")
        sizes = [1, size - 1]
        if g.opset >= 13:
            g.emit("Split", [x, g.ints(*sizes)], 2, exact=True, axis=axis)
        else:
            g.emit("Split", [x], 2, exact=True, axis=axis % x.array.ndim, split=sizes)
        return
    parts = [x] + [g.beside(x, broadcasts=False) for _ in range(d.int(1, 2))]
    g.emit("Concat", d.shuffled(parts), exact=True, axis=d.axis(x.array.ndim))


@step(2)
def sizes(g: Program) -> None:
    d = g.d
    kind = d.int(0, 5)
    x = g.pick("fib", least=1)
    if kind == 0:
        g.emit("Size", [x])
    elif kind == 1:
        g.emit("NonZero", [g.pick("ib", least=1)])
    elif kind == 2:
        g.emit("Range", [g.constant(np.array(0, I64)), g.emit("Size", [x])[0], g.constant(np.array(d.int(1, 2), I64))])
    elif kind == 3:
        value = helper.make_tensor("", *d.one(((TensorProto.FLOAT, [1], [0.5]), (TensorProto.INT64, [1], [2]))))
        g.emit("ConstantOfShape", [g.emit("Shape", [x])[0]], exact=True, value=value)
    else:
        g.emit("Shape", [x], **(d.some(start=d.int(-1, 1), end=d.int(1, 2)) if g.opset >= 15 else {}))


@step(3)
def product(g: Program) -> None:
    d = g.d
    op = d.one(("MatMul", "MatMul", "Gemm", "Einsum", "Conv", "LayerNormalization", "LSTM", "MaxPool", "Dropout"))
    x = g.pick("f", least=2 if op != "Dropout" else 0, most={"Gemm": 2, "Einsum": 2}.get(op, 3), exact=op == "MaxPool")
    if op == "Dropout":
        g.emit(op, [x], d.one(([True], [True, True])), exact=True)
        return
    if x.array.ndim == 2 and op in ("LSTM", "MaxPool", "Conv"):
        x = _axes(g, "Unsqueeze", x, [0], 13, True)
    last, made, dtype = x.shape[-1], d.int(1, 3), x.dtype
    if op in ("MatMul", "Gemm", "Einsum"):
        weight = g.constant(g.filled([last, made], dtype))
        more = [g.constant(g.filled([made], dtype))] if op == "Gemm" and d.flag() else []
        attributes = {"equation": d.one(("ij,jk->ik", "ij,jk->ki", "ij,jk"))} if op == "Einsum" else {}
        g.emit(op, [x, weight, *more], **attributes)
    elif op == "Conv":
        weight = g.constant(g.filled([2, x.shape[1], 1], dtype))
        g.emit(op, [x, weight, *([g.constant(g.filled([2], dtype))] if d.flag() else [])])
    elif op == "LayerNormalization":
        if g.opset < 17 or last < 2:  # ONNX Runtime ends where a function of an older opset calls it
            raise NoCallError("of a newer opset")
        scale = g.constant(g.filled([last], dtype))
        wanted = d.one(([True], [True, True, True], [True, False, True]))
        g.emit(op, [x, scale, *([g.constant(g.filled([last], dtype))] if d.flag() else [])], wanted)
    elif op == "MaxPool":
        g.emit(op, [x], d.one(([True], [True, True])), exact=True, kernel_shape=[d.int(1, 2)], **d.some(pads=[0, 0]))
    else:
        hidden = 2
        w = g.constant(g.filled([1, 4 * hidden, last], dtype))
        r = g.constant(g.filled([1, 4 * hidden, hidden], dtype))
        wanted = d.one(([True], [False, True], [True, False, True], [True] * 3, [False, False, True]))
        g.emit(op, [x, w, r], wanted, hidden_size=hidden)


@step(2)
def texts(g: Program) -> None:
    d = g.d
    op = d.one(("StringConcat", "Unique", "LabelEncoder", "StringNormalizer", "StringSplit"))
    x = g.pick("O")
    if op == "StringConcat":
        g.emit(op, [x, g.beside(x)])
    elif op == "Unique":
        g.emit(op, [g.pick("iO")], d.one(([True], [True, True], [True, False, True], [True] * 4)), **d.some(sorted=0))
    elif op == "LabelEncoder":
        if d.flag():
            g.emit(op, [x], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[1, 2], default_int64=-1)
        else:
            numbers = g.pick("i", fits=lambda item: item.dtype == I64)
            g.emit(op, [numbers], domain="ai.onnx.ml", keys_int64s=[0, 1], values_strings=["a", "b"])
    elif op == "StringNormalizer":
        g.emit(op, [g.pick("O", 1, 1)], case_change_action=d.one(("UPPER", "LOWER", "NONE")))
    else:
        g.emit(op, [x], [True, True], **d.some(delimiter=d.one(("a", " ")), maxsplit=d.one((0, 1, -1))))


@step(2)
def drawn_call(g: Program) -> None:
    """A call of any operator, on values of the program in place of its float inputs."""
    d = g.d
    domain, op = d.one([*CALLS])
    call = CALLS[domain, op](Draw(d.r))
    if domain == "" and call.opset > g.opset:
        raise NoCallError("of a newer opset")
    inputs: list[Item | None] = []
    for place, value in enumerate(call.inputs):
        if value is None:
            inputs.append(None)
            continue
        array = np.asarray(value)
        if array.dtype.kind == "f" and np.isfinite(array).all() and place not in call.static | call.constant:
            inputs.append(_glued(g, array) if d.flag() else g.constant(array))
        else:
            inputs.append(g.constant(array))
    wanted = [place not in call.skipped for place in range(call.outputs)]
    g.emit(op, inputs, wanted, domain=domain, **call.attributes)
    g.rtol = max(g.rtol, call.rtol)


def _glued(g: Program, array: np.ndarray) -> Item:
    """Returns a value of the program in the shape and type of an array."""
    x = g.pick("f", exact=True, fits=lambda item: item.dtype == array.dtype and item.array.size > 0)
    if x.shape == list(array.shape):
        return x
    flat = g.emit("Reshape", [x, g.ints(-1)], exact=True)[0]
    tiled = g.emit("Tile", [flat, g.ints(max(array.size, 1))], exact=True)[0]
    if g.opset < 10:
        part = g.emit("Slice", [tiled], exact=True, axes=[0], starts=[0], ends=[array.size])[0]
    else:
        part = g.emit("Slice", [tiled, g.ints(0), g.ints(array.size)], exact=True)[0]
    return g.emit("Reshape", [part, g.ints(*array.shape)], exact=True)[0]


# Sequences and optionals


def _sequence(g: Program) -> Item:
    seen = [item for item in g.scope.seen if item.type.HasField("sequence_type")]
    if seen and g.d.mostly(4):
        return g.d.one(seen)
    x = g.pick("fibO")
    if g.d.flag(4):
        empty = g.emit("SequenceEmpty", [], dtype=helper.np_dtype_to_tensor_dtype(x.dtype))[0]
        return g.emit("SequenceInsert", [empty, x], exact=True)[0]
    parts = [x] + [g.beside(x) for _ in range(g.d.int(0, 2))]
    return g.emit("SequenceConstruct", parts, exact=True)[0]


@step(3)
def sequence(g: Program) -> None:
    d = g.d
    kind = d.int(0, 7)
    if kind == 0:
        x = g.pick("fi", least=1)
        parts = d.one(([], [g.constant(np.array(1, I64))]))
        keep = {} if parts else d.some(keepdims=d.int(0, 1))  # ignored beside `split`, though not by ONNX Runtime
        g.emit("SplitToSequence", [x, *parts], exact=True, **d.some(axis=d.axis(x.array.ndim)), **keep)
        return
    items = _sequence(g)
    position = [g.constant(np.array(d.one((0, -1)), d.one((I64, I32))))]
    if kind == 1:
        g.emit("SequenceAt", [items, *position], exact=True)
    elif kind == 2:
        g.emit("SequenceLength", [items])
    elif kind == 3:
        g.emit("SequenceErase", [items, *(position if d.flag() else [])], exact=True)
    elif kind == 4:
        x = g.pick("fibO", fits=lambda item: _tensor_of(items) == item.type)
        g.emit("SequenceInsert", [items, x, *(position if d.flag() else [])], exact=True)
    elif kind == 5:
        g.emit("ConcatFromSequence", [items], exact=True, axis=0, **d.some(new_axis=1))
    elif kind == 6:
        _mapped(g, items)
    else:
        g.emit("Identity", [items], exact=True)


def _tensor_of(item: Item) -> Any:
    return item.type.sequence_type.elem_type


def _mapped(g: Program, items: Item) -> None:
    d = g.d
    if not items.array or g.depth >= DEPTH:
        raise NoCallError("nothing to map")
    more = [d.one([item for item in g.scope.seen if item.is_tensor])] if d.flag() else []
    with g.inner():
        arguments = [g.add(g.fresh("e"), np.asarray(items.array[0]), items.exact)]
        arguments += [g.add(g.fresh("e"), item.array, item.exact) for item in more]
        g.grow(d.int(1, 3))
        results = [g.result(tensor=True) for _ in range(d.int(1, 2))]
        body = g.graph(arguments, results)
        exact = all(item.exact for item in results)
    g.emit("SequenceMap", [items, *more], len(results), exact=exact, body=body)


@step(2)
def optional(g: Program) -> None:
    d = g.d
    seen = [item for item in g.scope.seen if item.type.HasField("optional_type")]
    kind = d.int(0, 3)
    if not seen or kind == 0:
        x = d.one(g.scope.seen) if d.flag(4) else g.pick("fib")
        if x.type.HasField("optional_type"):
            raise NoCallError("an optional of an optional")
        if d.flag(4):
            g.emit("Optional", [], type=x.type)
        else:
            g.emit("Optional", [x], exact=True)
    elif kind == 1:
        g.emit("OptionalHasElement", [d.one(seen)])
    elif kind == 2:
        g.emit("OptionalGetElement", [d.one(seen)], exact=True)
    else:
        g.emit("OptionalHasElement", [g.pick("f")] if d.mostly(3) else [])


# Inner graphs


@step(4)
def branches(g: Program) -> None:
    d = g.d
    if g.depth >= DEPTH:
        raise NoCallError("deep enough")
    condition = g.boolean()
    if d.flag(8):
        condition = _axes(g, "Unsqueeze", condition, [0], 13)
    first: list[Item] = []
    graphs, exact = {}, True
    count = d.one((1, 1, 2, 3))
    names: set[str] = set()
    for name in ("then_branch", "else_branch"):
        with g.inner(again=name == "then_branch" and d.flag()):
            if d.mostly(5):
                g.grow(d.int(1, 4))
            results = [g.result(first[k] if first else None) for k in range(count)]
            graphs[name] = g.graph([], results)
            names |= g.taken
        first = results
        exact = exact and all(item.exact for item in results)
    g.taken |= names
    g.emit("If", [condition], count, exact=exact, **{name: graphs[name] for name in d.shuffled(graphs)})


@step(4)
def loop(g: Program) -> None:
    d = g.d
    if g.depth >= DEPTH:
        raise NoCallError("deep enough")
    kind = d.int(0, 3)
    trips: Item | None = None
    if kind in (0, 1) and g.scope.references is None:
        trips = g.leaf(I64, [], given=True, low=0, high=4)
    elif kind != 3:
        trips = g.constant(np.array(d.int(0, 3), I64))
    condition = None if d.flag() else g.boolean()
    carried = [g.pick("ffibO") for _ in range(d.int(0, 2))]
    others = [item for item in g.scope.seen if not item.is_tensor]
    if others and d.flag():
        carried.append(d.one(others))
    with g.inner():
        i = g.add(g.fresh("i"), np.array(0, I64))
        go = g.add(g.fresh("go"), np.array(True))
        own = [g.add(g.fresh("s"), item.array, item.kind not in "f" and item.is_tensor, item.type) for item in carried]
        g.grow(d.int(1, 5))
        ends = trips is None or d.flag(3)
        if ends:
            after = g.emit("Less", [i, g.constant(np.array(d.int(0, 3), I64))])[0]
        else:
            after = g.emit("Identity", [go])[0]
        results = [g.result(item) for item in own]
        scans = [g.result(tensor=True) for _ in range(d.int(0 if carried else 1, 2))]
        body = g.graph([i, go, *own], [after, *results, *scans])
    wanted = [d.mostly(6) for _ in results + scans]
    if not any(wanted):
        wanted[0] = True
    g.emit("Loop", [trips, condition, *carried], wanted, body=body)


@step(2)
def scan(g: Program) -> None:
    d = g.d
    if g.depth >= DEPTH:
        raise NoCallError("deep enough")
    x = g.pick("ffi", least=1)
    axis = d.int(0, x.array.ndim - 1)
    if not x.shape[axis]:
        raise NoCallError("nothing to scan")
    length = x.shape[axis]
    scanned, axes = [x], [axis]
    if d.flag(3):
        y = g.pick("fi", least=1, fits=lambda item: item.shape[0] == length)
        scanned, axes = [x, y], [axis, 0]
    carried = [g.pick("fi") for _ in range(d.int(0, 2))]
    with g.inner():
        own = [g.add(g.fresh("s"), item.array, item.kind not in "f") for item in carried]
        slices = [g.add(g.fresh("e"), np.take(s.array, 0, a), s.exact) for s, a in zip(scanned, axes, strict=True)]
        g.grow(d.int(1, 4))
        # what no node of a scan's body makes ONNX Runtime does not write
        results = [g.result(item, same_shape=True, made=True) for item in own]
        outs = [g.result(tensor=True, made=True) for _ in range(d.int(0 if carried else 1, 2))]
        body = g.graph([*own, *slices], [*results, *outs], ranks=True)
    attributes = d.some(
        scan_input_directions=[d.int(0, 1) for _ in scanned], scan_output_directions=[d.int(0, 1) for _ in outs]
    )
    if any(axes) or d.flag():
        attributes["scan_input_axes"] = axes
    if outs and d.flag(3):
        attributes["scan_output_axes"] = [d.int(0, item.array.ndim) for item in outs]
        if not all(item.array.size for item in outs):
            raise NoCallError("ONNX Runtime divides by zero, and ends")
    if not outs:
        attributes.pop("scan_output_directions", None)
    g.emit(
        "Scan", [*carried, *scanned], len(results) + len(outs), body=body, num_scan_inputs=len(scanned), **attributes
    )


# Local functions


@step(3)
def function(g: Program) -> None:
    """Defines a function and calls it."""
    d = g.d
    if g.depth >= 2 or g.scope.references is not None:
        raise NoCallError("deep enough")
    given: list[Item | None] = [g.pick("ffib") for _ in range(d.int(1, 3))]
    others = [item for item in g.scope.seen if not item.is_tensor]
    if others and d.flag(3):
        given.append(d.one(others))
    name = f"{d.one(('Twice', 'block', 'Relu', 'F.x'))}{len(g.functions)}"
    with g.inner(is_function=True):
        own = [g.add(g.fresh("p"), item.array, item.exact, item.type) for item in given]
        g.grow(d.int(2, 6))
        results = list({item.name: item for item in [g.result() for _ in range(d.int(1, 3))]}.values())
        references = g.scope.references or {}
        imports = [helper.make_opsetid(*pair) for pair in g.imports()]
        required = frozenset(key for key in references if d.flag())
        defaults = [helper.make_attribute(key, value) for key, value in references.items() if key not in required]
        proto = helper.make_function(
            "local",
            name,
            [item.name for item in own],
            [item.name for item in results],
            g.scope.nodes,
            imports,
            sorted(required),
            defaults,
        )
        exact = all(item.exact for item in results)
    g.functions.append(Function(proto, given, references, len(results), required))
    _called(g, g.functions[-1], given, exact)


@step(2)
def call_again(g: Program) -> None:
    """Calls a function with other values."""
    d = g.d
    if not g.functions:
        raise NoCallError("no function")
    chosen = d.one(g.functions)
    arguments: list[Item | None] = []
    for item in chosen.arguments:
        fitting = [
            other
            for other in g.scope.seen
            if other.type == item.type and (other.exact or not item.exact)
            and (not item.is_tensor or other.array.ndim == item.array.ndim)
        ]  # fmt: skip
        if not fitting:
            raise NoCallError("no argument")
        arguments.append(d.one(fitting))
    _called(g, chosen, arguments, False)


def _called(g: Program, chosen: Function, arguments: list[Item | None], exact: bool) -> None:
    d = g.d
    given = {
        name: d.one((0.2, 0.5)) if isinstance(value, float) and d.flag() else value
        for name, value in chosen.attributes.items()
        if name in chosen.least or d.flag()
    }
    wanted = [d.mostly(5) for _ in range(chosen.outputs)]
    if not any(wanted):
        wanted[-1] = True
    g.emit(chosen.proto.name, arguments, wanted, exact=exact, domain="local", **given)
