"""The comparison of whole models: what counts as equal, and which inputs are tried."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import onnx2nn
from onnx2nn.errors import InputError, VerificationError
from onnx2nn.importing.inputs import InputSpec, example_inputs, input_specs, resolve_shapes
from onnx2nn.reading import reader
from onnx2nn.verification.oracle import Oracle
from onnx2nn.verification.outputs import Verification, short_floats
from onnx2nn.verification.value_comparison import OutputComparison, compare

ADD = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[batch, 3] x, float[batch, 3] y) => (float[batch, 3] z) { z = Add(x, y) }
"""

PAD_AND_POOL = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[1, 1, 2, 2] x) => (float[1, 1, 3, 3] z) {
    pads = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()
    y = Pad (x, pads)
    z = MaxPool <kernel_shape = [2, 2]> (y)
}
"""


def _one(actual: object, expected: object) -> OutputComparison:
    (comparison,) = compare(["y"], [actual], [expected])
    return comparison


def test_equal_is_ok() -> None:
    array = np.linspace(-3, 3, 100, dtype=np.float32)
    comparison = _one(torch.from_numpy(array), array)
    assert comparison.ok and comparison.mse == 0 and comparison.max_difference == 0
    assert str(comparison) == "y: shape [100], mse 0, max abs difference 0"


def test_measures_are_what_they_say() -> None:
    comparison = _one(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    assert comparison.mse == 0.125 and comparison.max_difference == 0.5 and not comparison.ok


def test_one_bad_element_among_millions_is_found() -> None:
    expected = np.ones(10_000_000, np.float32)
    actual = expected.copy()
    actual[1234567] = 1.5
    comparison = _one(actual, expected)
    assert comparison.below_mse and not comparison.ok


def test_large_values_may_round() -> None:
    expected = np.full(100, 1e4, np.float32)
    comparison = _one(np.nextafter(expected, np.float32(np.inf)), expected)
    assert not comparison.below_mse and comparison.ok
    assert not _one(expected * np.float32(1.0005), expected).ok


def test_half_precision_may_round_in_its_last_place() -> None:
    expected = np.full(100, 1.0, np.float16)
    actual = expected.copy()
    actual[::2] = np.nextafter(np.float16(1), np.float16(2))
    assert _one(torch.from_numpy(actual), expected).ok
    assert not _one(expected + np.float16(0.01), expected).ok


def test_onnxruntime_leaves_a_rest_where_sigmoid_is_0() -> None:
    """Detectors of text give hardly anything else for an image without any."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2000] x) => (float[2000] y) { y = Sigmoid (x) }'
    inputs = {"x": np.linspace(-30, -8, 2000, dtype=np.float32)}
    assert onnx2nn.verify(onnx.parser.parse_model(text), inputs=inputs).ok


def test_nan_and_infinity_must_stand_at_the_same_places() -> None:
    expected = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert _one(expected.copy(), expected).ok
    for index, value in ((0, 0.0), (1, -np.inf), (2, np.nan), (3, np.nan), (3, np.inf)):
        actual = expected.copy()
        actual[index] = value
        assert not _one(actual, expected).ok


def test_integers_are_exact() -> None:
    expected = np.array([2**62, 5], np.int64)
    assert _one(torch.from_numpy(expected), expected).ok
    assert not _one(expected + np.array([1, 0]), expected).ok


def test_text_is_compared() -> None:
    expected = np.array(["a", "b"], dtype=object)
    assert _one(np.array(["a", "b"]), expected).ok
    assert not _one(np.array(["a", "c"]), expected).ok


@pytest.mark.parametrize("actual", [np.zeros((2, 1), np.float32), np.zeros(2, np.float64), np.zeros(2, np.int32)])
def test_shape_and_dtype_count(actual: np.ndarray) -> None:
    comparison = _one(actual, np.zeros(2, np.float32))
    assert not comparison.ok and "found with" in str(comparison)


def test_sequences_are_compared_element_by_element() -> None:
    expected = [np.zeros(2, np.float32), np.ones(3, np.float32)]
    assert [c.name for c in compare(["s"], [[torch.zeros(2), torch.ones(3)]], [expected])] == ["s[0]", "s[1]"]
    assert not compare(["s"], [[torch.zeros(2)]], [expected])[0].ok


