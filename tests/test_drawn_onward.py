"""What goes onward from the imports of random graphs gives what they give, or is refused by name."""

from __future__ import annotations

import contextlib
import io
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import onnx2nn
from onnx2nn.errors import VerificationError
from tests.drawn.onward import WAYS, outcome
from tests.drawn.subjects import KINDS, imported, subject

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch's exporters and tracer warn of most models
    pytest.mark.pinned("onnxruntime", "torch"),  # older ones end the process at some graphs, and export others wrongly
]

FAST_PROGRAMS = {
    "copies": 20, "weights": 15, "types": 8, "source": 15, "program": 2, "script": 15, "trace": 15, "export": 1,
    "exporter": 1, "older_exporter": 4, "optimized": 10, "compiled": 1,
}  # fmt: skip
"""Programs of each way."""

FAST = {
    "copies": 40, "weights": 40, "types": 12, "source": 30, "program": 8, "script": 30, "trace": 30, "export": 4,
    "exporter": 3, "older_exporter": 8, "optimized": 12, "compiled": 2,
}  # fmt: skip
"""Graphs of other kinds of each way, most of them on the ways that take the least time."""

HELD = {"copies": 4, "optimized": 2, "weights": 4, "source": 4, "script": 4, "trace": 2, "types": 2}
"""Graphs of each kind, where they are several."""

PARTS = 6
"""Of the held tier's graphs: a part is a test, for processes and shards."""


def _check(name: str, drawn: Iterable[tuple[str, int]], folder: Path) -> None:
    kinds: Counter[str] = Counter()
    wrong = []
    for number, (kind, seed) in enumerate(drawn):
        place = folder / f"{name}{number}"
        place.mkdir()
        with contextlib.redirect_stderr(io.StringIO()):  # torch.fx prints the programs that raise an error
            model = subject(kind, seed)
            found, said = ("none", "") if model is None else outcome(WAYS[name], model, place)
        kinds[found] += 1
        if found == "wrong":
            wrong.append(f"{said}\n{model}")
    assert not wrong, "\n".join([f"{len(wrong)} of {kinds.total()} are wrong", *wrong[:3]])
    assert kinds["right"], kinds


@pytest.mark.parametrize("name", WAYS)
def test_some_graphs(name: str, tmp_path: Path) -> None:
    programs = [kind for kind in KINDS if kind.startswith("program")]
    rng = random.Random(name)
    chosen = rng.choices([kind for kind in KINDS if kind not in programs], k=FAST[name])
    chosen += rng.choices(programs, k=FAST_PROGRAMS[name])
    _check(name, [(kind, number) for number, kind in enumerate(chosen)], tmp_path)


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", WAYS)
def test_many_graphs(name: str, part: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    count = HELD.get(name, 1)
    first = 100 + count * request.config.getoption("--seed")
    _check(name, [(kind, seed) for seed in range(first, first + count) for kind in [*KINDS][part::PARTS]], tmp_path)


def _ramp(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) * 7 % 11).astype(dtype)


