"""A call of a module with wrong inputs says so in words of ONNX; none passes and gives another model's result."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import onnx2nn
from onnx2nn.errors import CallError, InputError, ModuleInputError, OperatorError
from tests import suitecases

TEXT = """<ir_version: 9, opset_import: ["" : 21]> g (float[n, 4] x, int64[n] "the.index") => (float[a, b] y)
<float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { h = MatMul(x, w) y = Gather(h, "the.index") }"""
X, INDEX = torch.ones(2, 4), torch.tensor([0, 1])

WRONG = {
    "too many": ((X, INDEX, X), {}, r"has 3 inputs, the model takes 2: 'x', 'the.index'"),
    "too few": ((X,), {}, r"lacks the input 'the.index'"),
    "none": ((), {}, r"lacks the input 'x'"),
    "an unknown name": ((X,), {"z": INDEX}, r"has an input 'z'. The model's inputs are 'x', 'the.index'"),
    "one twice": ((X, INDEX), {"x": X}, r"gives the input 'x' twice"),
    "size": ((X[:, :3], INDEX), {}, r"Input 'x' has the shape \[2, 3\]. The model takes \(n, 4\).*dynamic=.'x': .1: "),
    "rank": ((X[0, 0], INDEX), {}, r"Input 'x' has 0 dimensions, \[\]. The model takes \(n, 4\)"),
    "type": ((X.int(), INDEX), {}, r"Input 'x' has the type torch.int32, the model takes torch.float32. Convert it"),
    "no tensor": (("x", INDEX), {}, r"Input 'x' is a str. Give a torch.Tensor"),
}


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    return onnx2nn.load(onnx.parser.parse_model(TEXT))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs(name: str, module: torch.nn.Module) -> None:
    args, kwargs, message = WRONG[name]
    for kind in (ModuleInputError, InputError, TypeError, RuntimeError):
        with pytest.raises(kind, match=message):
            module(*args, **kwargs)


COUNTED = """<ir_version: 9, opset_import: ["" : 21]> g (float[4] x) => (float y)
{ n = Size(x) c = Cast <to = 1> (n) s = ReduceSum <keepdims = 0> (x) y = Div(s, c) }"""


def test_sizes_that_the_program_holds_as_numbers() -> None:
    """torch would divide the sum of eight numbers by four. By name, and in training too."""
    module = onnx2nn.load(onnx.parser.parse_model(COUNTED))
    assert module(torch.ones(4)) == 1.0
    for given, named in (((torch.ones(8),), {}), ((), {"x": torch.ones(8)})):
        for mode in (module.eval(), module.train()):
            with pytest.raises(ModuleInputError, match=r"has the shape \[8\]. The model takes \(4\)"):
                mode(*given, **named)


def test_integers_of_another_width_and_floats_for_integers() -> None:
    """int32 wraps around where int64 does not; a cast of the file is none for a float."""
    text = '<ir_version: 9, opset_import: ["" : 21]> g (int32[n] x) => (int32[n] y) { y = Mul(x, x) }'
    module = onnx2nn.load(onnx.parser.parse_model(text))
    x = torch.tensor([1 << 20], dtype=torch.int32)
    assert module(x).tolist() == [0]
    for other in (x.long(), x.float(), x.bool(), x.to(torch.uint8)):
        with pytest.raises(ModuleInputError, match=r"the model takes torch.int32. Convert it"):
            module(other)


def test_float_types_of_the_caller_pass() -> None:
    """A module in half or double precision takes its own type; autocast gives it another one."""
    text = '<ir_version: 9, opset_import: ["" : 21]> g (float[n, 4] x) => (float[n, 4] y) { y = Tanh(x) }'
    module = onnx2nn.load(onnx.parser.parse_model(text))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert module(X.to(dtype)).dtype == dtype


def _others(x: torch.Tensor) -> list[torch.Tensor]:
    """Returns tensors that are not what an input of fixed size takes: another rank, size and kind of numbers."""
    longer = [torch.cat([x, x.narrow(axis, 0, 1)], axis) for axis in range(x.ndim) if x.shape[axis]]
    kinds = [x.to(torch.int32 if x.is_floating_point() else torch.float32)]
    return [x.unsqueeze(0), *longer, *kinds]


def test_no_wrong_input_passes() -> None:
    """A model of each operator in onnx's suite, whose inputs have fixed sizes: none of their calls gives a result."""
    called = 0
    for test, *_ in suitecases.node_cases().values():
        module = onnx2nn.load(test.model)
        given = [torch.from_numpy(np.asarray(x)) for x in test.inputs if _is_tensor(x)]
        declared = [spec["shape"] for spec in module.meta["onnx2nn"]["declared"]]
        if len(given) != len(declared) or None in declared or not given:
            continue
        for number, x in enumerate(given):
            for other in _others(x):
                with pytest.raises(ModuleInputError):
                    module(*given[:number], other, *given[number + 1 :])
                called += 1
    assert called > 300


