"""The module of one sample that runs on each sample of a batch."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from realmodels import as_tuple, check_same, run_onnxruntime

import onnx2nn
from onnx2nn.errors import FrozenDimensionError, InputError, VerificationError
from onnx2nn.unfreeze.vectorised import Vectorised

BRANCHES = (
    "then_branch = t () => (float[dims] a) { a = Neg (x) }, else_branch = e () => (float[dims] b) { b = Tanh (x) }"
)
WEIGHT = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def _model(text: str, constants: dict[str, np.ndarray]) -> bytes:
    """Returns a model of opset 17 in ONNX's text format with constants."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model.SerializeToString()


def mixing(inputs: str = "float[1, 3, 4] x", more: str = "", outputs: str = "float[1, 3, 5] y") -> bytes:
    """A linear layer whose input is read from the flattened batch by indices."""
    body = f"f = Reshape (x, flat) g = Gather (f, places) y = MatMul (g, weight) {more}"
    places = np.arange(12)[::-1].reshape(1, 3, 4).copy()
    constants = {
        "flat": np.array([-1]),
        "places": places,
        "weight": WEIGHT,
        "one": np.array([1]),
        "zero": np.array([0]),
    }
    return _model(f"g ({inputs}) => ({outputs}) {{ {body} }}", constants)


def deciding() -> bytes:
    """A linear layer behind an If on the mean of the input."""
    branches = BRANCHES.replace("dims", "1, 3, 4")
    body = f"m = ReduceMean <keepdims = 0> (x) c = Greater (m, limit) h = If (c) <{branches}> y = MatMul (h, weight)"
    constants = {"weight": WEIGHT, "limit": np.array(0, np.float32)}
    return _model(f"g (float[1, 3, 4] x) => (float[1, 3, 5] y) {{ {body} }}", constants)


def recurrent() -> bytes:
    """A GRU, for which torch.func.vmap has no rule, whose input is read from the flattened batch by indices."""
    body = "f = Reshape (x, flat) g = Gather (f, places) "
    body += "r, state = GRU <hidden_size = 5, linear_before_reset = 1> (g, W, R) "
    body += "s = Squeeze (r, one) y = Transpose <perm = [1, 0, 2]> (s)"
    rng = np.random.default_rng(1)
    constants = {name: rng.normal(size=(1, 15, size)).astype(np.float32) for name, size in (("W", 4), ("R", 5))}
    constants |= {"flat": np.array([-1]), "places": np.arange(12)[::-1].reshape(3, 1, 4).copy(), "one": np.array([1])}
    return _model(f"g (float[1, 3, 4] x) => (float[1, 3, 5] y) {{ {body} }}", constants)


FILES: dict[str, Callable[[], bytes]] = {"vmap": mixing, "loop": deciding, "loop, recurrent": recurrent}


def load(way: str) -> Vectorised:
    module = onnx2nn.load(FILES[way](), dynamic={"x": {0: "n"}})
    assert isinstance(module, Vectorised)
    assert module.meta["onnx2nn"]["thawed"]["way"] == way.split(",")[0]
    return module


def alone(file: bytes, *inputs: torch.Tensor) -> torch.Tensor:
    """Returns ONNX Runtime's first output for each sample alone, joined along the first axis."""
    return torch.cat([run_onnxruntime(file, sample)[0] for sample in zip(*(x.split(1) for x in inputs), strict=True)])


def _exported(module: Vectorised, x: torch.Tensor, folder: Path) -> Callable[..., Any]:
    return torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},)).module()


def _saved(module: Vectorised, x: torch.Tensor, folder: Path) -> Callable[..., Any]:
    line = onnx2nn.save(module, folder / "m.pt2", example_inputs=[x], dynamic_axes=[{0: "n"}])
    assert "dynamic: n (axis 0 of x)" in line
    return torch.export.load(folder / "m.pt2").module()


def _compiled(module: Vectorised, x: torch.Tensor, folder: Path) -> Callable[..., Any]:
    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True  # as for every module with a recurrent layer
    return torch.compile(module, fullgraph=True, dynamic=True, backend="eager")


