"""Operators that look at their inputs' values when they run, under torch.export, which has none to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, parser
from realmodels import check_same, check_travels, run, run_onnxruntime

import onnx2nn
from onnx2nn.backend import OnnxModule
from onnx2nn.errors import OperatorError
from tests import installed, old_oracles, onnxnode
from tests.cases import Case, case, f32, ml, trees
from tests.cases.contrib import packed_weights, quantized

_GRAMS: dict[str, Any] = {
    "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 3],
    "ngram_indexes": [4, 0, 2, 1, 3], "pool_int64s": [5, 6, 7, 5, 6, 7, 7], "weights": [0.5, 2.0, 3.0, 1.5, 0.25],
}  # fmt: skip
_ITEMS = np.random.default_rng(0).integers(5, 9, (3, 6))

CASES = [
    *(case("TfIdfVectorizer", _ITEMS, mode=mode, **_GRAMS) for mode in ("TF", "IDF", "TFIDF")),
    case("TfIdfVectorizer", _ITEMS[0], mode="TFIDF", **_GRAMS),
    case("TfIdfVectorizer", _ITEMS[:, :1], mode="TFIDF", **_GRAMS, note="shorter than a gram"),
    case("LSTM", f32(4, 3, 2), f32(1, 20, 2), f32(1, 20, 5), None, np.array([4, 1, 2], np.int32), None, None,
         f32(1, 15), hidden_size=5, constant=(1, 2, 7), outputs=3, note="lengths, peepholes"),
    case("GRU", f32(4, 3, 2), f32(2, 15, 2), f32(2, 15, 5), None, np.array([4, 1, 2], np.int32), hidden_size=5,
         direction="bidirectional", linear_before_reset=1, constant=(1, 2), outputs=2, note="lengths"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_program_gives_what_onnxruntime_gives(case: Case) -> None:
    if installed.is_older("onnxruntime") and case.operator == "TfIdfVectorizer":
        pytest.skip("ONNX Runtime before 1.31 takes the weights in the order of the output, not in that of the pool")
    version = onnxnode.revisions(case)[-1]
    model, feeds = onnxnode.model_of(case, version)
    answer = onnxnode.oracle(case, version)
    assert answer is not None
    module = onnx2nn.load(model)
    runner = OnnxModule(model, module)
    program = torch.export.export(module, tuple(runner.arguments(list(feeds.values())))).module()
    for each in (runner, OnnxModule(model, module, program)):
        for actual, expected in zip(each.run(feeds), answer[1], strict=True):
            onnxnode.assert_close(actual, expected, 1e-5)


def test_the_older_exporter_names_what_it_cannot_write(tmp_path: Path) -> None:
    model, feeds = onnxnode.model_of(CASES[-1], 14)
    inputs = tuple(torch.from_numpy(np.asarray(array)) for array in feeds.values())
    with pytest.raises(OperatorError, match="older exporter cannot write GRU"):
        torch.onnx.export(onnx2nn.load(model), inputs, str(tmp_path / "m.onnx"), dynamo=False)


def test_a_branch_may_be_a_constant() -> None:
    graph = "g () => (float[2] {0}) {{ {0} = Constant <value = float[2] {{ {1} }}> () }}"
    branches = [parser.parse_graph(graph.format(*names)) for names in (("a", "1.0, 2.0"), ("b", "3.0, 4.0"))]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    infos = [helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]
    module = onnx2nn.load(helper.make_model(helper.make_graph([node], "g", infos, results)))
    program = torch.export.export(module, (torch.tensor(True),)).module()
    for condition, expected in ((True, [1.0, 2.0]), (False, [3.0, 4.0])):
        assert program(torch.tensor(condition)).tolist() == module(torch.tensor(condition)).tolist() == expected


def test_indices_of_int32_can_be_exported_again() -> None:
    """TensorFlow's loops gather with them; torch writes a GatherND of them, which ONNX does not allow."""
    module = onnx2nn.load(
        parser.parse_model('<ir_version: 8, opset_import: ["": 18]> g (float[4, 3] x, int32[2] i) => (float[2, 3] y)'
                           "{ y = Gather (x, i) }")
    )  # fmt: skip
    inputs = (torch.arange(12.0).reshape(4, 3), torch.tensor([2, 0], dtype=torch.int32))
    check_travels(module, inputs, travels=("torch.onnx.export",))


