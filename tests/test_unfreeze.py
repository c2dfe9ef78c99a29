"""What the unfreezing puts in the place of a constant: as numbers at a point it is what the inserted nodes compute."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx2nn.reading import reader
from onnx2nn.unfreeze.rules import reshaped
from onnx2nn.unfreeze.substitutions import Count, Element, Numbers, Repeat, Size, Substitution, apply

SIZES = st.builds(
    lambda axes, number, divisor: (axes, number, divisor),
    st.lists(st.integers(0, 1), min_size=1, max_size=2),
    st.integers(1, 4),
    st.integers(1, 3),
)


def _model(constant: np.ndarray) -> ir.Model:
    """Returns a model whose one node reads a constant, beside an input of two dimensions."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["y"], name="reads")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"])],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(constant.dtype), None)],
        [numpy_helper.from_array(constant, "c")],
    )
    return reader.read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def _check(constant: np.ndarray, build: object, shape: tuple[int, int]) -> None:
    model = _model(constant)
    (node,) = model.graph
    source = model.graph.inputs[0]
    substitution: Substitution = build(source)  # type: ignore[operator]
    expected = substitution.at(torch.from_numpy(constant.copy()), lambda dimension: shape[dimension[1]]).numpy()
    apply(iter([(node, 0, substitution)]))
    session = ReferenceEvaluator(ir.to_proto(model))
    (found,) = session.run(None, {"x": np.zeros(shape, np.float32)})
    assert found.dtype == constant.dtype
    np.testing.assert_array_equal(found, expected)


def _size(parts: tuple[list[int], int, int], source: ir.Value) -> Size:
    axes, number, divisor = parts
    return Size(tuple((source, axis) for axis in axes), number, divisor)


@given(
    st.lists(st.one_of(st.integers(-1, 9), SIZES, st.just("element")), min_size=1, max_size=6),
    st.sampled_from([np.int64, np.int32]),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=60, deadline=None)
def test_numbers(items: list, dtype: type, shape: tuple[int, int]) -> None:
    constant = np.arange(len(items), dtype=dtype) + 3
    kind = ir.DataType.from_numpy(constant.dtype)

    def build(source: ir.Value) -> Numbers:
        found = [
            Element(i) if v == "element" else _size(v, source) if isinstance(v, tuple) else v
            for i, v in enumerate(items)
        ]
        return Numbers(tuple(found), (len(items),), kind)

    _check(constant, build, shape)


def test_a_number_without_dimensions() -> None:
    _check(np.array(4), lambda source: Numbers((Size(((source, 1),)),), ()), (2, 7))


@given(SIZES, st.integers(1, 3), st.sampled_from([np.int64, np.int32]), st.tuples(st.integers(1, 9), st.integers(1, 9)))
@settings(max_examples=40, deadline=None)
def test_counts(parts: tuple[list[int], int, int], rank: int, dtype: type, shape: tuple[int, int]) -> None:
    constant = np.arange(5, dtype=dtype).reshape((*[1] * (rank - 1), -1))
    kind = ir.DataType.from_numpy(constant.dtype)
    _check(constant, lambda source: Count(_size(parts, source), rank, kind), shape)


@given(st.integers(1, 3), st.data(), SIZES, st.booleans())
@settings(max_examples=40, deadline=None)
def test_repeats(rank: int, data: st.DataObject, parts: tuple[list[int], int, int], single: bool) -> None:
    axis = data.draw(st.integers(0, rank - 1))
    sizes = [2, 3, 4][:rank]
    sizes[axis] = 1
    constant = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    if not single:
        constant = np.repeat(constant, 5, axis)
    _check(constant, lambda source: Repeat(axis, _size(parts, source), rank, single), (4, 3))


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(-1, 4), min_size=1, max_size=4),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_reshape_has_the_shape_that_the_standard_says(shape: list[int], target: list[int], zero: bool) -> None:
    found = reshaped(shape, target, int(zero))
    node = helper.make_node("Reshape", ["x", "t"], ["y"], allowzero=int(zero))
    if target.count(-1) > 1 or (zero and 0 in target) or any(not t and i >= len(shape) for i, t in enumerate(target)):
        return  # not a target of the standard's, or one of an empty tensor
    try:
        (expected,) = ReferenceEvaluator(node).run(None, {"x": np.zeros(shape), "t": np.array(target)})
    except ValueError:
        assert found is None
    else:
        assert found == expected.shape


def test_the_pass_changes_the_model_alone() -> None:
    """A target that holds the batch is computed from the input's shape, by nodes that the file lacks."""
    from onnx2nn.importing.plan import plan
    from onnx2nn.unfreeze.search import unfreeze

    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "t"], ["y"], name="r")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 3])],
        [numpy_helper.from_array(np.array([1, 2, 3]), "t")],
    )
    model = reader.read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert unfreeze(model, plan(model), {"x": ["n", 6]}, {"n": 1}) == []
    assert [node.op_type for node in model.graph] == ["Shape", "Constant", "Concat", "Reshape"]