def _source(module: Vectorised, x: torch.Tensor, folder: Path) -> Callable[..., Any]:
    onnx2nn.to_python(module, folder, example_inputs=[x])
    written = runpy.run_path(str(folder / "model.py"))["load_model"]()
    assert list(written.state_dict()) == list(module.state_dict())
    return written


def _onnx(module: Vectorised, x: torch.Tensor, folder: Path) -> Callable[..., Any]:
    pytest.importorskip("onnxscript")
    onnx2nn.export_onnx(module, folder / "m.onnx")
    return lambda x: run_onnxruntime(folder / "m.onnx", (x,))


TRAVELS: dict[str, Callable[[Vectorised, torch.Tensor, Path], Callable[..., Any]]] = {
    "torch.export": _exported,
    "save": _saved,
    "torch.compile": _compiled,
    "pickle": lambda module, x, folder: pickle.loads(pickle.dumps(module)),
    "deepcopy": lambda module, x, folder: copy.deepcopy(module),
    "to_python": _source,
    "export_onnx": _onnx,
}


@pytest.mark.parametrize("way", FILES)
@pytest.mark.parametrize("travel", TRAVELS)
def test_goes_where_an_imported_module_goes(way: str, travel: str, tmp_path: Path) -> None:
    """... and takes another batch there than its example's."""
    module = load(way)
    travelled = TRAVELS[travel](module, torch.randn(3, 3, 4), tmp_path)
    for count in (2, 5):
        x = torch.randn(count, 3, 4)
        with torch.no_grad():
            check_same(as_tuple(travelled(x)), (alone(FILES[way](), x),), travel)


@pytest.mark.parametrize("way", FILES)
def test_keys_and_gradients_are_those_of_one_sample(way: str) -> None:
    module, one = load(way), onnx2nn.load(FILES[way]())
    assert list(module.state_dict()) == list(one.state_dict())
    assert [key for key, _ in module.named_parameters()] == [key for key, _ in one.named_parameters()]
    x = torch.randn(4, 3, 4)
    module(x).square().sum().backward()
    sum(one(sample).square().sum() for sample in x.split(1)).backward()  # type: ignore[union-attr]  # no empty sum
    for (key, own), other in zip(module.named_parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, msg=key)


@pytest.mark.parametrize("way", FILES)
def test_the_state_is_one(way: str) -> None:
    """Moved, loaded or replaced, it is what runs, in copies and for one sample too."""
    module = load(way)
    x = torch.randn(2, 3, 4)
    doubled = {key: 2 * value if value.is_floating_point() else value for key, value in module.state_dict().items()}
    before = module(x)
    module.load_state_dict(doubled)
    after = module(x)
    assert not torch.equal(after, before)
    for other in (copy.deepcopy(module), module.one_sample):
        torch.testing.assert_close(torch.cat([other(sample) for sample in x.split(1)]), after)
    assert module.double()(x.double()).dtype == torch.float64
    assert not module.train(False).one_sample.training
    assert module.train().one_sample.training


def test_only_chosen_weights_train() -> None:
    module = onnx2nn.load(mixing(), dynamic={"x": {0: "n"}}, trainable=False)
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_one_warning_says_the_way(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "onnx2nn"):
        load("vmap")
    (record,) = caplog.records
    assert "runs over 'n' by torch.func.vmap" in record.message
    assert "Gather 'g' has one result for all samples" in record.message