_LENGTHS = np.array([1, 2], np.int32)
LOOPS = [
    case("LSTM", f32(6, 2, 3), f32(2, 20, 3), f32(2, 20, 5), f32(2, 40), None, f32(2, 2, 5), f32(2, 2, 5), f32(2, 15),
         hidden_size=5, direction="bidirectional", constant=(1, 2, 3, 7), outputs=3, note="peepholes"),
    case("LSTM", f32(6, 2, 3), f32(1, 20, 3), f32(1, 20, 5), None, _LENGTHS, hidden_size=5, constant=(1, 2), outputs=3,
         note="lengths"),
    case("GRU", f32(6, 2, 3), f32(2, 15, 3), f32(2, 15, 5), None, _LENGTHS, hidden_size=5, direction="bidirectional",
         linear_before_reset=1, constant=(1, 2), outputs=2, note="lengths"),
    case("GRU", f32(6, 2, 3), f32(1, 15, 3), f32(1, 15, 5), f32(1, 30), hidden_size=5, direction="reverse",
         constant=(1, 2, 3), note="resets before"),
    case("RNN", f32(6, 2, 3), f32(1, 5, 3), f32(1, 5, 5), f32(1, 10), hidden_size=5, clip=0.5, constant=(1, 2, 3),
         activations=["Softsign"], outputs=2, note="clipped"),
    next(case for case in quantized.CASES if case.operator == "DynamicQuantizeLSTM"),
]  # fmt: skip


@pytest.mark.parametrize("case", LOOPS, ids=str)
def test_a_loop_over_time_is_one_call_of_any_length(case: Case, tmp_path: Path) -> None:
    """Unrolled it would be right for the length alone that it was traced with."""
    model, feeds = onnxnode.model_of(case, onnxnode.revisions(case)[-1])
    dims = model.graph.input[0].type.tensor_type.shape.dim
    features = dims[2].dim_value
    dims[0].dim_param, dims[2].dim_param = "steps", "features"
    for output in model.graph.output:
        output.ClearField("type")
    first = tuple(torch.from_numpy(np.asarray(array)) for array in feeds.values())
    longer = (torch.cat([first[0], 0.5 * first[0][:-1]]), *first[1:])
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["fixed"] == {"features": features}
    assert sum("opaque" in node.meta for node in module.graph.nodes) == 1
    for inputs in (first, longer):
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    check_travels(module, first, longer)
    if not case.domain and case.note != "lengths":  # threads quantise on their own; made up lengths are longer
        again = tmp_path / "again.onnx"
        assert "agrees" in onnx2nn.export_onnx(module, again, example_inputs=first)
        assert case.operator in {node.op_type for node in onnx.load(again).graph.node}


def _label_by_numbers(model: onnx.ModelProto, name: str) -> None:
    """Replaces the labels of a classifier, where they are strings, which no exporter writes."""
    attributes = model.graph.node[0].attribute
    for attribute in [attribute for attribute in attributes if attribute.name == "classlabels_strings"]:
        attributes.remove(attribute)
        attributes.append(helper.make_attribute(name, range(len(attribute.strings))))


@pytest.mark.parametrize("case", [case for case in ml.CASES if "prob_a" in case.attributes], ids=str)
@pytest.mark.parametrize("outputs", [1, 2])
def test_coupled_probabilities_are_one_call(case: Case, outputs: int, tmp_path: Path) -> None:
    """They are iterated as often as data decide. It travels with the label alone too."""
    model, feeds = onnxnode.model_of(case, onnxnode.revisions(case)[-1])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    _label_by_numbers(model, "classlabels_ints")
    del model.graph.output[outputs:]
    module, (x,) = onnx2nn.load(model), feeds.values()
    first, longer = (torch.from_numpy(x),), (torch.from_numpy(np.concatenate([x, -x])),)
    for inputs in (first, longer):
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    check_travels(module, first, longer)
    again = tmp_path / "again.onnx"
    assert "agrees" in onnx2nn.export_onnx(module, again, example_inputs=first)
    assert [node.op_type for node in onnx.load(again).graph.node] == ["SVMClassifier"]


