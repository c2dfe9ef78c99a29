"""The check of an export tells rounding from wrong: only right files of ill-conditioned models are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow
import onnx
import pytest
from oneflow import nn
from onnx import TensorProto, helper, numpy_helper

from oneflow_bridge import export
from oneflow_bridge.to_onnx import check
from oneflow_bridge.to_onnx.arguments import Arguments
from oneflow_bridge.to_onnx.double_precision import widened
from onnx2nn.errors import VerificationError


class Chaos(nn.Module):
    """Each layer enlarges what is put in about four times: rounding in float32 is as large as the output."""

    def __init__(self, layers: int = 14, width: int = 32) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        for layer in self.layers:
            weight = 6 / np.sqrt(width) * rng.standard_normal((width, width))
            layer.weight.data.copy_(flow.tensor(weight.astype(np.float32)))
            layer.bias.data.copy_(flow.tensor(rng.standard_normal(width).astype(np.float32)))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = flow.sin(layer(x))
        return x


class ChaosInFloat32(Chaos):
    """It cannot run in float64."""

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = flow.sin(layer(x.to(flow.float32)))
        return x


def _x() -> Any:
    return flow.tensor(np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32))


def test_a_right_file_of_an_ill_conditioned_model_is_written(tmp_path: Path) -> None:
    model, path = Chaos().eval(), tmp_path / "m.onnx"
    export(model, _x(), path)
    (output,) = check.compare(model, Arguments.of(model, _x()), {}, path)
    assert output.relative > output.tolerance, "it tests nothing if rounding stays small"
    assert output.within_noise and output.noise is not None and output.difference <= 2 * output.noise
    assert "the model's own noise" in str(output)


def _without_bias(model: onnx.ModelProto) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("layers.9.bias"))
    tensor.CopyFrom(numpy_helper.from_array(np.zeros(32, np.float32), tensor.name))


def _other_function(model: onnx.ModelProto) -> None:
    [node for node in model.graph.node if node.op_type == "Sin"][9].op_type = "Cos"


@pytest.mark.parametrize("spoil", [_without_bias, _other_function])
def test_a_wrong_file_of_an_ill_conditioned_model_is_refused(spoil: Any, tmp_path: Path) -> None:
    model, path = Chaos().eval(), tmp_path / "m.onnx"
    proto = export(model, _x(), path, check=False)
    spoil(proto)
    onnx.save(proto, path)
    with pytest.raises(VerificationError, match=r"in float64 output differs by"):
        check.compare(model, Arguments.of(model, _x()), {}, path)


def test_noise_excuses_nothing_without_float64(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"the model's own noise .* a comparison in float64 is not possible"):
        export(ChaosInFloat32().eval(), _x(), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_in_float64_is_that_of_the_decimal_numbers() -> None:
    constant = helper.make_node("Constant", [], ["a"], value_float=0.1)
    nodes = [constant, helper.make_node("Mul", ["x", "a"], ["m"]), helper.make_node("Cast", ["m"], ["y"], to=1)]
    weight = numpy_helper.from_array(np.float32([0.1, 0.2]), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    wide = widened(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], [weight])))
    assert numpy_helper.to_array(wide.graph.node[0].attribute[0].t) == 0.1
    assert numpy_helper.to_array(wide.graph.initializer[0]).tolist() == np.float32([0.1, 0.2]).astype(float).tolist()
    assert wide.graph.node[2].attribute[0].i == TensorProto.DOUBLE
    assert {value.type.tensor_type.elem_type for value in [*wide.graph.input, *wide.graph.output]} == {
        TensorProto.DOUBLE
    }
