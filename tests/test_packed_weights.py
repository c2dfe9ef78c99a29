"""Weights of few bits: packed as in the file, as floats that train, as torchao's tensors, beside ONNX Runtime."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import onnx2nn
from onnx2nn.errors import InputError

REPEATABLE = settings(derandomize=True)

TOLERANCES = {np.float32: 3e-6, np.float16: 2e-3}
"""The largest difference from ONNX Runtime, relative to the largest element: rounding of sums of 600 products."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A product with packed weights.

    Attributes:
        zero_points: `"absent"`, `"packed"` or `"floats"`.
        groups: whether columns have a group of their own (g_idx).
    """

    rows: int
    columns: int
    block: int
    bits: int
    zero_points: str
    groups: bool
    bias: bool
    half: bool
    seed: int

    @property
    def dtype(self) -> Any:
        return np.float16 if self.half else np.float32

    def model(self, level: int) -> onnx.ModelProto:
        draw = np.random.default_rng(self.seed)
        blocks = -(-self.columns // self.block)
        weights: dict[str, np.ndarray | None] = {
            "proj.weight_Q4": draw.integers(0, 256, (self.rows, blocks, self.block * self.bits // 8), np.uint8),
            "proj.weight_scales": draw.uniform(0.01, 0.1, (self.rows, blocks)).astype(self.dtype),
            "proj.weight_zero_points": self._zero_points(draw, blocks),
            "proj.g_idx": draw.integers(0, blocks, self.columns).astype(np.int32) if self.groups else None,
            "proj.bias": draw.standard_normal(self.rows).astype(self.dtype) if self.bias else None,
        }
        names = [name if value is not None else "" for name, value in weights.items()]
        while not names[-1]:
            names.pop()
        sizes = dict(K=self.columns, N=self.rows, bits=self.bits, block_size=self.block, accuracy_level=level)
        node = helper.make_node("MatMulNBits", ["x", *names], ["y"], "proj_Q4", domain="com.microsoft", **sizes)
        return _model(
            [node], {name: value for name, value in weights.items() if value is not None}, self.x(0), self.rows
        )

    def _zero_points(self, draw: np.random.Generator, blocks: int) -> np.ndarray | None:
        if self.zero_points == "packed":
            return draw.integers(0, 256, (self.rows, -(-blocks * self.bits // 8)), np.uint8)
        return (
            draw.uniform(0, 1 << self.bits, (self.rows, blocks)).astype(self.dtype)
            if self.zero_points == "floats"
            else None
        )

    def x(self, lines: int) -> np.ndarray:
        draw = np.random.default_rng(self.seed + 1)
        return draw.standard_normal((lines, self.columns)).astype(self.dtype)


def _model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], x: np.ndarray, columns: int) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["n", x.shape[1]])],
        [helper.make_tensor_value_info("y", kind, ["n", columns])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def _check(found: torch.Tensor, expected: np.ndarray) -> None:
    assert found.dtype == torch.from_numpy(expected).dtype
    scale = np.abs(expected.astype(np.float32)).max(initial=1e-6)
    difference = np.abs(found.detach().float().numpy() - expected.astype(np.float32)).max(initial=0)
    assert difference <= TOLERANCES[expected.dtype.type] * scale


@pytest.mark.parametrize("bits", [4, 8])
def test_activations_are_rounded_also_where_the_bias_is_computed(bits: int) -> None:
    """ONNX Runtime's optimiser writes such products of a quantised model: their biases stay behind DequantizeLinear."""
    product = Product(8, 64, 32, bits, "packed", groups=False, bias=True, half=False, seed=0)
    model = product.model(4)
    bias = next(value for value in model.graph.initializer if value.name == "proj.bias")
    model.graph.initializer.remove(bias)
    integers = np.round(numpy_helper.to_array(bias) * 100).astype(np.int32)
    model.graph.initializer.append(numpy_helper.from_array(integers, "proj.bias_quantized"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.01), "proj.bias_scale"))
    computed = helper.make_node("DequantizeLinear", ["proj.bias_quantized", "proj.bias_scale"], ["proj.bias"])
    model.graph.node.insert(0, computed)
    x = product.x(3)
    _check(onnx2nn.load(model)(torch.from_numpy(x)), _reference(model, x))