FOUND = {
    "parts of a weight": (
        "weights",
        "(float[2] x) => (float[2] y) <float[4] w = {1, 2, 3, 4}, int64[2] sizes = {2, 2}> {"
        " a, b = Split (w, sizes) c = Add (x, a) y = Mul (c, b) }",
        [[_ramp(2)]],
    ),
    "a part of a weight": (
        "weights",
        "(float[2] x) => (float[2] y) <float[4] w = {1, 2, 3, 4}, int64[1] one = {1}, int64[1] three = {3}> {"
        " a = Slice (w, one, three) y = Add (x, a) }",
        [[_ramp(2)]],
    ),
    "a weight that is expanded": (
        "weights",
        "(float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}, int64[2] sizes = {2, 3}> {"
        " e = Expand (w, sizes) p = Sigmoid (e) y = Add (x, e) }",
        [[_ramp(2, 3)]],
    ),
    "a size as a tensor in a branch": (
        "copies",
        "(float[n] x, bool c) => (float y) { s = Size (x) y = If (c) <"
        " then_branch = t () => (float a) { f = Cast <to = 1> (s) a = Sqrt (f) },"
        " else_branch = e () => (float b) { b = Constant <value = float {1}> () }> }",
        [[_ramp(4), np.array(True)], [_ramp(9), np.array(False)]],
    ),
    "a size where a function reads a tensor": (
        "source",
        "(float[n] x, int64 limit) => (int64[m] y) <int64 one = {1}> { s = Size (x) y = Range (s, limit, one) }",
        [[_ramp(4), np.array(9)], [_ramp(2), np.array(3)]],
    ),
    "a size that a branch reads as a tensor": (
        "source",
        "(float[n] x, bool c, int64 limit) => (int64[m] y) <int64 one = {1}> { s = Size (x) y = If (c) <"
        " then_branch = t () => (int64[k] a) { a = Range (s, limit, one) },"
        " else_branch = e () => (int64[j] b) { b = Range (limit, s, one) }> }",
        [[_ramp(4), np.array(True), np.array(9)], [_ramp(2), np.array(False), np.array(0)]],
    ),
    "scores of other types": (
        "types",
        "(float[1,4,n] boxes) => (int64[k,3] y) <float[1,1,4] scores = {0.4, 0.6, 0.7, 0.1}, int64[1] most = {3}> {"
        " y = NonMaxSuppression (boxes, scores, most) }",
        [[_ramp(1, 4, 4)]],
    ),
    "texts as a result": (
        "copies",
        '(float[n] x) => (string[2] y, float[n] z) <string[2] y = {"a", "b"}> { z = Neg (x) }',
        [[_ramp(3)], [_ramp(7)]],
    ),
    "texts in a file": (
        "weights",
        '(float[n] x) => (string[2] y, float[n] z) <string[2] y = {"a", "b"}> { z = Neg (x) }',
        [[_ramp(3)], [_ramp(7)]],
    ),
    "texts of a dynamic shape": (
        "copies",
        '(float[n] x) => (string[n] y) <string[1] t = {"a"}> { s = Shape (x) y = Expand (t, s) }',
        [[_ramp(3)], [_ramp(7)]],
    ),
    "an optional of a type whose dimension has a name": (
        "copies",
        "(float[n] x) => (float[n] z, optional(float[n]) y) { z = Neg (x) y = Optional <type = float[n]> () }",
        [[_ramp(3)], [_ramp(7)]],
    ),
    "texts without inputs": ("copies", '() => (string[2] y) <string[2] y = {"a", "b"}> { }', [[]]),
    "texts beside floats of other types": (
        "types",
        "(float[2,3] x, string t) => (float[2,2] y, string u) <float[3,2] w = {1, 2, 3, 4, 5, 6}> {"
        " n = ai.onnx.ml.Normalizer (x) y = MatMul (n, w) u = Identity (t) }",
        [[_ramp(2, 3), np.array("a", object)]],
    ),
    "a weight as the result": (
        "script",
        "() => (float[3] y) { y = Constant <value = float[3] {1, 2, 3}> () }",
        [[]],
    ),
    "an empty constant": (
        "program",
        "(float x) => (int64[0] y) { y = Shape <start = 2> (x) }",
        [[np.array(0.5, np.float32)]],
    ),
    "a pool over time, by program": (
        "program",
        "(float[1,2,n] x, bool c) => (float[1,2,m] y, float[1,2,n] z) {"
        " y = MaxPool <kernel_shape = [2]> (x) z = If (c) <"
        " then_branch = t () => (float[1,2,n] a) { a = Exp (x) }, else_branch = e () => (float[1,2,n] b) {"
        " b = Neg (x) }> }",
        [[_ramp(1, 2, 5), np.array(True)], [_ramp(1, 2, 9), np.array(False)]],
    ),
    "a pool over time, by export": (
        "export",
        "(float[1,2,n] x, bool c) => (float[1,2,m] y, float[1,2,n] z) {"
        " y = MaxPool <kernel_shape = [2]> (x) z = If (c) <"
        " then_branch = t () => (float[1,2,n] a) { a = Exp (x) }, else_branch = e () => (float[1,2,n] b) {"
        " b = Neg (x) }> }",
        [[_ramp(1, 2, 5), np.array(True)], [_ramp(1, 2, 9), np.array(False)]],
    ),
    "no axes": (
        "program",
        "(float[2,3] x, int64[k] axes) => (float[a,b] y) { y = ReduceL1 (x, axes) }",
        [[_ramp(2, 3), np.zeros(0, np.int64)]],
    ),
    "zeros of a shape of data": (
        "trace",
        "(int64[k] shape) => (float[a,b] y) { y = ConstantOfShape (shape) }",
        [[np.array([2, 3])]],
    ),
    "the magnitude of a size": (
        "program",
        "(float[n] x) => (float[m] y) <int64[1] five = {5}, float[1] one = {1}> {"
        " s = Shape (x) d = Sub (s, five) a = Abs (d) y = Expand (one, a) }",
        [[_ramp(9)], [_ramp(3)]],
    ),
    "a value that is two outputs": (
        "export",
        "(float[n] x) => (float[n] y, float[n] z, float[n] v) { z = Neg (x) y = Identity (z) v = Identity (z) }",
        [[_ramp(3)], [_ramp(7)]],
    ),
    "an input that a loop gives": (
        "export",
        "(float[n] x) => (float[m] y, int64 k) <int64 none = {0}> {"
        " y = Loop (none, , x) <body = b (int64 i, bool c, float[n] a) => (bool d, float[o] e) {"
        " d = Identity (c) e = Concat <axis = 0> (a, a) }> k = Size (y) }",
        [[_ramp(3)], [_ramp(7)]],
    ),
    "as many iterations as the given example has": (
        "export",
        "(float[n] x) => (float[m] y) <int64 three = {3}> { s = Size (x) k = Mod (s, three)"
        " y = Loop (k, , x) <body = b (int64 i, bool c, float[o] a) => (bool d, float[p] e) {"
        " d = Identity (c) e = Concat <axis = 0> (a, x) }> }",
        [[_ramp(3)], [_ramp(6)]],
    ),
    **{
        f"a quotient of sizes, {way}": (
            way,
            "(float[1,2,n] x) => (float[1,k,2,5] y) <int64[1] one = {1}, int64[4] sizes = {1, 1, 2, 5}> {"
            ' u = Unsqueeze (x, one) y = Resize <coordinate_transformation_mode = "asymmetric", mode = "nearest",'
            ' nearest_mode = "floor"> (u, , , sizes) }',
            [[_ramp(1, 2, 7)], [_ramp(1, 2, 1000)]],
        )
        for way in ("script", "older_exporter")
    },
    "a part of a constant without elements": (
        "script",
        "(float[n] x) => (float[k, 1] s, float[n] y) <int64[2] none = {0, 2}, int64[1] one = {1}, int64[1] two = {2}> {"
        " c = ConstantOfShape (none) s = Slice (c, one, two, one) y = Neg (x) }",
        [[_ramp(3)], [_ramp(5)]],
    ),
    "votes that are always there": (
        "script",
        "(float[n,1] x) => (float[n,3] y) { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 3,"
        " base_values = [1.0, 2.0, 4.0], nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2],"
        ' nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_featureids = [0, 0, 0], nodes_values = [5.0, 0.0, 0.0],'
        " nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0, 0, 0],"
        " target_nodeids = [1, 1, 2, 2], target_ids = [0, 1, 0, 2], target_weights = [1.0, 2.0, 3.0, 5.0]> (x) }",
        [[_ramp(3, 1)], [_ramp(7, 1)]],
    ),
    "weights in containers": (
        "script",
        '(float[n] x) => (float[n] y, float[2] "a.b") <float[2] "a.b" = {1, 2}> { y = Neg (x) }',
        [[_ramp(3)], [_ramp(6)]],
    ),
    "what a branch gives as it is": (
        "script",
        "(float[n] x, bool c) => (float[n] y, float[n] z) { y = If (c) <"
        " then_branch = t () => (float[m] a) { a = Exp (x) },"
        " else_branch = e () => (float[m] b) { b = Identity (x) }> z = Neg (x) }",
        [[_ramp(3), np.array(False)], [_ramp(4), np.array(True)]],
    ),
    "neither of two conditions on sizes": (
        "script",
        "(float[n] x) => (float[n] y, int64 k) <int64 two = {2}, int64 nine = {9}> {"
        " s = Size (x) a = Less (two, s) b = Less (s, nine) c = And (a, b) d = Not (c) k = Where (d, two, s)"
        " y = Identity (x) }",
        [[_ramp(3)], [_ramp(11)]],
    ),
    "bits of bytes": (
        "export",
        '(uint8[n] x, uint8 c, uint8[k,1] d) => (uint8[n] y, uint8[k,n] z) { y = BitShift <direction = "RIGHT"> (x, c)'
        ' z = BitShift <direction = "LEFT"> (x, d) }',
        [[np.uint8([200, 3, 9]), np.array(1, np.uint8), np.uint8([[1], [7]])]],
    ),
    "16-bit floats without their signs": (
        "export",
        "(float16[n] x) => (float16[n] y) { y = Abs (x) }",
        [[_ramp(3, dtype=np.float16)], [_ramp(7, dtype=np.float16)]],
    ),
}
"""Faults that random graphs found, each as small as it is: the way, the graph, and its inputs at some sizes."""


