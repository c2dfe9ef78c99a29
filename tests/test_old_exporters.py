"""What exporters of earlier years wrote and those of today do not: forms of graphs that lie on people's disks."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper
from realmodels import check_against_onnxruntime, check_same, run, seeded
from torch import nn

import onnx2nn


def _unfolded(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path, opset: int) -> Path:
    """Exports as PyTorch up to 1.4 does by default: the graph computes ONNX's weights from the author's."""
    axes = {name: {0: "steps", 1: "batch"} for name in ("x",)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, inputs, str(path), dynamo=False, opset_version=opset, do_constant_folding=False,
            input_names=["x", "h", "c"][: len(inputs)], dynamic_axes=axes if len(inputs) == 1 else {},
        )  # fmt: skip
    return path


@pytest.mark.parametrize("opset", [9, 11, 17])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("given", [False, True], ids=["", "states"])
def test_recurrent_layers_get_the_authors_weights(
    kind: type[nn.RNNBase], given: bool, opset: int, tmp_path: Path
) -> None:
    original = seeded(lambda: kind(4, 3, num_layers=2, bidirectional=True))
    x = torch.randn(5, 2, 4)
    states = tuple(torch.randn(4, 2, 3) for _ in range(2 if kind is nn.LSTM else 1)) if given else ()

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = original

        def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
            return self.rnn(x, states if len(states) > 1 else states[0] if states else None)

    wrapped = Wrapped().eval()
    path = _unfolded(wrapped, (x, *states), tmp_path / "m.onnx", opset)
    module = onnx2nn.load(path)
    wrapped.load_state_dict(module.state_dict(), strict=True)
    assert type(module.rnn) is kind and len(list(module.graph.nodes)) < 12
    check_against_onnxruntime(path, module, (x, *states))


def test_recurrent_layer_without_biases(tmp_path: Path) -> None:
    wrapped = nn.Sequential(seeded(lambda: nn.GRU(4, 3, bias=False)))
    path = _unfolded(wrapped, (torch.randn(5, 2, 4),), tmp_path / "m.onnx", 9)
    module = onnx2nn.load(path)
    wrapped.load_state_dict(module.state_dict(), strict=True)
    check_against_onnxruntime(path, module, (torch.randn(7, 3, 4),))


def test_weights_in_another_order_stay_as_they_are(tmp_path: Path) -> None:
    """Gates that torch does not put so, and rows that are no gates: nothing is taken for a layer's weights."""
    path = _unfolded(seeded(lambda: nn.LSTM(4, 3)), (torch.randn(5, 2, 4),), tmp_path / "m.onnx", 9)
    for change in ("order", "rows"):
        model = onnx.load(path)
        slices = {node.output[0] for node in model.graph.node if node.op_type == "Slice"}
        concat = next(node for node in model.graph.node if node.op_type == "Concat" and node.input[0] in slices)
        if change == "order":
            concat.input[:] = [concat.input[1], concat.input[0], concat.input[2]]
        else:
            first, second = (next(n for n in model.graph.node if name in n.output) for name in concat.input[:2])
            for node, ends in ((first, (0, 2)), (second, (8, 12))):  # rows of gates of 3
                values = zip(("starts", "ends"), ends, strict=True)
                for name, number in values:
                    next(a for a in node.attribute if a.name == name).ints[:] = [number]
        module = onnx2nn.load(model)
        assert "LSTM" not in module.meta["onnx2nn"]["raising"]["raised"]
        check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(7, 3, 4),))


def test_domain_in_version_0() -> None:
    """PyTorch's exporters import the domains of what is not ONNX's so."""
    node = helper.make_node("ATen", ["x"], ["y"], domain="org.pytorch.aten", operator="triu", diagonal=1)
    value = [helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy"]
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("org.pytorch.aten", 0)]
    module = onnx2nn.load(helper.make_model(helper.make_graph([node], "g", value[:1], value[1:]), opset_imports=opsets))
    x = torch.randn(3, 3)
    assert torch.equal(module(x), x.triu(1))


def test_list_of_tensors_as_single_inputs() -> None:
    """`x[:, i, j]` of PyTorch up to 1.4: Caffe2's convention for an argument that is a list."""
    node = helper.make_node("ATen", ["x", "", "i", "j"], ["y"], operator="index")
    x, y = (helper.make_tensor_value_info(name, 1, ["n", *sizes]) for name, sizes in (("x", [4, 6]), ("y", [2])))
    i, j = (helper.make_tensor(name, 7, [2], values) for name, values in (("i", [0, 2]), ("j", [5, 1])))
    graph = helper.make_graph([node], "g", [x], [y], [i, j])
    module = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)]))
    given = torch.randn(3, 4, 6)
    check_same(run(module, (given,)), (given[:, [0, 2], [5, 1]],), "index")


def test_constant_that_expands_to_the_traced_batch_only() -> None:
    """`x[:, 1] = 0` with an open batch, in which torch 1.8 holds the zeros at the traced size."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
        <ir_version: 6, opset_import: ["" : 11]>
        g (float[n, 4, 6] x) => (float[n, 4, 6] y)
        <int64 zero = {0}, int64 one = {1}, int64[2] shape = {-1, 1}, int64[1] tail = {6},
         float[2, 6] zeros = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}>
        {
            row = Gather <axis = 1> (x, one)
            size = Shape(row)
            values = Expand(zeros, size)
            whole = Shape(x)
            batch = Gather(whole, zero)
            range = Range(zero, batch, one)
            rows = Reshape(range, shape)
            ones = ConstantOfShape <value = int64[1] {1}> (shape_of_rows)
            shape_of_rows = Shape(rows)
            places = Concat <axis = 1> (rows, ones)
            updates_shape = Concat <axis = 0> (batches, tail)
            batches = Unsqueeze <axes = [0]> (batch)
            updates = Reshape(values, updates_shape)
            y = ScatterND(x, places, updates)
        }
        """)
    )
    x = torch.randn(2, 4, 6)
    expected = x.clone()
    expected[:, 1] = 0
    check_same(run(module, (x,)), (expected,), "at the traced size")
    with pytest.raises(AssertionError, match="must be 2"):
        module(torch.randn(3, 4, 6))


def test_shape_of_floats_computed_from_sizes() -> None:
    """torchvision's anchors by torch 1.6: Range of sizes cast to float, whose own shapes are read."""
    model = onnx.parser.parse_model("""
    <ir_version: 6, opset_import: ["" : 11]>
    g (float[1, 3, h, w] x) => (int64[2] y, int64 z)
    {
        s = Shape(x)
        f = Cast <to = 1> (s)
        two = Constant <value = int64[2] {2, -1}> ()
        m = Reshape(f, two)
        y = Shape(m)
        z = Size(f)
    }
    """)
    shape, size = onnx2nn.load(model)(torch.randn(1, 3, 5, 7))
    assert (shape.dtype, shape.tolist()) == (torch.int64, [2, 2])
    assert (size.dtype, size.item()) == (torch.int64, 4)