def test_number_of_outputs_counts() -> None:
    with pytest.raises(VerificationError, match="1 outputs where the model has 2"):
        compare(["a", "b"], [1], [1, 2])


def test_open_batch_is_tried_twice() -> None:
    result = onnx2nn.verify(onnx.parser.parse_model(ADD), torch.add)
    assert result.ok and [output.shape for output in result.outputs] == [(1, 3), (2, 3)]
    assert str(result).splitlines()[-1] == "OK mse < 1e-7"


def test_wrong_module_is_a_mismatch() -> None:
    result = onnx2nn.verify(onnx.parser.parse_model(ADD), torch.sub)
    assert not result.ok and result.verdict == "MISMATCH in 1 of 1 outputs: z"


def test_runs_use_different_inputs() -> None:
    seen: list[torch.Tensor] = []

    def module(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x + y

    assert onnx2nn.verify(onnx.parser.parse_model(ADD), module, input_shapes={"x": [4, 3]}, runs=3).ok
    assert [x.shape[0] for x in seen] == [4, 4, 4]
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


def test_own_inputs() -> None:
    x = np.ones((5, 3), np.float32)
    result = onnx2nn.verify(onnx.parser.parse_model(ADD), torch.add, inputs={"y": x, "x": x})
    assert result.ok and result.outputs[0].shape == (5, 3)
    with pytest.raises(InputError, match="No array was given for input 'y'"):
        onnx2nn.verify(onnx.parser.parse_model(ADD), torch.add, inputs={"x": x})


def test_failing_module_is_named() -> None:
    def module(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("shapes clash")

    with pytest.raises(VerificationError, match="The imported module failed: RuntimeError: shapes clash"):
        onnx2nn.verify(onnx.parser.parse_model(ADD), module)


def test_batch_that_the_file_only_claims_is_left_out() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[batch, 4] x) => (float[a, b] y) <int64[2] shape = {1, 4}> { y = Reshape(x, shape) }
        """
    )
    result = onnx2nn.verify(model, lambda x: x.reshape(1, 4))
    assert result.ok and [output.shape for output in result.outputs] == [(1, 4)]
    assert "batch size 2 left out" in result.notes[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8e4m3fn", "float8e5m2"])
def test_types_that_numpy_lacks_go_in_and_out_of_onnxruntime(dtype: str) -> None:
    number = getattr(onnx.TensorProto, dtype.upper())
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 10, opset_import: ["" : 21]>
        graph ({dtype}[n, 3] x, int64[1] y) => ({dtype}[n, 3] z, float[n, 3] w)
        {{ f = Cast <to = 1> (x) i = Cast <to = 1> (y) w = Add (f, i) z = Cast <to = {number}> (w) }}
        """
    )
    result = onnx2nn.verify(model)
    assert result.ok and result.oracle.startswith("ONNX Runtime")
    assert onnx2nn.verify_nodes(model).ok

    def wrong(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.float() + y + 1).to(x.dtype), x.float() + y

    outputs = onnx2nn.verify(model, wrong).outputs
    assert {output.name: output.ok for output in outputs} == {"z": False, "w": True}


@pytest.mark.pinned("onnx")  # the reference of 1.17 computes nothing with bfloat16
def test_model_beyond_onnxruntime_is_run_by_the_reference() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        graph (bfloat16[3] x) => (bfloat16[3] y) { y = Neg(x) }
        """
    )
    try:
        result = onnx2nn.verify(model, torch.neg)
    except VerificationError as error:  # both oracles may lack the type; then that is what must be said
        assert "ONNX Runtime" in str(error)
    else:
        assert result.ok


@pytest.mark.parametrize("kind", ["int64", "float", "float16"])
def test_token_ids_stay_inside_their_table(kind: str) -> None:
    """Keras gives its Embedding floats."""
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        graph ({kind}[batch, n] ids, float[3, 2] table) => (float[a, b, c] y)
        {{ wide = Cast <to = 6> (ids) y = Gather(table, wide) }}
        """
    )
    specs = input_specs(ir.serde.deserialize_model(model))
    assert specs[0].limit == 3 and specs[1].limit is None
    ids = example_inputs(specs, {"ids": [8, 32], "table": [3, 2]})["ids"]
    assert ids.dtype == specs[0].dtype.numpy() and set(ids.ravel()) == {0, 1, 2}