def test_trees_with_votes_for_both_of_two_classes_go_on_to_onnx(tmp_path: Path) -> None:
    """ONNX Runtime has no Where of booleans."""
    (case,) = (case for case in trees.CASES if case.note == "votes for both NONE")
    model, feeds = onnxnode.model_of(case, onnxnode.revisions(case)[-1])
    _label_by_numbers(model, "classlabels_int64s")
    inputs = tuple(torch.from_numpy(np.asarray(array)) for array in feeds.values())
    module, again = onnx2nn.load(model), tmp_path / "again.onnx"
    assert "agrees" in onnx2nn.export_onnx(module, again, example_inputs=inputs)
    check_same(run_onnxruntime(again.read_bytes(), inputs), run(module, inputs), "exported again")


@pytest.mark.parametrize("case", [*LOOPS[:1], case("RoiAlign", f32(2, 3, 9, 9), np.array([[0, 0, 4, 5], [1, 2, 8, 7]],
    np.float32), np.array([0, 1]), output_height=2, output_width=3)], ids=str)  # fmt: skip
def test_gradients_pass_what_is_kept_whole(case: Case) -> None:
    model, feeds = onnxnode.model_of(case, onnxnode.revisions(case)[-1])
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = f"n_{value.name}"
    for output in model.graph.output:
        output.ClearField("type")
    module = onnx2nn.load(model)
    inputs = tuple(torch.from_numpy(np.asarray(array)) for array in feeds.values())
    inputs[0].requires_grad_()
    asked = (inputs[0], *module.parameters())
    exported = torch.export.export(module, inputs).module()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    runs = [(module(*inputs), asked), (exported(*inputs), (inputs[0], *exported.parameters()))]
    runs.append((compiled(*inputs), asked))
    firsts = [(outputs[0] if isinstance(outputs, tuple) else outputs, wanted) for outputs, wanted in runs]
    expected, *others = (torch.autograd.grad(first.square().sum(), wanted) for first, wanted in firsts)
    assert all(gradient.abs().max() > 0 for gradient in expected)
    for gradients in others:
        check_same(gradients, expected, "gradients")


def test_what_is_kept_whole_is_loaded_in_another_process(tmp_path: Path) -> None:
    model, feeds = onnxnode.model_of(LOOPS[0], 14)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "steps"
    inputs = tuple(torch.from_numpy(np.asarray(array)) for array in feeds.values())
    module = onnx2nn.load(model)
    for name in ("m.pt2", "m.torchscript"):
        assert "import onnx2nn.operators" in onnx2nn.save(module, tmp_path / name, example_inputs=inputs)
    torch.save(inputs, tmp_path / "inputs.pt")
    program = """
import torch, onnx2nn.operators
inputs = torch.load("inputs.pt")
results = [torch.export.load("m.pt2").module()(*inputs), torch.jit.load("m.torchscript")(*inputs)]
torch.save([[y.detach() for y in result] for result in results], "results.pt")
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    for result in torch.load(tmp_path / "results.pt"):
        check_same(tuple(result), run(module, inputs), "in another process")


PACKED = {(case.operator, case.attributes.get("bits")): case for case in packed_weights.CASES}


@pytest.mark.parametrize("case", PACKED.values(), ids=str)
def test_packed_weights_can_be_exported_again(case: Case, tmp_path: Path) -> None:
    old_oracles.skip_fatal(case, 1)
    model, feeds = onnxnode.model_of(case, 1)
    module = onnx2nn.load(model)
    assert "agrees" in onnx2nn.export_onnx(module, tmp_path / "again.onnx", example_inputs=list(feeds.values()))


@pytest.mark.parametrize("nodes", [
    'y = BitShift <direction = "LEFT"> (u, two)',
    'y = BitShift <direction = "RIGHT"> (u, two)',
    "n = BitwiseNot (u) y = BitwiseOr (n, two)",
    "p = Mul (u, two) y = Add (p, u)",
    "y = Div (u, two)",
    "y = Mod (u, two)",
    "y = Max (u, two)",
])  # fmt: skip
def test_numbers_of_uint64_travel(nodes: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (int64[N] x) => (int64[N] z) <uint64 two = {{2}}> {{ u = Cast <to = 13> (x) {nodes} z = Cast <to = 7> (y) }}
    """)
    first, other = ((torch.tensor([-(2**63), 2**62 + 5, 3, -1, *range(n)]),) for n in (1, 3))
    module = onnx2nn.load(model)
    for inputs in (first, other):
        check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "against ONNX Runtime")
    check_travels(module, first, other, travels=("torch.export", "torch.compile", "torch.jit.trace"))


WIDE_SUMS = {
    "int32": "y = ConvInteger <pads = [1, 1, 1, 1]> (x, w, zx, zw)",
    "uint8": "y = QLinearConv <pads = [1, 1, 1, 1]> (x, one, zx, w, one, zw, large, zy, bias)",
}


