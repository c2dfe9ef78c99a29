"""`reading.reader.read`: every form of source, every data type, lazy weights, the repairs that real files need."""

from __future__ import annotations

import io
import itertools
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.reading.reader import read
from tests.handmade_files import OPSETS, field, model_of, value_info, varint

BIG = 4099  # elements: above the size from which tensors stay in the file, and odd


def holder(tensor):
    """A model around one initializer, which has no consumer."""
    return model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor])


def save(proto, path):
    path.write_bytes(proto.SerializeToString())
    return path


def weight_model():
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((64, 65)).astype(np.float32), "s": np.float32(3)}
    branch = helper.make_graph(
        [helper.make_node("Identity", ["inner"], ["branch_out"])],
        "branch",
        [],
        [value_info("branch_out")],
        [numpy_helper.from_array(arrays["w"] + 1, "inner")],
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(arrays["w"] + 2, "value")),
        helper.make_node("Constant", [], ["condition"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["condition"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Sum", ["x", "w", "s", "c", "i"], ["y"]),
    ]
    return model_of(nodes, [numpy_helper.from_array(a, n) for n, a in arrays.items()]), arrays


def check_weight_model(model, arrays):
    assert [node.op_type for node in model.graph] == ["Constant", "Constant", "If", "Sum"]
    for name, expected in arrays.items():
        found = model.graph.initializers[name].const_value.numpy()
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    constant, _, branch, _ = model.graph
    np.testing.assert_array_equal(constant.attributes["value"].value.numpy(), arrays["w"] + 2)
    for name in ("then_branch", "else_branch"):
        inner = branch.attributes[name].value.initializers["inner"]
        np.testing.assert_array_equal(inner.const_value.numpy(), arrays["w"] + 1)


def test_a_constant_with_the_name_of_its_value_is_an_initializer():
    """Paddle2ONNX wrote weights so; a number, integers, or a tensor of another name are of the author's code."""
    tensors = {"w": [1.0, 2.0], "number": 3.0, "other": [4.0, 5.0], "axes": [6, 7]}
    made = [
        helper.make_node(
            "Constant",
            [],
            [name],
            value=numpy_helper.from_array(
                np.array(values, np.int64 if name == "axes" else np.float32), "" if name == "other" else name
            ),
        )
        for name, values in tensors.items()
    ]
    floats = helper.make_node("Cast", ["axes"], ["converted"], to=TensorProto.FLOAT)
    total = helper.make_node("Sum", ["x", "w", "number", "other", "converted"], ["y"])
    model = read(model_of([total, floats, *made]).SerializeToString())
    assert sorted(node.op_type for node in model.graph) == ["Cast", "Constant", "Constant", "Constant", "Sum"]
    (value,) = model.graph.initializers.values()
    assert value.name == "w"
    np.testing.assert_array_equal(value.const_value.numpy(), tensors["w"])
    with pytest.raises(ModelFileError, match="'w' is defined twice, the second time as output of a Constant node"):
        read(model_of([total, floats, *made, made[0]]).SerializeToString())


def sources(proto, folder):
    data = proto.SerializeToString()
    path = save(proto, folder / "model.onnx")
    yield str(path)
    yield path
    yield data
    yield bytearray(data)
    yield memoryview(data)
    yield proto
    yield io.BytesIO(data)
    with open(path, "rb") as stream:
        yield stream
    with open(path, "rb") as stream, io.BytesIO(stream.read()) as copy:
        yield copy
    prefixed = folder / "prefixed"
    prefixed.write_bytes(b"header" + data)
    with open(prefixed, "rb") as stream:
        stream.read(6)
        yield stream


def test_every_source_gives_the_same_model(tmp_path):
    proto, arrays = weight_model()
    for source in sources(proto, tmp_path):
        check_weight_model(read(source), arrays)


@pytest.mark.parametrize("suffix", [".onnxtxt", ".textproto", ".json"])
def test_text_formats(tmp_path, suffix):
    proto = holder(numpy_helper.from_array(np.arange(3, dtype=np.float32), "w"))
    path = tmp_path / f"model{suffix}"
    onnx.save(proto, path)
    model = read(path)
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), [0, 1, 2])
    with pytest.raises(ModelFileError, match="text_bytes"):
        read(path, account=Account(Limits(text_bytes=10)))
    path.write_text("no model")
    with pytest.raises(ModelFileError, match="text format"):
        read(path)


DTYPES = [
    ir.DataType(number)
    for name, number in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING") and number in set(ir.DataType)
]