def test_meta_describes_the_batch() -> None:
    known = load("loop").meta["onnx2nn"]
    assert known["signature"][0]["shape"] == ("n", 3, 4)
    assert known["thawed"]["frozen"] == {"n": 1}
    assert known["thawed"]["batch_axes"] == {"y": 0}
    assert "ReduceMean 'm' has one result for all samples" in known["thawed"]["reason"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Softmax <axis = 0> (x)",
        "s = CumSum (x, zero) c = Greater (s, limit) y = Cast <to = 1> (c)",
        "s = CumSum (x, zero) i = ArgMax <axis = 1> (s) f = Cast <to = 1> (i) y = Expand (f, sizes)",
    ],
    ids=["numbers", "comparisons", "classes"],
)
def test_samples_that_are_mixed_run_alone(body: str) -> None:
    """Comparisons and classes of a few samples may be the same by chance, so that one draw shows little."""
    constants = {"zero": np.array(0), "limit": np.array(0.5, np.float32), "sizes": np.array([1, 2])}
    for seed in range(4):  # other weights: another chance
        file = _model(
            f"g (float[1, 2] v) => (float[1, 2] y) {{ x = Mul (v, k) {body} }}",
            constants | {"k": np.random.default_rng(seed).uniform(0.3, 2, (1, 2)).astype(np.float32)},
        )
        module = onnx2nn.load(file, dynamic={"v": {0: "n"}})
        v = torch.randn(7, 2, generator=torch.Generator().manual_seed(seed))
        check_same(module(v), alone(file, v), "each sample alone")


def test_where_outputs_have_the_batch() -> None:
    """At the front, behind the time of a sequence, or at a new front."""
    more = "t = Transpose <perm = [1, 0, 2]> (y) s = Squeeze (y, zero)"
    file = mixing(more=more, outputs="float[1, 3, 5] y, float[3, 1, 5] t, float[3, 5] s")
    module = onnx2nn.load(file, dynamic={"x": {0: "n"}})
    assert module.meta["onnx2nn"]["thawed"]["batch_axes"] == {"y": 0, "t": 1, "s": None}
    x = torch.randn(4, 3, 4)
    y = alone(file, x)
    for way in (module, _looped(module)):
        check_same(way(x), (y, y.transpose(0, 1), y), "outputs")
    assert onnx2nn.verify(file, module).ok
    assert onnx2nn.verify_nodes(file, module).ok


@pytest.mark.parametrize("way", ["vmap", "loop"])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_an_output_that_is_the_same_for_all_samples(way: str, count: int) -> None:
    """Its time is as long as the batch in one case."""
    table = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    file = _model(
        "g (float[1, 2] x) => (float[1, 2] y, float[3, 1, 2] t) { y = CumSum (x, zero) t = Neg (table) }",
        {"zero": np.array(0), "table": table},
    )
    module = onnx2nn.load(file, dynamic={"x": {0: "n"}})
    x = torch.randn(count, 2)
    y, t = (module if way == "vmap" else _looped(module))(x)
    assert torch.equal(y, x)
    assert torch.equal(t, -torch.from_numpy(table).expand(3, count, 2))


def _looped(module: Vectorised) -> Vectorised:
    """Returns a vmapped module as a loop."""
    return Vectorised(module.one_sample, dataclasses.replace(module.batch_arrangement, way="loop"), module.meta)


def test_inputs_by_name_shared_ones_and_a_batch_behind_the_time() -> None:
    inputs = "float[3, 1, 4] z, float[3, 5] shift"
    body = "x = Transpose <perm = [1, 0, 2]> (z) f = Reshape (x, flat) g = Gather (f, places) "
    body += "p = MatMul (g, weight) y = Add (p, shift)"
    constants = {"flat": np.array([-1]), "places": np.arange(12)[::-1].reshape(1, 3, 4).copy(), "weight": WEIGHT}
    file = _model(f"g ({inputs}) => (float[1, 3, 5] y) {{ {body} }}", constants)
    module = onnx2nn.load(file, dynamic={"z": {1: "n"}})
    z, shift = torch.randn(3, 6, 4), torch.randn(3, 5)
    wanted = torch.cat([run_onnxruntime(file, (sample, shift))[0] for sample in z.split(1, 1)])
    for way in (module, _looped(module)):
        check_same((way(shift=shift, z=z),), (wanted,), "by name")
    renamed = onnx.ModelProto.FromString(file)
    renamed.graph.input[1].name = renamed.graph.node[4].input[1] = "shift:0"
    module = onnx2nn.load(renamed, dynamic={"z": {1: "n"}})
    check_same((module(z, **{"shift:0": shift}),), (wanted,), "by the file's name")


