"""Imports in other float types: casts to the weights' type follow it, what guards precision stays."""

from __future__ import annotations

import functools
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from realmodels import require_transformers
from tiers import mostly_slow

import onnx2nn
from onnx2nn.errors import InputError
from scripts.language_models import built, feeds
from tests import installed

if not installed.is_installed("transformers"):
    pytest.skip("the networks of scripts/behaviour_networks.py are transformers'", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))  # the scripts import each other by their names
import behaviour_models  # noqa: E402  # needs the path above
import behaviour_networks  # noqa: E402  # likewise

TYPES = {"bfloat16": 4e-2, "float16": 4e-2, "float64": 2e-3}
"""Type → the largest difference to the file's own type, relative to the largest element of an output.

Quantised models move by whole steps of 8 bits, files of float16 by its rounding.
"""

RECIPES = {name: recipe for name, recipe in behaviour_models.recipes().items() if name != "unknown"}
"""Models by name; "unknown" is refused, for an operator that does not exist."""

WITHOUT_KERNEL = {"light_inception_v1": ('"avg_pool3d_out_frame" not implemented', ("bfloat16", "float16"))}
"""Models → the words of torch, which has no kernel for these types, and the types."""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="onnx2nn-float-types-")


@functools.cache
def _made(name: str) -> tuple[Path, list[np.ndarray]]:
    path = Path(_folder().name) / f"{name}.onnx"
    return path, RECIPES[name](path)[0]