def elements(dtype, data, size):
    """Bit patterns of the elements in packed little-endian `data`, as integers."""
    bits = dtype.bitwidth
    number = int.from_bytes(data, "little")
    return [number >> (bits * i) & ((1 << bits) - 1) for i in range(size)]


def bit_patterns(array, dtype):
    width = array.dtype.itemsize
    mask = (1 << dtype.bitwidth) - 1
    flat = np.ascontiguousarray(array).tobytes()
    return [int.from_bytes(flat[i : i + width], "little") & mask for i in range(0, len(flat), width)]


def random_bytes(dtype, size):
    data = np.random.default_rng(size).integers(0, 256, (dtype.bitwidth * size + 7) // 8, np.uint8)
    if dtype == ir.DataType.BOOL:
        data &= 1
    spare = 8 * len(data) - dtype.bitwidth * size
    data[-1] &= 0xFF >> spare
    return data.tobytes()


@pytest.mark.parametrize("size", [1, 3, BIG])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_raw_data_of_every_type(tmp_path, dtype, size):
    data = random_bytes(dtype, size)
    tensor = TensorProto(name="w", data_type=dtype, dims=[size, 1], raw_data=data)
    expected = elements(dtype, data, size)
    for source in (save(holder(tensor), tmp_path / "m.onnx"), holder(tensor)):
        array = read(source).graph.initializers["w"].const_value.numpy()
        assert array.shape == (size, 1)
        assert array.dtype == dtype.numpy()
        assert bit_patterns(array, dtype) == expected
        assert array.flags.writeable


def typed_tensor(dtype, data, size):
    """The same elements in the typed field that onnx.proto names for the type."""
    tensor = TensorProto(name="w", data_type=dtype, dims=[size])
    bits = elements(dtype, data, size)
    if dtype.name in ("FLOAT", "COMPLEX64"):
        tensor.float_data.extend(np.frombuffer(data, "<f4").tolist())
    elif dtype.name in ("DOUBLE", "COMPLEX128"):
        tensor.double_data.extend(np.frombuffer(data, "<f8").tolist())
    elif dtype.name == "INT64":
        tensor.int64_data.extend(np.frombuffer(data, "<i8").tolist())
    elif dtype.name in ("UINT32", "UINT64"):
        tensor.uint64_data.extend(bits)
    elif dtype.name in ("UINT4", "INT4", "UINT2", "INT2", "FLOAT4E2M1"):
        tensor.int32_data.extend(data)
    elif dtype.name in ("INT8", "INT16", "INT32"):
        tensor.int32_data.extend(np.frombuffer(data, dtype.numpy()).tolist())
    else:
        tensor.int32_data.extend(bits)
    return tensor


@pytest.mark.parametrize("size", [1, 3, BIG])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_typed_fields_of_every_type(tmp_path, dtype, size):
    # Finite values: a NaN's payload need not survive the way through a Python float.
    data = random_bytes(dtype, size)
    if dtype.name in ("FLOAT", "COMPLEX64", "DOUBLE", "COMPLEX128"):
        data = np.arange(
            len(data) // 4 * 4 // dtype.numpy().type(0).real.itemsize, dtype=dtype.numpy().type(0).real.dtype
        )
        data = data.tobytes()
    proto = holder(typed_tensor(dtype, data, size))
    for source in (save(proto, tmp_path / "m.onnx"), proto):
        array = read(source).graph.initializers["w"].const_value.numpy()
        assert array.dtype == dtype.numpy()
        assert bit_patterns(array, dtype) == elements(dtype, data, size)
        assert array.flags.writeable


def test_strings(tmp_path):
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[2, 1], string_data=[b"a", "ü".encode()])
    array = read(save(holder(tensor), tmp_path / "m.onnx")).graph.initializers["w"].const_value.numpy()
    assert array.tolist() == [[b"a"], ["ü".encode()]]


@pytest.mark.parametrize("dims", [[0], [3, 0, 2], []])
def test_empty_tensors_and_scalars(tmp_path, dims):
    array = np.ones(dims, np.float32)
    for tensor in (
        numpy_helper.from_array(array, "w"),
        helper.make_tensor("w", TensorProto.FLOAT, dims, array.ravel()),
    ):
        found = read(save(holder(tensor), tmp_path / "m.onnx")).graph.initializers["w"].const_value.numpy()
        np.testing.assert_array_equal(found, array)
        assert found.shape == array.shape