def _is_tensor(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "fiub" and x.dtype.itemsize > 1


def graph_of(signature: str, nodes: str) -> onnx.ModelProto:
    head = '<ir_version: 9, opset_import: ["" : 21, "com.microsoft" : 1]> g'
    return parser.parse_model(f"{head} {signature} {{ {nodes} }}")


LOOKUP = "q = Relu(x) u = Gather(q, i)"
FAILING = {
    "torch refuses an index": (
        "(float[n, 4] x, int64[k] i) => (float[a, b] y)",
        "r = Relu(x) y = Gather(r, i)",
        (X, torch.tensor([0, 5])),
        r"^Node 'y' \(Gather\) cannot be computed\. Give .*: IndexError: index 5 is out of bounds",
    ),
    "in a loop": (
        "(float[n, 4] x, int64[k] i, int64 m) => (float[a, b] y)",
        f"y = Loop(m, , x) <body = b (int64 t, bool c, float[d, e] x) => (bool o, float[f, h] u) {{"
        f" o = Identity(c) {LOOKUP} }}>",
        (X, torch.tensor([0, 5]), torch.tensor(2)),
        r"^Node 'u' \(Gather\)",
    ),
    "in a branch": (
        "(float[n, 4] x, int64[k] i, bool c) => (float[a, b] y)",
        f"y = If(c) <then_branch = p () => (float[d, e] u) {{ {LOOKUP} }}, "
        "else_branch = e () => (float[f, h] w) { w = Relu(x) }>",
        (X, torch.tensor([0, 5]), torch.tensor(True)),
        r"^Node 'u' \(Gather\)",
    ),
    "a singular matrix": (
        "(float[2, 2] x) => (float[2, 2] y)",
        "r = Relu(x) y = com.microsoft.Inverse(r)",
        (torch.ones(2, 2),),
        r"^Node 'y' \(Inverse\) .*the input matrix is singular",
    ),
    "slices of different sizes": (
        "(float[n, 4] x) => (float[a, b] y)",
        "y = Scan<num_scan_inputs = 1, body = p (float[4] v) => (float[q] s) {"
        " z = Sub(v, v) k = Greater(v, z) s = Compress(v, k) }>(x)",
        (torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0]]),),
        r"^Node 'y' \(Scan\) .*: RuntimeError: stack expects each tensor to be equal size",
    ),
    "strings for numbers": (
        "(string[2, 2] x) => (string[2, 2] y)",
        "y = Trilu(x)",
        (np.array([["a", "b"], ["c", "d"]], object),),
        r"^Node 'y' \(Trilu\) .*: TypeError: triu",
    ),
    "in a function": (
        "(float[n, 4] x, int64[k] i) => (float[a, b] y)",
        "y = own.lookup(x, i)",
        (X, torch.tensor([0, 5])),
        r"^Node 'u' \(Gather\)",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_error_of_torch_names_the_node(name: str) -> None:
    """It is an error of ours, and of the class of torch's error, which is its cause."""
    signature, nodes, given, message = FAILING[name]
    model = graph_of(signature, nodes)
    if "own." in nodes:
        body = parser.parse_function(f'<opset_import: ["" : 21], domain: "own"> lookup (x, i) => (u) {{ {LOOKUP} }}')
        model.functions.append(body)
        model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    module = onnx2nn.load(model)
    for taken in (module, copy.deepcopy(module)):
        with pytest.raises(CallError, match=message) as error:
            taken(*given)
        assert isinstance(error.value, type(error.value.__cause__)) and not isinstance(error.value, InputError)
        again = pickle.loads(pickle.dumps(error.value))
        assert (str(again), type(again)) == (str(error.value), type(error.value))


def test_a_refusal_of_an_operator_names_the_node() -> None:
    model = graph_of("(float[2] a, int64 p) => (float[2] y)", "s = SequenceConstruct(a, a) y = SequenceAt(s, p)")
    with pytest.raises(OperatorError, match=r"^Node 'y' \(SequenceAt\): position=5 lies outside .* 2 elements"):
        onnx2nn.load(model)(torch.ones(2), torch.tensor(5))


def test_errors_of_hooks_are_unchanged(module: torch.nn.Module) -> None:
    def hook(*_: object) -> None:
        raise RuntimeError("of the caller")

    inner = onnx2nn.load(graph_of("(float[2] x) => (float[2] y)", "y = Relu(x)"))
    handle = inner.register_forward_hook(hook)
    with pytest.raises(RuntimeError, match=r"^of the caller$"):
        inner(torch.ones(2))
    handle.remove()
    layered = onnx2nn.load(
        graph_of(
            "(float[2, 4] x) => (float[a, b] y)", "w = Constant <value = float[4, 1] {1, 1, 1, 1}> () y = MatMul(x, w)"
        )
    )
    layers = list(layered.children())
    assert layers
    for layer in layers:
        layer.register_forward_hook(hook)
        with pytest.raises(RuntimeError, match=r"^of the caller$"):
            layered(X)


REFUSED_BY_TORCH = {
    "no extreme": (
        "y = ReduceMax <keepdims = 0> (x, first)",
        (0, 4),
        r"n >= 1 is needed by node 'y' \(ReduceMax\): .*\. Here n, dimension 0 of input 'x', is 0\.",
    ),
    "no place of an extreme": ("y = ArgMin <axis = 0> (x)", (0, 4), r"n >= 1 is needed by node 'y' \(ArgMin\)"),
    "a window larger than what it moves over": (
        "z = Unsqueeze(x, first) y = MaxPool <kernel_shape = [5]> (z)",
        (2, 3),
        r"m >= 5 is needed by node 'y' \(MaxPool\): .*\. Here m, dimension 1 of input 'x', is 3\.",
    ),
    "more than there is to crop": (
        "p = Neg(m) z = Concat <axis = 0> (zero, p) y = Pad(x, z, , first)",
        (2, 3),
        r"n >= m is needed by node 'y' \(Pad\): .*\. Here n, .* is 2, m, dimension 1 of input 'x', is 3\.",
    ),
}


@pytest.mark.parametrize("name", REFUSED_BY_TORCH)
def test_a_size_that_torch_refuses_is_named(name: str) -> None:
    """Nothing checks it before the call, so that exported programs need no bound that only an empty input exceeds."""
    nodes, shape, message = REFUSED_BY_TORCH[name]
    module = onnx2nn.load(
        onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, m] x) => (float y)