@pytest.mark.parametrize("way", FILES)
def test_inputs_that_do_not_fit(way: str) -> None:
    module = load(way)
    with pytest.raises(ValueError, match=r"Input 'x' has the shape \[2, 3, 5\]\. The model takes \[\?, 3, 4\]\."):
        module(torch.randn(2, 3, 5))
    with pytest.raises(ValueError, match=r"Input 'x' has the shape \[3, 4\]"):
        module(torch.randn(3, 4))
    with pytest.raises(ValueError, match="A batch without samples"):
        module(torch.randn(0, 3, 4))
    with pytest.raises(TypeError, match=r"takes the inputs x\. The call gives 0 by position and z by name\."):
        module(z=torch.randn(2, 3, 4))
    with pytest.raises(TypeError, match="gives 2 by position and none by name"):
        module(torch.randn(2, 3, 4), torch.randn(2, 3, 4))


def test_inputs_with_different_batches() -> None:
    file = mixing("float[1, 3, 4] x, float[1, 1, 5] s", "z = Add (y, s)", "float[1, 3, 5] z")
    module = onnx2nn.load(file, dynamic={"x": {0: "n"}, "s": {0: "n"}})
    x, s = torch.randn(3, 3, 4), torch.randn(3, 1, 5)
    check_same((module(x, s),), (alone(file, x, s),), "two batches")
    with pytest.raises(ValueError, match="Inputs 'x' and 's' have 3 and 2 samples"):
        module(x, s[:2])


def test_outputs_of_different_sizes() -> None:
    """Each sample has as many numbers as it has positive ones; a tensor holds no rows of different lengths."""
    branches = (
        "then_branch = t () => (float[1, 4] a) { a = Neg (x) }, else_branch = e () => (float[1, 4] b) { b = Tanh (x) }"
    )
    body = f"m = ReduceMean <keepdims = 0> (x) c = Greater (m, limit) h = If (c) <{branches}> p = Greater (h, limit) "
    body += "q = Reshape (p, flat) y = Compress (h, q)"
    constants = {"limit": np.array(0, np.float32), "flat": np.array([-1])}
    file = _model(f"g (float[1, 4] x) => (float[k] y) {{ {body} }}", constants)
    module = onnx2nn.load(file, dynamic={"x": {0: "n"}})
    x = torch.tensor([[1.0, -2.0, -3.0, -4.0], [5.0, -6.0, -7.0, -1.0]])
    torch.testing.assert_close(module(x), torch.stack([run_onnxruntime(file, (s,))[0] for s in x.split(1)]))
    with pytest.raises(ValueError, match=r"Output 'y' has the shapes \[\d\] and \[\d\] for two samples"):
        module(torch.tensor([[1.0, -2.0, -3.0, -4.0], [-5.0, -9.0, 7.0, 1.0]]))


def test_a_batch_beside_a_length() -> None:
    """The batch is vectorised, and constants follow the length."""
    body = "m = ReduceMax <keepdims = 1> (x) d = Sub (x, m) y = Reshape (d, target)"
    file = _model(f"g (float[1, 6] x) => (float[1, 6, 1] y) {{ {body} }}", {"target": np.array([1, 6, 1])})
    module = onnx2nn.load(file, dynamic={"x": {0: "n", 1: "t"}})
    assert module.meta["onnx2nn"]["thawed"]["way"] == "vmap"
    x = torch.randn(3, 9)
    torch.testing.assert_close(module(x), (x - x.amax(1, keepdim=True))[..., None])


def test_a_length_of_one_is_no_batch() -> None:
    """Each position of its own would be another model: positions attend to one another."""
    body = "m = ReduceMax <keepdims = 1> (x) y = Sub (x, m)"
    file = _model(f"g (float[1, 1] x) => (float[1, 1] y) {{ {body} }}", {})
    with pytest.raises(FrozenDimensionError, match="'t'"):
        onnx2nn.load(file, dynamic={"x": {1: "t"}})