@pytest.mark.parametrize("about", FOUND)
def test_what_was_found(about: str, tmp_path: Path) -> None:
    name, graph, points = FOUND[about]
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]> found {graph}')
    names = [info.name for info in model.graph.input]
    found = imported(about, model, [dict(zip(names, point, strict=True)) for point in points], 1e-5)
    assert found is not None and len(found.runs) == len(points)
    assert outcome(WAYS[name], found, tmp_path) == ("right", "")


def _loaded(graph: str) -> torch.fx.GraphModule:
    return onnx2nn.load(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> found {graph}'))


def test_a_description_says_which_parts_a_trace_holds(tmp_path: Path) -> None:
    module = _loaded(
        "(float[n] x) => (float[1] y) <int64 one = {1}, int64 zero = {0}> {"
        ' ["apart"] s = SplitToSequence (x, one) y = SequenceAt (s, zero) }'
    )
    told = onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=[torch.ones(3)])
    assert "of node 'apart' (SplitToSequence) it holds as many parts as the example has" in told


REPEATED = {
    "as often as a size says": (
        "(float[n] x) => (float[m] y) <int64 three = {3}> { s = Size (x) k = Mod (s, three)"
        " y = Loop (k, , x) <body = b (int64 i, bool c, float[o] a) => (bool d, float[p] e) {"
        " d = Identity (c) e = Concat <axis = 0> (a, x) }> }",
        [(3,), (4,), (5,), (6,)],
    ),
    "until data end it": (
        "(float[n] x) => (float[n] y, float[t, n] z) <float ten = {10}> {"
        " y, z = Loop (, , x) <body = b (int64 i, bool c, float[o] a) => (bool d, float[o] e, float[o] f) {"
        " e = Add (a, x) f = Mul (e, x) g = ReduceSum <keepdims = 0> (e) d = Less (g, ten) }> }",
        [(3,), (20,), (2,)],
    ),
    "no more often than a limit": (
        "(float[n] x) => (int64 y) <int64 none = {0}, int64 nine = {9}> { s = Size (x) k = Min (s, nine)"
        " c = Less (none, s) y = Loop (k, c, none) <body = b (int64 i, bool p, int64 a) => (bool d, int64 e) {"
        " e = Add (a, i) d = Less (e, nine) }> }",
        [(1,), (3,), (0,), (30,)],
    ),
    "within a branch and another one": (
        "(float[n] x) => (float[n] y) <int64 two = {2}> { s = Size (x) g = Greater (s, two) y = If (g) <"
        " then_branch = t () => (float[k] a) { a = Loop (s, , x) <body = b (int64 i, bool c, float[o] h) =>"
        " (bool d, float[o] e) { d = Identity (c) e = Loop (i, , h) <body = f (int64 j, bool p, float[o] q) =>"
        " (bool r, float[o] v) { r = Identity (p) v = Add (q, x) }> }> },"
        " else_branch = u () => (float[k] w) { w = Neg (x) }> }",
        [(3,), (2,), (5,)],
    ),
    "for each slice": (
        "(float[k, n] x) => (float[n] y, float[k, n] z, float[n, k] v) <int64[1] zero = {0}> {"
        " w = ReduceSum <keepdims = 0> (x, zero) y, z, v = Scan (w, x) <num_scan_inputs = 1, scan_output_axes = [0, 1],"
        " scan_input_directions = [1], scan_output_directions = [1, 0], body = b (float[o] h, float[o] a) =>"
        " (float[o] e, float[o] f, float[o] g) { e = Add (a, h) f = Mul (e, w) g = Relu (f) }> }",
        [(3, 3), (1, 4), (7, 5), (0, 5)],
    ),
}
"""Repetitions whose number is open → a graph, and shapes of its input, first the example's."""