def test_arrays_belong_to_the_caller(tmp_path):
    proto, arrays = weight_model()
    for source in sources(proto, tmp_path):
        tensor = read(source).graph.initializers["w"].const_value
        tensor.numpy()[:] = 0
        np.testing.assert_array_equal(tensor.numpy(), arrays["w"])


def test_a_message_stays_as_it_is():
    """Also where an import gives its tensors other names."""
    proto, _ = weight_model()
    before = proto.SerializeToString(deterministic=True)
    model = read(proto)
    for value in (*model.graph.initializers.values(), *(value for node in model.graph for value in node.outputs)):
        value.name = f"other_{value.name}"
    assert proto.SerializeToString(deterministic=True) == before
    assert sorted(tensor.name for tensor in ir.to_proto(model).graph.initializer) == ["other_s", "other_w"]


def test_the_open_file_survives_a_new_file_of_its_name(tmp_path):
    proto, arrays = weight_model()
    path = save(proto, tmp_path / "m.onnx")
    model = read(path)
    (tmp_path / "new").write_bytes(b"0" * 10)
    os.replace(tmp_path / "new", path)
    check_weight_model(model, arrays)


def test_a_file_that_shrinks_is_an_error(tmp_path):
    path = save(weight_model()[0], tmp_path / "m.onnx")
    tensor = read(path).graph.initializers["w"].const_value
    os.truncate(path, 100)
    with pytest.raises(ModelFileError, match="shorter"):
        tensor.numpy()


def external_model(folder, location="weights.bin", *, offset=64, **entries):
    array = np.arange(6000, dtype=np.float32).reshape(60, 100)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": offset, "length": array.nbytes, **entries}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    (folder / "weights.bin").write_bytes(bytes(64) + array.tobytes())
    return save(holder(tensor), folder / "model.onnx"), array


def test_external_data(tmp_path, monkeypatch):
    path, array = external_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    for source in (path, "model.onnx"):
        np.testing.assert_array_equal(read(source).graph.initializers["w"].const_value.numpy(), array)
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(ModelFileError, match="base_dir"):
            read(source)
        model = read(source, base_dir=tmp_path)
        np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), array)


def test_external_data_without_length(tmp_path):
    path, array = external_model(tmp_path, length=None)
    np.testing.assert_array_equal(read(path).graph.initializers["w"].const_value.numpy(), array)


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_initializer(tmp_path, linear):
    dense = np.zeros((4, 5), np.float32)
    dense[1, 2], dense[3, 4], dense[0, 0] = 1, 2, 3
    where = np.argwhere(dense)
    indices = np.flatnonzero(dense) if linear else where
    proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])])
    sparse = proto.graph.sparse_initializer.add(dims=dense.shape)
    sparse.values.CopyFrom(numpy_helper.from_array(dense[tuple(where.T)], "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(indices.astype(np.int64)))
    path = save(proto, tmp_path / "m.onnx")
    np.testing.assert_array_equal(read(path).graph.initializers["w"].const_value.numpy(), dense)
    sparse.dims[0] = 4000
    with pytest.raises(ModelFileError, match="constant_bytes"):
        read(save(proto, tmp_path / "m.onnx"), account=Account(Limits(constant_bytes=1)))
    sparse.dims[0] = 3
    with pytest.raises(ModelFileError, match="outside its shape"):
        read(proto)


def test_initializers_listed_as_inputs_are_no_inputs():
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    for ir_version in (3, 10):
        proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [weight], inputs=("w", "x"))
        proto.ir_version = ir_version
        graph = read(proto).graph
        assert [value.name for value in graph.inputs] == ["x"]
        assert list(graph.initializers) == ["w"]
        assert next(iter(graph)).inputs[1] is graph.initializers["w"]


def test_unsorted_nodes_are_sorted():
    names = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in itertools.pairwise(names)]
    graph = read(model_of(nodes[::-1])).graph
    assert [node.outputs[0].name for node in graph] == names[1:]


def test_sorted_nodes_keep_their_order():
    nodes = [helper.make_node("Relu", ["x"], [name]) for name in "dacb"]
    graph = read(model_of([*nodes, helper.make_node("Sum", list("abcd"), ["y"])])).graph
    assert [node.outputs[0].name for node in graph] == [*"dacb", "y"]