@st.composite
def products(draw: st.DrawFn) -> Product:
    bits = draw(st.sampled_from([2, 4, 8]))
    block = draw(st.sampled_from([16, 32, 64, 128, 256]))
    columns = draw(st.integers(1, 2 * block + 1))
    groups = bits == 4 and draw(st.booleans())
    kinds = ["absent", "floats"] if groups else ["absent", "packed"] if bits == 8 else ["absent", "packed", "floats"]
    return Product(
        rows=draw(st.integers(1, 40)),
        columns=columns,
        block=block,
        bits=bits,
        zero_points=draw(st.sampled_from(kinds)),  # ONNX Runtime has no kernel for 8 bits with floats
        groups=groups,
        bias=draw(st.booleans()),
        half=draw(st.booleans()),
        seed=draw(st.integers(0, 999)),
    )


@pytest.mark.pinned("onnxruntime")  # 1.23 has no kernel for 2 bits
@settings(REPEATABLE, max_examples=150)
@given(products(), st.sampled_from([0, 1, 4]), st.integers(1, 5))
def test_packed_weights_compute_what_onnx_runtime_does(product: Product, level: int, lines: int) -> None:
    """Of level 4 too, where activations are rounded to int8: by the same formula, so that no step falls otherwise."""
    model, x = product.model(level), product.x(lines)
    module = onnx2nn.load(model)
    _check(module(torch.from_numpy(x)), _reference(model, x))
    packed = {name: value for name, value in module.state_dict().items() if value.dtype == torch.uint8}
    assert any(value.nbytes == product.rows * -(-product.columns // product.block) * product.block * product.bits // 8
               for value in packed.values())  # fmt: skip


@settings(REPEATABLE, max_examples=40)
@given(st.integers(0, 999), st.sampled_from([16, 32, 64, 128, 256]), st.sampled_from([4, 8]))
def test_activations_at_a_half_of_a_step_fall_as_onnx_runtimes(seed: int, block: int, bits: int) -> None:
    """Each is the number nearest to a half of a step, where the last bit of each operation decides."""
    product = Product(40, 2 * block, block, bits, "absent", False, False, False, seed)
    x = product.x(64).reshape(64, 2, block)
    largest = np.abs(x).max(-1, keepdims=True)
    halves = (np.floor(x * 127 / largest) + np.float32(0.5)) * largest / np.float32(127)
    x = np.where(np.abs(x) == largest, x, halves).astype(np.float32).reshape(64, -1)
    model = product.model(4)
    _check(onnx2nn.load(model)(torch.from_numpy(x)), _reference(model, x))


@pytest.mark.pinned("onnxruntime")  # 1.23 has no kernel for 2 bits
@settings(REPEATABLE, max_examples=150)
@given(products(), st.sampled_from([0, 4]))
def test_dequantised_weights_are_those_of_a_linear_layer(product: Product, level: int) -> None:
    model, x = product.model(level), product.x(3)
    module: Any = onnx2nn.load(model, quantized="dequantize")
    assert module.meta["onnx2nn"]["dequantized"]["kept"] == []
    assert [type(layer) for layer in module.children()] == [nn.Linear]
    _check(module(torch.from_numpy(x)), _reference(product.model(0), x))


@settings(REPEATABLE, max_examples=100)
@given(products())
def test_torchao_has_the_same_weights_or_a_reason_is_given(product: Product) -> None:
    pytest.importorskip("torchao", reason="an optional package")
    model, x = product.model(0), torch.from_numpy(product.x(3))
    module: Any = onnx2nn.load(model, quantized="torchao")
    floats: Any = onnx2nn.load(model, quantized="dequantize")
    torch.testing.assert_close(module(x), floats(x), rtol=0, atol=0)
    done = module.meta["onnx2nn"]["torchao"]
    assert len(done["weights"]) + len(done["floats"]) == 1
    fits = not product.groups and product.columns % product.block == 0
    if product.zero_points != "floats":
        assert bool(done["weights"]) == fits
    layer = next(module.children())
    assert hasattr(layer.weight, "dequantize") == bool(done["weights"]) or not done["weights"]
    assert torch.equal(layer.weight.dequantize() if done["weights"] else layer.weight, next(floats.children()).weight)


@settings(REPEATABLE, max_examples=50)
@given(products())
def test_activations_get_the_gradients_of_the_float_layer(product: Product) -> None:
    """With rounded activations too: the gradient passes the rounding."""
    floats: Any = onnx2nn.load(product.model(0), quantized="dequantize")
    terms = next(floats.children()).weight.detach().float().abs().sum(0)  # what is added up, may cancel
    expected = None
    for module in (floats, onnx2nn.load(product.model(0)), onnx2nn.load(product.model(4))):
        x = torch.from_numpy(product.x(3)).requires_grad_()
        module(x).float().sum().backward()
        assert x.grad is not None
        expected = x.grad if expected is None else expected
        assert bool(((x.grad - expected).float().abs() <= TOLERANCES[product.dtype] * terms).all())
    assert expected is not None and bool(expected.any())


def test_state_of_packed_weights_travels(tmp_path: Path) -> None:
    product = Product(24, 64, 32, 4, "packed", False, True, False, 0)
    module, x = onnx2nn.load(product.model(4)), torch.from_numpy(product.x(3))
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = onnx2nn.load(dataclasses.replace(product, seed=7).model(4))
    assert not torch.equal(other(x), module(x))
    other.load_state_dict(torch.load(tmp_path / "state.pt"), strict=True)
    assert torch.equal(other(x), module(x))


def test_small_activations_are_zero_and_nan_stays() -> None:
    product = Product(8, 32, 32, 4, "absent", False, False, False, 0)
    module = onnx2nn.load(product.model(4))
    x = torch.zeros(3, 32)
    x[1], x[2, 3] = 1e-40, torch.nan
    y = module(x)
    assert not y[:2].any() and bool(y[2].isnan().all())


def test_verify_compares_float_activations_with_float_activations(tmp_path: Path) -> None:
    """A dequantised module differs by 1e-2 from ONNX Runtime, which rounds the file's activations."""
    product = Product(24, 64, 32, 4, "absent", False, False, False, 0)
    path = tmp_path / "m.onnx"
    onnx.save(product.model(4), path, save_as_external_data=True, size_threshold=0)
    x = product.x(3)
    floats: Any = onnx2nn.load(path, quantized="dequantize")
    apart = np.abs(floats(torch.from_numpy(x)).detach().numpy() - _reference(product.model(4), x)).max()
    assert apart > 1e-3 * np.abs(_reference(product.model(4), x)).max()
    sources: list[Any] = [path, product.model(4), product.model(4).SerializeToString()]
    for source in sources:
        for module in (floats, onnx2nn.load(path)):
            assert onnx2nn.verify(source, module, inputs={"x": x}).ok
            assert onnx2nn.verify_nodes(source, module, inputs={"x": x}).ok
    wrong: Any = onnx2nn.load(path, quantized="dequantize")
    with torch.no_grad():
        next(wrong.parameters()).mul_(1.01)
    assert not onnx2nn.verify(path, wrong, inputs={"x": x}).ok


def _bnb4(quant_type: int, transposed: int) -> tuple[onnx.ModelProto, np.ndarray]:
    draw = np.random.default_rng(0)
    rows, columns, block = (24, 64, 32)
    weights = {
        "proj.weight": draw.integers(0, 256, rows * columns // 2, np.uint8),
        "proj.absmax": draw.uniform(0.1, 1, rows * columns // block).astype(np.float32),
    }
    sizes = dict(K=columns, N=rows, block_size=block, quant_type=quant_type, transB=transposed)
    node = helper.make_node("MatMulBnb4", ["x", *weights], ["y"], "proj", domain="com.microsoft", **sizes)
    x = draw.standard_normal((3, columns if transposed else rows)).astype(np.float32)
    return _model([node], weights, x, rows if transposed else columns), x


@pytest.mark.parametrize("quant_type", [0, 1])
def test_codes_of_bitsandbytes_become_floats(quant_type: int) -> None:
    model, x = _bnb4(quant_type, 1)
    module: Any = onnx2nn.load(model, quantized="dequantize")
    assert [type(layer) for layer in module.children()] == [nn.Linear]
    _check(module(torch.from_numpy(x)), _reference(model, x))
    pytest.importorskip("torchao", reason="an optional package")
    done = onnx2nn.load(model, quantized="torchao").meta["onnx2nn"]["torchao"]
    assert done == {
        "weights": [],
        "floats": {"proj.weight_float": "its integers are no matrix with scales along the rows"},
    }


def test_the_transposed_product_of_bitsandbytes() -> None:
    """ONNX Runtime's CPU has no kernel for it; the packed form is the row's, which its own tests define."""
    model, x = _bnb4(1, 0)
    floats, kept = (onnx2nn.load(model, quantized=form)(torch.from_numpy(x)) for form in ("dequantize", "keep"))
    torch.testing.assert_close(floats, kept)


@pytest.mark.pinned("onnxruntime")  # 1.23 refuses tables of 2 bits, and packs zero points across the rows
@settings(REPEATABLE, max_examples=60)
@given(st.sampled_from([2, 4, 8]), st.sampled_from([16, 32, 64]), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_packed_tables_become_embeddings(bits: int, block: int, blocks: int, shifted: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    words, size = 7, block * blocks
    weights = {
        "table": draw.integers(0, 256, (words, size * bits // 8), np.uint8),
        "table_scales": draw.uniform(0.01, 0.1, (words, blocks)).astype(np.float32),
    }
    if shifted:
        weights["table_zero_points"] = draw.integers(0, 256, (words, -(-blocks * bits // 8)), np.uint8)
    data, *others = weights
    node = helper.make_node(
        "GatherBlockQuantized", [data, "x", *others], ["y"], "table", domain="com.microsoft",
        bits=bits, block_size=block, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    x = draw.integers(0, words, (3, 5))
    model = _model([node], weights, x, size)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5, size]))
    module: Any = onnx2nn.load(model, quantized="dequantize")
    assert [type(layer) for layer in module.children()] == [nn.Embedding]
    expected = _reference(model, x)
    _check(module(torch.from_numpy(x)), expected)
    _check(onnx2nn.load(model)(torch.from_numpy(x)), expected)
    pytest.importorskip("torchao", reason="an optional package")
    done: Any = onnx2nn.load(model, quantized="torchao")
    assert len(done.meta["onnx2nn"]["torchao"]["weights"]) == 1
    assert torch.equal(done(torch.from_numpy(x)), module(torch.from_numpy(x)))


@settings(REPEATABLE, max_examples=60)
@given(
    st.sampled_from([np.int8, np.uint8]), st.sampled_from(["number", "columns", "blocks"]), st.booleans(), st.booleans()
)
def test_weights_of_8_bits_are_torchaos_too(dtype: Any, scales: str, shifted: bool, transposed: bool) -> None:
    pytest.importorskip("torchao", reason="an optional package")
    draw = np.random.default_rng(0)
    rows, columns, block = (24, 64, 16)
    limits = np.iinfo(dtype)
    shape = {"number": (), "columns": (rows,), "blocks": (columns // block, rows)}[scales]
    weights = {
        "proj.weight_quantized": draw.integers(limits.min, limits.max, (columns, rows), dtype, endpoint=True),
        "proj.scale": draw.uniform(0.01, 0.1, shape).astype(np.float32),
    }
    if shifted:
        weights["proj.zero_point"] = draw.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    axis = {"number": 1, "columns": 1, "blocks": 0}[scales]
    if transposed:
        weights = {name: np.ascontiguousarray(value.T) for name, value in weights.items()}
        axis = 1 - axis
    options = {"axis": axis, **({"block_size": block} if scales == "blocks" else {})}
    nodes = [helper.make_node("DequantizeLinear", list(weights), ["w"], **options)]
    nodes.append(helper.make_node("Gemm", ["x", "w"], ["y"], transB=int(transposed)))
    x = draw.standard_normal((3, columns)).astype(np.float32)
    model = _model(nodes, weights, x, rows)
    model.opset_import[0].version = 21
    module: Any = onnx2nn.load(model, quantized="torchao")
    assert module.meta["onnx2nn"]["torchao"] == {"weights": ["proj.weight"], "floats": {}}
    assert type(module.proj.weight).__name__ == "IntxUnpackedToInt8Tensor"
    y = module(torch.from_numpy(x))
    assert torch.equal(y, onnx2nn.load(model, quantized="dequantize")(torch.from_numpy(x)))
    session = onnxruntime.SessionOptions()
    session.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(model.SerializeToString(), session, providers=["CPUExecutionProvider"])
    _check(y, np.asarray(plain.run(None, {"x": x})[0]))


def test_torchao_reads_weights_that_have_elements() -> None:
    product = Product(24, 64, 32, 4, "absent", False, False, False, 0)
    with pytest.raises(InputError, match="quantized='torchao' needs weights with elements"):
        onnx2nn.load(product.model(0), quantized="torchao", device="meta")


def _any_batch(operator: str, inputs: list[str], weights: dict[str, np.ndarray], **attributes: Any) -> onnx.ModelProto:
    """Returns a product of ONNX Runtime's, of `(batch, length, channels)`, with the rectified input added to it."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node(operator, ["r", *inputs], ["p"], domain="com.microsoft", **attributes),
        helper.make_node("Add", ["p", "r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "any_batch",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", "channels"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("operator", ["MatMulNBits", "MatMulBnb4"])
def test_shapes_of_products_are_known(operator: str) -> None:
    """Data decide nothing about the shape of a product; a wrong number of channels is an error at the entry."""
    codes = np.random.default_rng(0).integers(0, 256, (16, 1, 8), np.uint8)
    scales = np.linspace(0.1, 0.2, 16, dtype=np.float32)
    if operator == "MatMulNBits":
        model = _any_batch(operator, ["w", "s"], {"w": codes, "s": scales[:, None]}, K=16, N=16, bits=4, block_size=16)
    else:
        weights = {"w": codes.reshape(-1), "s": scales}
        model = _any_batch(operator, ["w", "s"], weights, K=16, N=16, block_size=16, quant_type=1)
    with pytest.warns(UserWarning, match="channels is 16"):
        module = onnx2nn.load(model)
    assert [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]] == ["channels == 16"]
    assert "by_data" not in module.code
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    _check(module(x), session.run(None, {"x": x.numpy()})[0])
    with pytest.raises(ValueError, match="channels == 16"):
        module(x[..., :15])
    program = torch.export.export(
        module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    )
    assert torch.equal(program.module()(x[:1, :2]), module(x[:1, :2]))


def test_shapes_of_rows_of_packed_tables_are_known() -> None:
    codes = np.random.default_rng(0).integers(0, 256, (9, 8), np.uint8)
    scales = np.linspace(0.1, 0.2, 9, dtype=np.float32)[:, None]
    nodes = [
        helper.make_node("GatherBlockQuantized", ["w", "i", "s"], ["r"], domain="com.microsoft", block_size=16),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["r", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales, "s")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    module = onnx2nn.load(model)
    assert "Require" not in module.code
    rows = torch.tensor([[0, 8, 3]])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    _check(module(rows), session.run(None, {"i": rows.numpy()})[0])