def test_samples_that_do_not_run_alone() -> None:
    body = "f = Reshape (x, flat) g = Gather (f, places) y = Cast <to = 8> (g)"
    constants = {"flat": np.array([-1]), "places": np.array([[1, 0]])}
    file = _model(f"g (float[1, 4] x) => (string[1, 2] y) {{ {body} }}", constants)
    with pytest.raises(FrozenDimensionError, match="as an output is no tensor"):
        onnx2nn.load(file, dynamic={"x": {0: "n"}})
    body = "f = Reshape (x, flat) g = Gather (f, places) i = Cast <to = 7> (g) h = Add (i, far) y = Gather (table, h)"
    constants |= {"far": np.array([1000]), "table": np.zeros(3, np.float32)}
    file = _model(f"g (float[1, 4] x) => (float[1, 2] y) {{ {body} }}", constants)
    with pytest.raises(FrozenDimensionError, match="Nor does one sample run alone"):
        onnx2nn.load(file, dynamic={"x": {0: "n"}})


def test_what_takes_one_sample_says_so(tmp_path: Path) -> None:
    module, x = load("vmap"), torch.randn(2, 3, 4)
    with pytest.raises(InputError, match=r"Use torch\.export"):
        torch.jit.trace(module, (x,))
    with pytest.raises(VerificationError, match=r"Use torch\.export"):
        onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=[x])


def test_statistics_in_training_are_those_of_the_samples_in_turn() -> None:
    """torch.func.vmap permits no changes in place, so that training with batch statistics is a loop."""
    body = "f = Reshape (x, flat) g = Gather (f, places) y = BatchNormalization (g, scale, shift, mean, var)"
    constants = {"flat": np.array([-1]), "places": np.arange(24)[::-1].reshape(1, 2, 3, 4).copy()}
    constants |= {name: np.array([0.5, 2.0], np.float32) for name in ("scale", "shift", "mean", "var")}
    file = _model(f"g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) {{ {body} }}", constants)
    module, one = onnx2nn.load(file, dynamic={"x": {0: "n"}}), onnx2nn.load(file)
    assert module.meta["onnx2nn"]["thawed"]["way"] == "vmap"
    x = torch.randn(3, 2, 3, 4)
    module.train()
    one.train()
    torch.testing.assert_close(module(x), torch.cat([one(sample) for sample in x.split(1)]))
    for key, value in one.state_dict().items():
        torch.testing.assert_close(module.state_dict()[key], value)
    assert any("running" in key for key in one.state_dict())


def test_weights_that_are_also_inputs_of_the_file() -> None:
    """Files of ONNX's first versions list every weight among the inputs."""
    model = onnx.ModelProto.FromString(mixing())
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    module = onnx2nn.load(model, dynamic={"x": {0: "n"}})
    x = torch.randn(3, 3, 4)
    torch.testing.assert_close(module(x), alone(mixing(), x))


def test_modules_may_have_common_names() -> None:
    model = onnx.ModelProto.FromString(mixing("float[1, 3, 4] x", "z = Mul (y, scale)", "float[1, 3, 5] z"))
    model.graph.initializer.append(numpy_helper.from_array(np.full(5, 2, np.float32), "scale"))
    names = {"weight": "sample.weight", "scale": "run.scale", "places": "arrangement.places"}
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    module = onnx2nn.load(model, dynamic={"x": {0: "n"}})
    assert "sample.weight" in module.state_dict()
    assert onnx2nn.verify_nodes(model, module).ok
    x = torch.randn(3, 3, 4)
    torch.testing.assert_close(module(x), alone(model.SerializeToString(), x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x), module(x))


def test_an_ncnn_model_takes_one_sample(tmp_path: Path) -> None:
    pytest.importorskip("ncnn")
    pytest.importorskip("pnnx")
    with pytest.raises(InputError, match=r"Give module\.one_sample\."):
        onnx2nn.to_ncnn(load("vmap"), tmp_path)