def test_unsorted_through_a_subgraph():
    branch = helper.make_graph([helper.make_node("Neg", ["late"], ["z"])], "b", [], [value_info("z")])
    nodes = [
        helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Relu", ["x"], ["late"]),
        helper.make_node("Constant", [], ["condition"], value=numpy_helper.from_array(np.array(True))),
    ]
    graph = read(model_of(nodes)).graph
    assert [node.op_type for node in graph][-1] == "If"
    relu = next(node for node in graph if node.op_type == "Relu")
    assert relu.outputs[0].uses()[0].node.op_type == "Neg"


def test_a_branch_that_passes_on_an_outer_value():
    branch = helper.make_graph([], "b", [], [value_info("x")])
    condition = numpy_helper.from_array(np.array(True), "condition")
    node = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)
    model = read(model_of([node], [condition]))
    inner = next(iter(model.graph)).attributes["then_branch"].value
    assert [node.op_type for node in inner] == ["Identity"]
    assert next(iter(inner)).inputs[0] is model.graph.inputs[0]


def test_graph_outputs_keep_order_and_repetition():
    node = helper.make_node("Split", ["x"], ["a", "", "b"], axis=0)
    graph = read(model_of([node], outputs=("b", "x", "a", "b"))).graph
    assert [value.name for value in graph.outputs] == ["b", "x", "a", "b"]


def test_left_out_inputs_stay_in_place():
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    model = read(model_of([node], inputs=("x", "high")))
    assert [value and value.name for value in next(iter(model.graph)).inputs] == ["x", None, "high"]


def test_before_ir_version_3_the_opset_is_1_and_attributes_have_no_type():
    proto = model_of([helper.make_node("Concat", ["x", "x"], ["y"], axis=1)], opset_imports=[])
    del proto.opset_import[:]
    proto.graph.node[0].attribute[0].ClearField("type")
    proto.ir_version = 1
    model = read(proto)
    assert model.graph.opset_imports == {"": 1}
    assert next(iter(model.graph)).attributes["axis"].as_int() == 1
    proto.ir_version = 3
    with pytest.raises(ModelFileError, match="opset"):
        read(proto)


