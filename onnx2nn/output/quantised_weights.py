"""Weights that an ONNX file held as integers are written so again, while they have values of that form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.pass_times import timed
from onnx2nn.output.exported_nodes import unused
from onnx2nn.provenance.exporter_metadata import CLASSES, SCOPES

_KINDS = {kind.name: kind for kind in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32)}
"""The types of integers that DequantizeLinear has in every version that torch.onnx.export writes."""


@timed("quantised weights")
def quantise(model: ir.Model, steps: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes weights as integers and a DequantizeLinear, as the file had them.

    ONNX Runtime computes a layer between QuantizeLinear and DequantizeLinear on integers if its weight is such. A
    weight that was trained has other values than integers give, and stays as it is.

    Args:
        model: changed in place.
        steps: `meta["onnx2nn"]["steps"]` of its module: how integers gave a weight, by the weight's key.
    """
    graph = model.graph
    taken = Counter(value.name or "" for value in (*graph.inputs, *graph.initializers.values()))
    taken.update(value.name or "" for node in graph.all_nodes() for value in node.outputs)
    for key in reversed([key for key in steps if _has_one_reader(graph.initializers.get(key))]):  # each becomes first
        weight, of = graph.initializers[key], steps[key]
        if weight.const_value is not None and weight.dtype == ir.DataType.FLOAT and of["kind"] in _KINDS:
            found = _integers(weight.const_value.numpy(), _KINDS[of["kind"]], of["scale"], of["zero_point"])
            if found is not None:
                _write(graph, weight, *found, taken)


def _has_one_reader(weight: ir.Value | None) -> bool:
    """Returns whether a single node reads a weight: what several layers read, the next import ties."""
    return weight is not None and len(weight.uses()) == 1 and not weight.is_graph_output()


def _integers(
    weight: np.ndarray, kind: ir.DataType, scale: float | list[float], zero_point: int | list[int]
) -> tuple[list[np.ndarray], int] | None:
    """Returns integers, scale and zero point that give exactly `weight`, with their axis; None where none do."""
    scales = np.asarray(scale, np.float32)
    zeros = np.broadcast_to(np.asarray(zero_point, kind.numpy()), scales.shape)
    if scales.size == 1:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    if kind == ir.DataType.INT32 and zeros.any():
        return None
    least, most = np.iinfo(kind.numpy()).min, np.iinfo(kind.numpy()).max
    # Layers have the transposed weights of some nodes, so that the scales may lie along another axis.
    for axis in [axis for axis, size in enumerate(weight.shape) if size == scales.size] if scales.ndim else [0]:
        shape = [-1 if place == axis else 1 for place in range(weight.ndim)] if scales.ndim else []
        each, zero = scales.reshape(shape), zeros.astype(np.float32).reshape(shape)
        with np.errstate(all="ignore"):  # a scale of 0 gives NaN
            nearest = np.rint(weight.astype(np.float64) / each) + zero
        integers = np.nan_to_num(nearest).clip(least, most).astype(kind.numpy())
        if np.array_equal((integers.astype(np.float32) - zero) * each, weight):
            return [integers, scales, zeros], axis
    return None


def _write(graph: ir.Graph, weight: ir.Value, arrays: list[np.ndarray], axis: int, taken: Counter[str]) -> None:
    """Replaces an initializer by a DequantizeLinear of integers, which are transposed where its only reader does so."""
    key, read, reader = str(weight.name), weight, next(iter(weight.uses())).node
    transposition = None
    if reader.op_type == "Transpose" and reader.outputs[0].uses() and not reader.outputs[0].is_graph_output():
        transposition, order, read = reader, list(reader.attributes["perm"].as_ints()), reader.outputs[0]
        arrays, axis = [np.ascontiguousarray(arrays[0].transpose(order)), *arrays[1:]], order.index(axis)
        reader = next(iter(read.uses())).node
    inputs = []
    for kind, array in zip(("quantized", "scale", "zero_point"), arrays, strict=True):
        tensor = ir.tensor(array, name=unused(f"{key}_{kind}", taken))
        shape, of = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        inputs.append(ir.Value(name=tensor.name, shape=shape, type=of, const_value=tensor))
        graph.register_initializer(inputs[-1])
    del graph.initializers[key]
    attributes = {"axis": axis} if arrays[1].ndim else {}
    node = ir.node("DequantizeLinear", inputs, attributes, name=unused(f"{key}_DequantizeLinear", taken))
    node.metadata_props.update((n, text) for n, text in reader.metadata_props.items() if n in (SCOPES, CLASSES))
    result = node.outputs[0]
    result.name, result.shape, result.type = read.name, read.shape, ir.TensorType(ir.DataType.FLOAT)
    ir.convenience.replace_all_uses_with(read, result)
    graph.insert_before(graph[0], node)
    if transposition is not None:
        graph.remove(transposition, safe=True)