def test_token_ids_of_fused_embeddings_stay_inside_their_tables() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        graph (int32[b, n] ids, int32[b, n] segments, int32[b, n] positions, int32[b, n] other,
               float[9, 4] words, float[5, 4] places, float[2, 4] kinds, float[4] gamma, float[4] beta,
               uint8[8, 7] codes, float[8, 1] scales) => (float[b, n, 4] y, float[b, n, 8] z)
        {
            y = com.microsoft.EmbedLayerNormalization (ids, segments, words, places, kinds, gamma, beta, , positions)
            z = com.microsoft.GatherBlockQuantized <bits = 8, gather_axis = 1, quantize_axis = 0> (codes, other, scales)
        }
        """
    )
    limits = {spec.name: spec.limit for spec in input_specs(ir.serde.deserialize_model(model))}
    assert [limits[name] for name in ("ids", "segments", "positions", "other", "words")] == [9, 2, 5, 7, None]


@pytest.mark.parametrize("dtype", [d for d in ir.DataType if d is not ir.DataType.UNDEFINED], ids=lambda d: d.name)
def test_every_dtype_has_examples(dtype: ir.DataType) -> None:
    spec = InputSpec("x", dtype, (64,))
    first = example_inputs([spec], {"x": [64]}, seed=1)["x"]
    assert first.shape == (64,) and first.dtype == (object if dtype == ir.DataType.STRING else dtype.numpy())
    again = example_inputs([spec], {"x": [64]}, seed=1)["x"]
    other = example_inputs([spec], {"x": [64]}, seed=2)["x"]
    assert first.tolist() == again.tolist() and first.tolist() != other.tolist()


def test_masks_let_everything_through() -> None:
    spec = InputSpec("attention_mask", ir.DataType.INT64, (2, 5))
    assert (example_inputs([spec], {"attention_mask": [2, 5]})["attention_mask"] == 1).all()


def test_shapes_are_completed() -> None:
    specs = [InputSpec("x", ir.DataType.FLOAT, ("n", 3, "t")), InputSpec("y", ir.DataType.FLOAT, ("t",))]
    assert resolve_shapes(specs, {"x": [4, 3, 7]}) == {"x": (4, 3, 7), "y": (7,)}
    with pytest.raises(InputError, match=r"Input x.* has dynamic dimensions"):
        resolve_shapes(specs)
    with pytest.raises(InputError, match="does not say the shape"):
        resolve_shapes([InputSpec("x", ir.DataType.FLOAT, None)])
    with pytest.raises(InputError, match="is not a tensor"):
        resolve_shapes([InputSpec("x", None, None)])


def test_oracle_keeps_a_pad_in_front_of_a_pool() -> None:
    """ONNX Runtime 1.31's Pad_Fusion turns the zeros around the image into the pool's own -inf."""
    (pooled,) = Oracle(onnx.parser.parse_model(PAD_AND_POOL)).run({"x": -np.ones((1, 1, 2, 2), np.float32)})
    assert pooled.ravel().tolist() == [0, 0, 0, 0, -1, 0, 0, 0, 0]


def test_what_is_computed_in_half_precision_is_compared_to_its_rounding() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[n,2] x, int64[m] words) => (float[n,2] half, float[n,2] stored, float[m,2] looked_up)
        <float16[2,2] weight = {15360, 16384, 16896, 17408}> {
            short = Cast <to = 10> (x) product = MatMul(short, weight) half = Cast <to = 1> (product)
            wide = Cast <to = 1> (weight) stored = MatMul(x, wide)
            rows = Gather(weight, words) looked_up = Cast <to = 1> (rows)
        }"""
    )
    short = short_floats(reader.read(model))
    assert short == {"half": "float16", "looked_up": "float16"}
    expected = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    names = ["half", "stored"]
    half, stored = compare(names, [expected * np.float32(1.0005)] * 2, [expected] * 2, short)
    assert half.ok
    assert not stored.ok
    assert not compare(names[:1], [expected * np.float32(1.01)], [expected], short)[0].ok
    assert "rounding of float16, in which" in Verification("", [half]).verdict