def _load(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dimensions that the file fixes
        return onnx2nn.load(path, **options)


def _tensors(arrays: Sequence[np.ndarray], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    tensors = (torch.from_numpy(array.copy()) for array in arrays)
    return [tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor for tensor in tensors]


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)


def _run(module: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return list(_flat(module(*inputs)))


def _gap(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Returns the largest difference of float tensors, relative to the largest element."""
    gaps = [0.0]
    for a, b in zip(found, wanted, strict=True):
        if b.is_floating_point() and b.numel():
            gaps.append(float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-6)))
    return max(gaps)


_QUICK = ["digits", "bert_dynamo", "swin_dynamo", "quantised_qdq", "detection", "trees"]


def _joined(parameter: str | tuple[str, ...]) -> str:
    return parameter if isinstance(parameter, str) else "-".join(parameter)


def _types_of_models() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields models, and types that one test tries: making a model takes longer than trying it in all of them."""
    for name in RECIPES:
        if name in _QUICK:
            yield name, ("bfloat16",)
        yield name, tuple(dtype for dtype in TYPES if name not in _QUICK or dtype != "bfloat16")


@pytest.mark.parametrize(
    ("name", "types"), mostly_slow(_types_of_models(), [(name, ("bfloat16",)) for name in _QUICK]), ids=_joined
)
def test_a_model_runs_in_other_types(name: str, types: Sequence[str]) -> None:
    path, arrays = _made(name)
    wanted = _run(_load(path), _tensors(arrays))
    words, without = WITHOUT_KERNEL.get(name, ("", ()))
    for dtype in types:
        module, inputs = _load(path, dtype=getattr(torch, dtype)), _tensors(arrays, getattr(torch, dtype))
        if dtype in without:
            with pytest.raises(Exception, match=words):
                _run(module, inputs)
        else:
            assert _gap(_run(module, inputs), wanted) < TYPES[dtype], dtype


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma"])
def test_a_language_model_runs_in_other_types(name: str, precision: str) -> None:
    path = built(name, precision)
    arrays = list(feeds(path, 2, 6, 0).values())
    wanted = _run(_load(path), _tensors(arrays))
    for dtype, most in TYPES.items():
        module = _load(path, dtype=getattr(torch, dtype))
        found = _run(module, _tensors(arrays, getattr(torch, dtype)))
        assert all(value.dtype == getattr(torch, dtype) for value in found)
        assert _gap(found, wanted) < most, dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_transformer_is_as_precise_as_the_original(dtype: torch.dtype, tmp_path: Path) -> None:
    """Rotary tables are computed in float32, as in the original: position 40 is no bfloat16 times a frequency."""
    require_transformers()
    torch.manual_seed(0)
    original = behaviour_networks.llama().eval()
    tokens = torch.randint(0, 50, (2, 40))
    mask = torch.ones_like(tokens)
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(original, (tokens, mask), tmp_path / "llama.onnx", dynamo=True, input_names=names, verbose=False)
    wanted = _run(original.double(), [tokens, mask])
    theirs, ours = (_gap(_run(m.to(dtype), [tokens, mask]), wanted) for m in (original, _load(tmp_path / "llama.onnx")))
    assert ours < 1.5 * theirs


_TEXT = """<ir_version: 9, opset_import: ["" : 17]> g (int64[n] position, float[n, 4] x) => (float[n, n] y)
<float[4, 4] weight = {0.5, 0, 0.25, 0, 0, 1, 0, 0, 0, 0, 0.5, 0, 1, 0, 0, 1}, int64[1] one = {1}, int64[1] two = {2}>
{
    frequency = Constant <value = float[2] {1.0, 0.01}> ()
    lowest = Constant <value = float {-3.4028234663852886e+38}> ()
    zero = Constant <value = float {0}> ()
    column = Unsqueeze (position, one)
    number = Cast <to = 1> (column)
    angle = Mul (number, frequency)
    cosine = Cos (angle)
    turn = Concat <axis = -1> (cosine, cosine)
    h = MatMul (x, weight)
    turned = Mul (h, turn)
    back = Transpose (turned)
    scores = MatMul (turned, back)
    row = Transpose (column)
    late = Greater (row, column)
    second = Equal (column, two)
    masked = Or (late, second)
    mask = Where (masked, lowest, zero)
    sum = Add (scores, mask)
    y = Softmax <axis = -1> (sum)
}"""


def _handmade() -> onnx.ModelProto:
    return onnx.parser.parse_model(_TEXT)


def test_floats_of_positions_stay_precise() -> None:
    module = onnx2nn.load(_handmade(), dtype=torch.bfloat16)
    assert {buffer.dtype for buffer in module.buffers() if buffer.is_floating_point()} == {torch.float32}
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    casts = re.findall(r"\w+ = (\w+)\.to\(torch\.bfloat16\)", module.code)
    assert casts == ["cat", "where"], module.code


def test_the_lowest_number_is_that_of_the_type() -> None:
    """A row whose every position is masked is an average in each type: the lowest number hides the scores."""
    position, x = torch.arange(5), torch.randn(5, 4)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = onnx2nn.load(_handmade(), dtype=dtype)(position, x.to(dtype))
        torch.testing.assert_close(found[2].float(), torch.full((5,), 0.2), rtol=0.01, atol=0)


def test_the_file_s_program_comes_back() -> None:
    module = onnx2nn.load(_handmade())
    code, x = module.code, (torch.arange(5), torch.randn(5, 4))
    wanted = module(*x)
    module.half().bfloat16().double()
    assert module.code != code
    module.float()
    assert module.code == code
    torch.testing.assert_close(module(*x), wanted, rtol=0.1, atol=0.02)  # the weights were rounded
    assert module(*x).dtype == torch.float32


def test_loading_in_a_type_is_converting_afterwards() -> None:
    path, arrays = _made("bert_dynamo")
    one, other = _load(path, dtype=torch.float16), _load(path).half()
    assert one.code == other.code
    for a, b in zip(_run(one, _tensors(arrays)), _run(other, _tensors(arrays)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_inputs_have_the_weights_type() -> None:
    module = onnx2nn.load(_handmade(), dtype=torch.bfloat16)
    with pytest.raises(InputError, match=r"the model takes torch.bfloat16"):
        module(torch.arange(5), torch.randn(5, 4))


def test_other_types_are_refused() -> None:
    for dtype in (torch.int8, "float16"):
        with pytest.raises(InputError, match="give a float type of torch"):
            onnx2nn.load(_handmade(), dtype=dtype)
    with pytest.raises(InputError, match="dtype needs framework='torch'"):
        onnx2nn.load(_handmade(), framework="oneflow", dtype=torch.float16)


def _flow(kind: str) -> onnx.ModelProto:
    """Returns a model in whose If, Loop or Scan a float that is made of integers meets the weights."""
    rng, floats = np.random.default_rng(0), onnx.TensorProto.FLOAT
    node, value, array = onnx.helper.make_node, onnx.helper.make_tensor_value_info, onnx.numpy_helper.from_array
    weights = [array(rng.standard_normal((4, 4)).astype(np.float32), name) for name in ("w", "v")]

    def graph(operand: str, weight: Any, inputs: Sequence[Any], first: Sequence[str] = (), again: bool = True) -> Any:
        nodes = [node("Cast", ["k"], ["kf"], to=floats), node("Add", [operand, "kf"], ["h"])]
        nodes += [
            node("MatMul", ["h", weight.name], ["m"]),
            node("Tanh", ["m"], ["t"]),
            node("Identity", ["t"], ["t2"]),
        ]
        nodes += [node("Identity", ["on"], ["on_"])] if first else []
        results = [value(name, floats, None) for name in ("t", "t2")[: 1 + again]]
        truths = [value(name, onnx.TensorProto.BOOL, None) for name in first]
        return onnx.helper.make_graph(nodes, "body", inputs, [*truths, *results], [weight])

    held = [array(np.float32(0), "zero"), array(np.array(3), "steps"), array(np.zeros((3, 4), np.float32), "start")]
    if kind == "If":
        branches = [graph("x", weight, [], again=False) for weight in weights]
        top = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["on"])]
        top += [node("If", ["on"], ["y"], then_branch=branches[0], else_branch=branches[1])]
    elif kind == "Loop":
        inputs = [
            value("i", onnx.TensorProto.INT64, []),
            value("on", onnx.TensorProto.BOOL, []),
            value("a", floats, None),
        ]
        body = graph("a", weights[0], inputs, ["on_"])
        top = [node("Loop", ["steps", "", "x"], ["last", "all"], body=body), node("Add", ["last", "all"], ["y"])]
    else:
        body = graph("row", weights[0], [value("a", floats, [4]), value("row", floats, [4])])
        top = [node("ReduceMax", ["start"], ["state"], axes=[0], keepdims=0)]
        top += [node("Scan", ["state", "x"], ["last", "y"], body=body, num_scan_inputs=1)]
    inputs = [value("x", floats, [3, 4]), value("k", onnx.TensorProto.INT64, [4])]
    flow = onnx.helper.make_graph(top, "flow", inputs, [value("y", floats, None)], held)
    return onnx.helper.make_model(flow, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("kind", ["If", "Loop", "Scan"])
def test_graphs_of_control_flow_follow(kind: str, name: str) -> None:
    dtype, model = getattr(torch, name), _flow(kind)
    plain, module, k = onnx2nn.load(model), onnx2nn.load(model).to(dtype), torch.arange(4)
    for sign in (1, -1):  # both branches
        x = sign * torch.rand(3, 4)
        found = _run(module, [x.to(dtype), k])
        assert all(item.dtype == dtype for item in found)
        assert _gap([item.float() for item in found], _run(plain, [x, k])) < TYPES[name]
    torch.testing.assert_close(_run(module.float(), [x, k]), _run(plain, [x, k]), rtol=2e-2, atol=2e-2)