<int64[1] first = {{0}}, int64[1] second = {{1}}, int64[1] zero = {{0}}, int64[1] two = {{2}}> {{
    s = Shape(x) n = Gather <axis = 0> (s, first) m = Gather <axis = 0> (s, second) {nodes} }}""")
    )
    for taken in (module, copy.deepcopy(module)):
        with pytest.raises(ValueError, match=rf"^The sizes of the inputs do not fit\. .*{message}"):
            taken(torch.ones(shape))
    assert not module.meta["onnx2nn"]["guards"]
    assert module(torch.ones(8, 6)).numel()


def test_tools_see_the_module_alone(module: torch.nn.Module) -> None:
    expected = module(X, INDEX)
    exported = torch.export.export(module, (X, INDEX)).module()
    traced = torch.jit.trace(module, (X, INDEX))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    symbolic = torch.fx.symbolic_trace(module)
    for other in (exported, traced, compiled, symbolic):
        torch.testing.assert_close(other(X, INDEX), expected, rtol=0, atol=0)


def test_a_branch_that_fits_for_no_sizes_is_not_chosen() -> None:
    """Where sizes choose a branch, what it demands is known at import; its sizes are refused, not the model."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]> g (float[n] x) => (float[m] y)
        <int64 zero = {0}, int64[1] zeros = {0}> {
            n = Shape(x) k = Squeeze(n) some = Greater(k, zero)
            y = If(some) <
                then_branch = a () => (float[p] u) { u = Tile(x, n) },
                else_branch = b () => (float[q] v) { v = Slice(x, zeros, n, zeros, n) }
            >
        }""")
    module = onnx2nn.load(model)
    for size in (1, 3):
        torch.testing.assert_close(module(torch.ones(size)), torch.ones(size * size))
    with pytest.raises(
        ValueError, match=r"n >= 1 is needed by .*\(If\): in the other branch, .* a step of a slice is not 0"
    ):
        module(torch.ones(0))