@pytest.mark.parametrize("repeated", REPEATED)
def test_a_trace_repeats(repeated: str, tmp_path: Path) -> None:
    graph, shapes = REPEATED[repeated]
    module = _loaded(graph)
    inputs = [torch.from_numpy(_ramp(*shape)) for shape in shapes]
    assert "it holds" not in onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=inputs[:1])
    traced = torch.jit.load(tmp_path / "m.torchscript")
    for x in inputs:
        torch.testing.assert_close(traced(x), module(x), rtol=0, atol=0)


def test_a_description_says_which_iterations_a_trace_holds(tmp_path: Path) -> None:
    """TorchScript has no lists of tensors and of lists."""
    module = _loaded(
        '(float[n] x) => (int64 k) { s = Size (x) q = SequenceConstruct (x) ["steps"] t = Loop (s, , q) <'
        " body = b (int64 i, bool c, seq(float[o]) a) => (bool d, seq(float[o]) e) {"
        " d = Identity (c) e = SequenceInsert (a, x) }> k = SequenceLength (t) }"
    )
    told = onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=[torch.ones(3)])
    assert "of node 'steps' (Loop) it holds as many iterations as the example has" in told


@pytest.mark.parametrize("modulus", [3, 2])  # the other generated sizes are even, as the example's
def test_a_file_that_is_wrong_at_other_sizes_takes_none(modulus: int, tmp_path: Path) -> None:
    """Of a Loop it holds as many iterations as the example has, which is another number at other sizes."""
    module = _loaded(
        f"(float[n] x) => (float[m] y) <int64 modulus = {{{modulus}}}> {{ s = Size (x) k = Mod (s, modulus)"
        ' ["steps"] y = Loop (k, , x) <body = b (int64 i, bool c, float[o] a) => (bool d, float[p] e) {'
        " d = Identity (c) e = Concat <axis = 0> (a, x) }> }"
    )
    told = onnx2nn.export_onnx(module, tmp_path / "m.onnx", example_inputs=[torch.ones(4)])
    assert "dynamic dimensions: none" in told and "of node 'steps' (Loop) it holds as many iterations" in told
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, {"x": np.arange(4, dtype=np.float32)})
    np.testing.assert_array_equal(found, module(torch.arange(4.0)).numpy())
    with pytest.raises(InvalidArgument, match="Got invalid dimensions"):
        session.run(None, {"x": np.arange(5, dtype=np.float32)})