def test_ai_onnx_is_the_default_domain():
    proto = model_of([helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")])
    proto.opset_import[0].domain = "ai.onnx"
    model = read(proto)
    assert model.graph.opset_imports == {"": 17}
    assert next(iter(model.graph)).domain == ""


def test_a_newer_ir_version_warns():
    proto = holder(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    proto.ir_version = onnx.IR_VERSION + 1
    with pytest.warns(UserWarning, match="IR version"):
        assert read(proto).graph


def test_types_and_unknown_dimensions():
    proto = model_of([helper.make_node("Relu", ["x"], ["y"])], inputs=())
    proto.graph.input.append(value_info("x", ["N", 3, None, -1]))
    proto.graph.input.append(
        onnx.ValueInfoProto(name="m", type=helper.make_map_type_proto(TensorProto.INT64, proto.graph.input[0].type))
    )
    proto.graph.input.append(
        onnx.ValueInfoProto(name="s", type=helper.make_sequence_type_proto(proto.graph.input[0].type))
    )
    proto.graph.input.add(name="u")
    x, m, s, u = read(proto).graph.inputs
    assert [d if isinstance(d, int) else d.value for d in x.shape] == ["N", 3, None, None]
    assert x.dtype == ir.DataType.FLOAT
    assert m.type is None
    assert s.type == ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    assert u.type is None


def function_of(name, nodes):
    return helper.make_function("local", name, ["a"], ["b"], nodes, OPSETS)


def test_functions():
    inner = function_of("inner", [helper.make_node("Relu", ["a"], ["b"])])
    outer = function_of("outer", [helper.make_node("inner", ["a"], ["b"], domain="local")])
    proto = model_of([helper.make_node("outer", ["x"], ["y"], domain="local")], functions=[outer, inner])
    model = read(proto)
    assert set(model.functions) == {("local", "inner", ""), ("local", "outer", "")}
    assert [node.op_type for node in model.functions["local", "outer", ""]] == ["inner"]


def test_attributes():
    node = helper.make_node(
        "Custom",
        ["x"],
        ["y"],
        domain="d",
        i=3,
        f=0.5,
        s="text",
        b=b"\xff",
        ints=[1, 2],
        floats=[0.5],
        strings=["a", "b"],
    )
    node.attribute.append(helper.make_attribute("zero", 0))
    node.attribute[-1].ClearField("i")
    attributes = next(iter(read(model_of([node])).graph)).attributes
    found = {name: attribute.value for name, attribute in attributes.items()}
    assert found == {
        "i": 3, "f": 0.5, "s": "text", "b": b"\xff", "ints": (1, 2), "floats": (0.5,), "strings": ("a", "b"), "zero": 0,
    }  # fmt: skip


def test_node_metadata_is_kept():
    proto = model_of([helper.make_node("Relu", ["x"], ["y"], name="relu")])
    proto.graph.node[0].metadata_props.add(key="namespace", value="layer1")
    node = next(iter(read(proto).graph))
    assert node.name == "relu"
    assert node.metadata_props == {"namespace": "layer1"}


def test_a_file_above_2_gib(tmp_path):
    # Written field by field with a hole for the first tensor, as protobuf cannot serialize it.
    size = (2 << 30) + 4096
    proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [numpy_helper.from_array(np.float32(7), "w")])
    rest = proto.graph.SerializeToString()
    head = TensorProto(name="big", data_type=TensorProto.UINT8, dims=[size]).SerializeToString()
    raw = varint(9 << 3 | 2) + varint(size)
    tensor = varint(5 << 3 | 2) + varint(len(head) + len(raw) + size) + head + raw
    proto.ClearField("graph")
    opening = proto.SerializeToString() + varint(7 << 3 | 2) + varint(len(tensor) + size + len(rest)) + tensor
    path = tmp_path / "big.onnx"
    with open(path, "wb") as stream:
        stream.write(opening)
        stream.seek(size - 1, os.SEEK_CUR)
        stream.write(b"\x05")
        stream.write(rest)
    graph = read(path).graph
    assert graph.initializers["big"].shape == [size]
    assert graph.initializers["w"].const_value.numpy() == 7


def test_protobuf_merging_is_respected(tmp_path):
    # A serialized message may hold a singular field twice: messages merge, of scalars the last counts.
    proto, arrays = weight_model()
    other = onnx.ModelProto()
    other.graph.initializer.append(numpy_helper.from_array(np.arange(1000, dtype=np.float32), "more"))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString() + other.SerializeToString())
    model = read(path)
    check_weight_model(model, arrays)
    np.testing.assert_array_equal(model.graph.initializers["more"].const_value.numpy(), np.arange(1000))
    tensor = numpy_helper.from_array(np.zeros(1000, np.float32), "w").SerializeToString()
    last = np.ones(1000, np.float32).tobytes()
    graph = (
        field(5, tensor + field(9, last)) + model_of([helper.make_node("Relu", ["x"], ["y"])]).graph.SerializeToString()
    )
    path.write_bytes(b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11"))
    np.testing.assert_array_equal(read(path).graph.initializers["w"].const_value.numpy(), 1)


def test_unknown_fields_are_passed_over(tmp_path):
    proto, arrays = weight_model()
    unknown = field(999, b"z" * 5000) + varint(998 << 3 | 0) + b"\x01" + varint(997 << 3 | 5) + struct.pack("<I", 1)
    group = varint(996 << 3 | 3) + field(7, b"x" * 3000) + varint(996 << 3 | 4)
    path = tmp_path / "m.onnx"
    path.write_bytes(unknown + proto.SerializeToString() + unknown + group)
    check_weight_model(read(path), arrays)


PEAK = """
import sys
from onnx2nn.reading.reader import read
import numpy as np

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) << 10

def load(path):
    return {name: value.const_value.numpy() for name, value in read(path).graph.initializers.items()}

load(sys.argv[1])
before = peak()
arrays = load(sys.argv[2])
print((peak() - before) / sum(array.nbytes for array in arrays.values()))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("form", ["raw", "typed", "external"])
def test_peak_memory_is_the_weights_once(tmp_path, form):
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.standard_normal((1024, 2048), np.float32) for i in range(8)}  # 64 MiB
    if form == "typed":
        tensors = []
        for name, array in arrays.items():
            head = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape).SerializeToString()
            tensors.append(TensorProto.FromString(head + field(4, array.tobytes())))
    else:
        tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    proto = model_of([helper.make_node("Relu", ["x"], ["y"])], tensors)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=form == "external", location="m.data")
    small = save(holder(numpy_helper.from_array(np.ones(1, np.float32), "w")), tmp_path / "small.onnx")
    command = [sys.executable, "-c", PEAK, str(small), str(tmp_path / "m.onnx")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ratio = float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert 0.99 < ratio < 1.1


def test_torch_is_not_imported():
    code = "import sys, onnx2nn.reading.reader; sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, check=True
    )
