"""Models of `scripts/behaviour.py` that are written by hand, in ONNX's text format: what exporters seldom write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 3, "own" : 1]>'

TEXTS = {
    "scans": """g (float[4,3] start, float[n,4,3] x) => (float[4,3] last, float[n,4,3] back)
        <float[3,3] w = {1, 2, 3, 0, 1, 0, -1, 0.5, 1}> {
            last, sums = Scan <num_scan_inputs = 1,
                body = g (float[4,3] s, float[4,3] r) => (float[4,3] t, float[4,3] u)
                { p = MatMul(r, w)  t = Add(s, p)  u = Identity(t) }> (start, x)
            other, back = Scan <num_scan_inputs = 1, scan_input_directions = [1],
                body = h (float[4,3] s2, float[4,3] r2) => (float[4,3] t2, float[4,3] u2)
                { p2 = MatMul(r2, w)  t2 = Add(s2, p2)  u2 = Identity(t2) }> (start, sums)
        }""",
    "batched_scan": """<ir_version: 4, opset_import: ["" : 8]>
        g (float[n, 3] s, float[n, t, 3] x) => (float[n, 3] last, float[n, t, 3] y) {
            last, y = Scan <num_scan_inputs = 1,
                body = b (float[3] state, float[3] item) => (float[3] next, float[3] out)
                <float[3] half = {0.5, 0.25, 1}> { h = Mul(state, half)  next = Add(h, item)  out = Neg(next) }>
                ("", s, x)
        }""",
    "loops": """g (float[n, 3] x, int64 count, bool on) => (float[n, 3] y, float[k, 3] rows, float z)
        <int64 three = {3}, bool yes = {1}, float[3] step = {0.5, 1, -1}, int64[1] axis = {0}> {
            y = Loop (three, yes, x) <body = a (int64 i, bool c, float[n, 3] v) => (bool d, float[n, 3] w)
                { d = Identity(c)  w = Add(v, step) }>
            start = ReduceMean <axes = [0], keepdims = 0> (y)
            last, rows = Loop (count, on, start)
                <body = b (int64 j, bool e, float[3] s) => (bool f, float[3] t, float[3] u)
                { t = Mul(s, step)  u = Tanh(t)  m = ReduceMax <keepdims = 0> (t)
                  zero = Constant <value_float = 0.01> ()  f = Greater(m, zero) }>
            z = If (on) <then_branch = p () => (float q) { q = ReduceSum <keepdims = 0> (last) },
                else_branch = r () => (float o) { o = ReduceMax <keepdims = 0> (x) }>
        }""",
    "sequences": """g (float[n, 3] x) => (float[m, 3] y, int64 count)
        <int64 one = {1}, int64 first = {0}, float[1, 3] row = {1, 2, 3}> {
            parts = SplitToSequence <axis = 0> (x, one)
            doubled = SequenceMap (parts) <body = b (float[a, 3] item) => (float[c, 3] out) { out = Add(item, item) }>
            more = SequenceInsert(doubled, row, first)
            y = ConcatFromSequence <axis = 0> (more)
            count = SequenceLength(more)
        }""",
    "shapes": """g (float[n, c, 8] x) => (float[n, m] y, float[n, k] z, int64[r] numbers)
        <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] rest = {-1}, int64[1] two = {2},
         int64[1] last = {2}> {
            s = Shape(x)
            n = Gather <axis = 0> (s, zero)
            c = Gather <axis = 0> (s, one)
            n1 = Unsqueeze(n, axis)
            to = Concat <axis = 0> (n1, rest)
            y = Reshape(x, to)
            width = Gather <axis = 0> (s, last)
            half = Div(width, two)
            e = Slice(x, axis, half, last)
            z = Reshape(e, to)
            numbers = Range(zero, c, one)
        }""",
    "detection": """g (float[1, n, 4] boxes, float[1, 2, n] scores)
        => (int64[k, 3] found, float[k] best, int64[2, m] where)
        <int64 most = {3}, float[1] limit = {0.5}, int64[1] shape = {-1}, int64 column = {2}> {
            found = NonMaxSuppression(boxes, scores, most, limit)
            place = Gather <axis = 1> (found, column)
            flat = Reshape(scores, shape)
            best = Gather(flat, place)
            plane = Squeeze(scores)
            large = Greater(plane, limit)
            where = NonZero(large)
        }""",
    "recurrent": """g (float[t, n, 2] x, int32[n] lengths) => (float[t, 1, n, 3] y, float[1, n, 3] h, float[1, n, 3] c)
        { w = Constant <value = float[1, 12, 2] {0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, -0.9, 1, 0.1, 0.2,
            0.3, 0.4, -0.5, 0.6, 0.7, 0.8, 0.9, -1, 0.1, 0.2, 0.3, 0.4}> ()
          r0 = Constant <value_float = 0.125> ()
          to = Constant <value = int64[3] {1, 12, 3}> ()
          r = Expand(r0, to)
          y, h, c = LSTM <hidden_size = 3, clip = 0.75> (x, w, r, "", lengths) }""",
    "contrib": """g (float[n, 5, 4] x, float[n, 5, 4] skip) => (float[n, 5, 4] y, float[n, 5, 5] z, float[n, 5, 4] k)
        <float[4] gamma = {1, 2, 0.5, 1}, float[4] beta = {0, 0.1, 0, 1}, float[4] bias = {1, -1, 0, 0.5}> {
            y = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, skip, gamma, beta, bias)
            z = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, y)
            k = com.microsoft.BiasGelu(x, bias)
        }""",
    "trees": """g (float[n, 2] x) => (float[n, 1] y, int64[n] label, float[n, 2] scores) {
            y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2],
                nodes_featureids = [1, 0, 0], nodes_values = [0.25, 0.0, 0.0], nodes_truenodeids = [1, 0, 0],
                nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0],
                target_nodeids = [1, 2], target_ids = [0, 0], target_weights = [1.5, -2.0]> (x)
            label, scores = ai.onnx.ml.LinearClassifier <coefficients = [1.0, -1.0, -0.5, 2.0],
                intercepts = [0.1, 0.2], classlabels_ints = [4, 7], post_transform = "SOFTMAX"> (x)
        }""",
    "mathematics": """g (float[n, 6, 6] x)
        => (float[n, 6, 3] v, int64[n, 6, 3] i, float[n, 6, 6] y, float[n, 1, 9, 12] z)
        <int64[1] three = {3}, int64 axis = {2}, float[4] scales = {1, 1, 1.5, 2}, int64[1] at = {1}> {
            v, i = TopK <axis = -1> (x, three)
            s = CumSum <exclusive = 1> (x, axis)
            e = Einsum <equation = "bij,bkj->bik"> (s, x)
            y = HardSwish(e)
            w = Unsqueeze(x, at)
            z = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (w, "", scales)
        }""",
    "function": """g (float[n, 3] x) => (float[n, 3] y)
        <float[3] scale = {1, 2, 3}> { h = own.Swish(x)  k = Mul(h, scale)  y = own.Swish(k) }
        <domain: "own", opset_import: ["" : 17]>
        Swish (a) => (b) { s = Sigmoid(a)  b = Mul(a, s) }""",
    "names": """g (float[n, 3] x_0, float[3] self) => (float[n, 3] y) { y = Sub(x_0, self) }""",
    "mixed": """g (float[1, 4] x) => (float[2] y)
        <int64[1] flat = {-1}, int64[2] some = {3, 1}> { f = Reshape(x, flat)  y = Gather(f, some) }""",
    "unknown": """g (float[n, 3] x) => (float[n, 3] y) { h = own.Nothing(x)  k = Celu(h)  y = own.Neither(k) }""",
}
"""Name → text; what has no header of its own gets `_HEAD`."""


def write(path: Path, text: str) -> list[list[np.ndarray]]:
    """Writes a model; returns the inputs of two calls, dynamic dimensions 3 and 2."""
    model = onnx.parser.parse_model(text if text.startswith("<") else f"{_HEAD}\n{text}")
    for value in model.graph.input:
        if value.name.endswith("_0"):  # no name of an input in Python, nor one that the text format takes
            for node in model.graph.node:
                node.input[:] = [value.name.replace("_", ":") if name == value.name else name for name in node.input]
            value.name = value.name.replace("_", ":")
    onnx.save(model, str(path))
    return [random_inputs(model, size) for size in (3, 2)]


def random_inputs(model: onnx.ModelProto, size: int = 2) -> list[np.ndarray]:
    """Seeded inputs: floats from a normal distribution, integers from 1 to `size`, which dynamic dimensions have."""
    stored = {tensor.name for tensor in model.graph.initializer}
    generator = np.random.default_rng(0)
    arrays = []
    for value in model.graph.input:
        if value.name in stored:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value if dim.dim_value > 0 else size for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind == "f":
            arrays.append(np.asarray(generator.standard_normal(shape), dtype))
        else:
            arrays.append(np.asarray(generator.integers(1, 2 if dtype.kind == "b" else size + 1, shape), dtype))
    return arrays