@pytest.mark.parametrize("name", ["torch", "annotate"])
def test_names_that_the_code_of_a_trace_calls(name: str, tmp_path: Path) -> None:
    module = _loaded(f"(float[2,k] x) => (float[1,k] y) <int64[1] {name} = {{1}}> {{ y = Gather (x, {name}) }}")
    onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=[torch.ones(2, 3)])
    x = torch.randn(2, 4)
    assert torch.equal(torch.jit.load(tmp_path / "m.torchscript")(x), x[1:])


def test_safetensors_names_a_weight_that_is_another_one_transposed(tmp_path: Path) -> None:
    module = _loaded(
        "(float[2,3] x, float[3,2] z) => (float[2,2] y, float[3,2] s) <float[3,2] w = {1, 2, 3, 4, 5, 6}> {"
        ' ["product"] y = Gemm (x, w) s = Add (w, z) }'
    )
    with pytest.raises(VerificationError, match=r"the memory of another one in another layout: '.+weight'. Save .pth"):
        onnx2nn.save(module, tmp_path / "m.safetensors")


def test_a_trace_holds_no_numbers_of_the_example(tmp_path: Path) -> None:
    module = _loaded('(float[2,3] x, int64[k] axes) => (float[a,b] y) { ["sum"] y = ReduceL1 (x, axes) }')
    with pytest.raises(VerificationError, match=r"numbers of input axes of node 'sum' \(ReduceL1\)"):
        onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=[torch.ones(2, 3), torch.tensor([0])])