_SIGNED = pytest.mark.skipif(
    installed.version("onnxruntime") < (1, 24), reason="ONNX Runtime before 1.24 has no ConvInteger of signed weights"
)


@pytest.mark.parametrize(
    ("dtype", "channels", "dynamo"),
    [
        pytest.param("int32", 80, True, marks=_SIGNED),
        ("int32", 1200, False),
        ("uint8", 80, False),
        ("uint8", 1200, True),
    ],
)
def test_wide_sums_of_convolutions_need_no_wide_floats(dtype: str, channels: int, dynamo: bool, tmp_path: Path) -> None:
    """ONNX Runtime has no convolution in float64, and float32 does not hold these sums."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        graph (uint8[1, {channels}, 5, 5] x) => ({dtype}[1, 3, 5, 5] y)
        <uint8 zx = {{3}}, uint8 zy = {{128}}, int8 zw = {{1}}, float one = {{1}}, float large = {{3e5}},
         int32[3] bias = {{7, -90000, 5}}>
        {{ {WIDE_SUMS[dtype]} }}""")
    numbers = np.random.default_rng(0)
    weights = numbers.integers(-128, 128, (3, channels, 3, 3)).astype(np.int8)
    weights[0], weights[1] = 127, -128
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = torch.from_numpy(numbers.integers(200, 256, (1, channels, 5, 5)).astype(np.uint8))
    module = onnx2nn.load(model)
    path = tmp_path / "again.onnx"
    if dynamo:
        onnx2nn.export_onnx(module, path, example_inputs=[x])
    else:
        torch.onnx.export(module, (x,), str(path), dynamo=False)
    (y,) = expected = run(module, (x,))
    assert dtype == "uint8" or y.abs().max() > 1 << 24
    assert y.unique().numel() > 4
    check_same(run_onnxruntime(path.read_bytes(), (x,)), expected, "in ONNX Runtime")


@pytest.mark.parametrize("weights", ["", ", w"])
@pytest.mark.parametrize("shape", ["n", "n, 4"])
@pytest.mark.parametrize("loss", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_losses_of_samples_are_exported_with_their_shape(loss: str, shape: str, weights: str, tmp_path: Path) -> None:
    """Torch's newer exporter takes them for a single number, which has no axis 1 to add."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[{shape.replace("n", "n, 5")}] x, int64[{shape}] t) => (float[{shape.replace("n", "n, 1")}] y)
        <int64[1] axis = {{1}}, float[5] w = {{0.5, 1, 2, 3, 4}}>
        {{ z = {loss} <reduction = "none", ignore_index = 3> (x, t{weights}) y = Unsqueeze (z, axis) }}""")
    module, path = onnx2nn.load(model), tmp_path / "again.onnx"
    assert "agrees" in onnx2nn.export_onnx(module, path)
    rest = (4,) if "4" in shape else ()
    inputs = torch.randn(7, 5, *rest), torch.arange(7 * (rest or (1,))[0]).reshape(7, *rest) % 5
    expected = run_onnxruntime(model.SerializeToString(), inputs)
    check_same(run(module, inputs), expected, "against ONNX Runtime")
    check_same(run_onnxruntime(path.read_bytes(), inputs), expected, "written again")


@pytest.mark.parametrize("dynamo", [True, False])
def test_numbers_beside_float64_keep_their_value(dynamo: bool, tmp_path: Path) -> None:
    """Torch's newer exporter rounds them to float32: 96 / 1.2 is 79 then, rounded down, as a pyramid's sizes are."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[4] x) => (double[4] more, bool[4] over) {
            by = Constant <value = double {1.2}> ()
            wide = Cast <to = 11> (x)
            scaled = Div (wide, by)
            lower = Floor (scaled)
            more = Add (lower, by)
            over = Less (by, wide)
        }""")
    module, x = onnx2nn.load(model), torch.tensor([96.0, 60, 1.2, 7])
    names = {} if dynamo else {"input_names": ["x"]}
    torch.onnx.export(module, (x,), tmp_path / "again.onnx", dynamo=dynamo, verbose=False, **names)
    again = onnxruntime.InferenceSession(tmp_path / "again.onnx").run(None, {"x": x.numpy()})
    for found, wanted in zip(again, module(x), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())
    assert module(x)[0][0] == 81.2