def test_a_trace_holds_no_sizes_of_the_example_as_numbers(tmp_path: Path) -> None:
    module = _loaded(
        "(float[1,1,3,n] x, int64[k] axes) => (float[1,1,3,m] y) <float half = {0.5}, float[3] ones = {1, 1, 1}> {"
        " s = Shape <start = 3> (x) n = Cast <to = 1> (s) a = Mul (n, half) w = Concat <axis = 0> (ones, a)"
        ' ["grow"] y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , w) }'
    )
    with pytest.raises(VerificationError, match=r"numbers of input scales of node 'grow' \(Resize\)"):
        onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=[torch.ones(1, 1, 3, 4), torch.tensor([0])])


def test_descriptions_say_which_sizes_are_taken_for_one(tmp_path: Path) -> None:
    """The module takes 1 and 4 too, which broadcast; torch.export decides by the example that both are equal."""
    module = _loaded("(float[n] x, float[m] z) => (float[k] y) { y = Add (x, z) }")
    example = [torch.ones(4), torch.ones(4)]
    axes = [{0: "n"}, {0: "m"}]
    for told in (
        onnx2nn.save(module, tmp_path / "m.pt2", example_inputs=example, dynamic_axes=axes),
        onnx2nn.export_onnx(module, tmp_path / "m.onnx", example_inputs=example),
    ):
        assert "it takes equal sizes alone of n and m" in told


def test_a_description_says_where_a_file_takes_no_size_of_zero(tmp_path: Path) -> None:
    """To torch.export no size is 0."""
    module = _loaded(
        "(float[n, m] x) => (float y) <int64 zero = {0}> { s = Size (x) e = Equal (s, zero) y = Cast <to = 1> (e) }"
    )
    for told in (
        onnx2nn.export_onnx(module, tmp_path / "m.onnx"),
        onnx2nn.save(module, tmp_path / "m.pt2", example_inputs=[torch.ones(2, 3)], dynamic_axes=[{0: "n", 1: "m"}]),
    ):
        assert told.endswith("; it has other outputs than the module where n is 0, or m is 0")


def test_a_refused_dimension_is_named(tmp_path: Path) -> None:
    """The module takes 4, and a 1 that broadcasts."""
    module = _loaded("(float[n] x, float[4] z) => (float[k] y) { y = Add (x, z) }")
    example = [torch.ones(4), torch.ones(4)]
    with pytest.raises(VerificationError, match=r"4 alone for the dimension n, and the module refuses 5\. Leave n out"):
        onnx2nn.export_onnx(module, tmp_path / "m.onnx", example_inputs=example)
    told = onnx2nn.export_onnx(module, tmp_path / "m.onnx", example_inputs=example, dynamic_axes={})
    assert "dynamic dimensions: none" in told


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (
            '(float[2,m] x) => (float[m,2] y) { ["steps"] y = Scan <num_scan_inputs = 1, scan_input_axes = [1], '
            "body = b (float[2] a) => (float[2] d) { d = Exp (a) }> (x) }",
            r"of node 'steps' \(Scan\) it holds as many iterations as the example has",
        ),
        (
            '(float[2,m] x) => (int64 k) <string[1] t = {"a"}> { s = Shape (x) e = Expand (t, s)'
            ' ["join"] j = Concat <axis = 0> (e, e) k = Size (j) }',
            r"it holds no texts, as of node 'e' \(Expand\), node 'join' \(Concat\)",
        ),
    ],
)
def test_sizes_that_a_trace_always_holds_are_tried_twice(graph: str, words: str, tmp_path: Path) -> None:
    """Every size is fixed in the trace: sizes of which each is four times the last one took minutes."""
    with pytest.raises(VerificationError, match=f"fixes the dimension m, at 3 and at 17; {words}"):
        onnx2nn.export_onnx(_loaded(graph), tmp_path / "m.onnx", example_inputs=[torch.ones(2, 3)])


@pytest.mark.parametrize("ending", [".pt2", ".torchscript", ".onnx"])
@pytest.mark.parametrize(
    "graph",
    [
        '(float[n] x) => (string[2] y, float[n] z) <string[2] t = {"a", "b"}> {'
        " z = Neg (x) y = Identity (t) }",
        '(string[2] t, float[n] x) => (string[m] y, float[n] z) { ["join"] y = Concat <axis = 0> (t, t) z = Neg (x) }',
        '(string[2] t, float[n] x) => (float[n] z) { ["join"] y = Concat <axis = 0> (t, t) k = Size (y)'
        " f = Cast <to = 1> (k) z = Mul (x, f) }",
        '(float[n] x, bool c) => (int64 k, float[n] z) { z = Neg (x) k = If (c) <'
        ' then_branch = t () => (int64 a) { y = Cast <to = 8> (x) ["join"] j = Concat <axis = 0> (y, y) a = Size (j) },'
        " else_branch = e () => (int64 b) { b = Size (x) }> }",
    ],
)  # fmt: skip
def test_texts_in_a_trace_are_refused_by_name(graph: str, ending: str, tmp_path: Path) -> None:
    module = _loaded(graph)
    given = {"t": np.array(["a", "b"], object), "x": torch.ones(3), "c": torch.tensor(True)}
    example = [given[name] for name in module.meta["onnx2nn"]["inputs"]]
    write = onnx2nn.export_onnx if ending == ".onnx" else onnx2nn.save
    with pytest.raises(VerificationError, match=r"it holds no texts, as of .*(node 'join' \(Concat\)|output 'y')"):
        write(module, tmp_path / f"m{ending}", example_inputs=example)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("(float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x, x) }", "no sequences, as of output 'y'"),
        ("(float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x) }", "no sequences, as of output 'y'"),
        (
            "(float[n] x) => (float[n] z, optional(float[n]) y) { z = Neg (x) y = Optional <type = float[n]> () }",
            "no empty optionals, as of output 'y'",
        ),
    ],
)
def test_outputs_that_are_no_tensors_are_refused_by_name(graph: str, words: str, tmp_path: Path) -> None:
    """A file had a tensor in place of a sequence of one, and of three outputs as many as they have parts."""
    with pytest.raises(VerificationError, match=words):
        onnx2nn.export_onnx(_loaded(graph), tmp_path / "m.onnx", example_inputs=[torch.ones(3)])


def test_a_trace_names_empty_optionals_and_sequences(tmp_path: Path) -> None:
    nothing = "(float[n] x) => (float[n] z, optional(float[n]) y) { z = Neg (x) y = Optional <type = float[n]> () }"
    empty = (
        "(float[n] x, bool c) => (int64 k, float[n] z) { z = Neg (x) s = If (c) <"
        ' then_branch = t () => (seq(float[n]) a) { ["nothing"] a = SequenceEmpty () },'
        " else_branch = e () => (seq(float[n]) b) { b = SequenceConstruct (x) }> k = SequenceLength (s) }"
    )
    for graph, words, given in (
        (nothing, "it holds no empty optionals, as of output 'y'", []),
        (empty, "it holds no sequences without elements, as of ", [torch.tensor(True)]),
    ):
        with pytest.raises(VerificationError, match=words):
            onnx2nn.save(_loaded(graph), tmp_path / "m.torchscript", example_inputs=[torch.ones(3), *given])


def test_a_program_follows_the_length_of_a_pool(tmp_path: Path) -> None:
    """torch.export fixes the length of what `torch.max_pool1d` is given."""
    module = _loaded("(float[1,2,n] x) => (float[1,2,m] y) { y = MaxPool <kernel_shape = [3], pads = [1, 1]> (x) }")
    example = [torch.ones(1, 2, 5)]
    told = onnx2nn.save(module, tmp_path / "m.pt2", example_inputs=example, dynamic_axes=[{2: "n"}])
    assert "dynamic: n (axis 2 of x)" in told
    assert "dynamic dimensions: n" in onnx2nn.export_onnx(module, tmp_path / "m.onnx", example_inputs=example)
    assert [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node] == ["MaxPool"]


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_branches_that_torch_export_does_not_merge_are_named(ending: str, tmp_path: Path) -> None:
    module = _loaded(
        '(float[2,3] x, bool c) => (float y) { ["choice"] y = If (c) <'
        " then_branch = t () => (float a) { a = Exp (x) },"
        " else_branch = e () => (float b) { b = ReduceSum <keepdims = 0> (x) }> }"
    )
    write = onnx2nn.export_onnx if ending == ".onnx" else onnx2nn.save
    with pytest.raises(VerificationError, match=r"at node 'choice' \(If\), .*same dim but got 2 and 0"):
        write(module, tmp_path / f"m{ending}", example_inputs=[torch.ones(2, 3), torch.tensor(True)])
