"""No file costs an import more than its size and `Limits` allow; a module of it, or an error that names the limit."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError, LimitError, Onnx2nnError, UnsupportedModelError
from onnx2nn.ground.limits import ATTEMPTS, FREE_NODES, Account
from onnx2nn.importing.upper_bounds import bound_of_steps
from onnx2nn.reading.reader import read

ROOT = Path(__file__).resolve().parents[1]


def parsed(nodes: str, constants: str = "", inputs: str = "float[n] x", outputs: str = "float[m] y") -> onnx.ModelProto:
    """Returns a model of nodes in ONNX's text format."""
    text = f'<ir_version: 9, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) <{constants}> {{ {nodes} }}'
    return onnx.parser.parse_model(text)


def laughs(levels: int) -> onnx.ModelProto:
    """Returns a model whose functions call the next one ten times each."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]

    def function(name: str, calls: list[str]) -> onnx.FunctionProto:
        names = ["a", *(f"v{i}" for i in range(len(calls) - 1)), "b"]
        nodes = [
            helper.make_node(c, [a], [b], domain="l") for c, a, b in zip(calls, names, names[1:], strict=False)
        ] or [helper.make_node("Relu", ["a"], ["b"])]
        return helper.make_function("l", name, ["a"], ["b"], nodes, opsets)

    functions = [function(f"f{i}", [f"f{i + 1}"] * 10) for i in range(levels)] + [function(f"f{levels}", [])]
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="l")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n"])],
        [helper.make_tensor_value_info("y", 1, ["n"])],
    )
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def sparse(count: int) -> onnx.ModelProto:
    """Returns a model with sparse tensors of 2**27 elements."""
    model = parsed("y = Relu(x)")
    for index in range(count):
        tensor = model.graph.sparse_initializer.add(dims=[1 << 27])
        tensor.values.CopyFrom(numpy_helper.from_array(np.array([1.0]), f"s{index}"))
        tensor.indices.CopyFrom(numpy_helper.from_array(np.array([3])))
    return model


def doubled(operator: str, first: str, times: int, end: str) -> str:
    """Returns nodes of which each takes the one before twice."""
    lines = [f"c{i + 1} = {operator} (c{i}, c{i})" for i in range(times)]
    return "\n".join([first, *lines, end.format(f"c{times}")])


def chained(step: str, times: int) -> str:
    """Returns nodes that start with the size `s` and end with `e`; a step makes `p1` of `p0`, with numbers for 0, 1."""
    steps = (step.format(i, i + 1) for i in range(times))
    return " ".join(["p0 = Squeeze(s)", *steps, f"e = Identity(p{times})"])


EMPTY = (
    "float[0, 4000000000] e = {}, float[60000, 0] a = {}, float[0, 60000] b = {}, int64[1] zero = {0},"
    " int64[4] p = {0, 0, 2, 0}"
)
SIZES = (
    "int64[1] z = {100000000}, int64[2] p = {0, 100000000}, int64[1] one = {0}, int64[1] k = {4000},"
    " int64[2] column = {4000, 1}, int64 many = {100000000}, int64 number = {1}, int64 three = {3}"
)


def nested_scopes(depth: int) -> onnx.ModelProto:
    """Returns a model whose exporter metadata hold a list inside of lists."""
    model = parsed("h = Conv(x, w) y = Relu(h)", "float[1,1,1,1] w = {1}", "float[1,1,4,4] x")
    for node in model.graph.node:
        for key in ("name_scopes", "class_hierarchy"):
            node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value="[" + "-" * depth + "1]")
    return model


def nested_loops(depth: int) -> onnx.ModelProto:
    """Returns loops inside loops whose carried values change their shape, so that each body is imported repeatedly."""
    body = "acc2 = Concat <axis = 0> (acc, acc)"
    for level in range(depth):
        graph = (
            f"b{level} (int64 i{level}, bool c{level}, float[k{level}] acc)"
            f" => (bool c{level}, float[j{level}] acc2) {{ {body} }}"
        )
        body = f'acc2 = Loop <body: graph = {graph.replace("acc", f"acc{level}_")}> (n, "", acc)'
    return parsed(body.replace("acc2 =", "y =").replace("acc)", "x)"), "int64 n = {3}")


def sized(count: int, nodes: str) -> onnx.ModelProto:
    """Returns a model with so many inputs of a size `s0`, `s1`, ... of their own."""
    shapes = " ".join(f"s{i} = Shape(x{i})" for i in range(count))
    return parsed(f"{shapes} {nodes}", "float[1] one = {1}", ", ".join(f"float[n{i}] x{i}" for i in range(count)))


def voted(targets: int) -> onnx.ModelProto:
    """Returns a tree of one leaf with so many targets."""
    lists = {"nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_values": [1.0]}
    lists |= {"nodes_truenodeids": [0], "nodes_falsenodeids": [0], "target_treeids": [0], "target_nodeids": [0]}
    lists |= {"target_ids": [0], "target_weights": [1.0]}
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=targets, **lists)
    node.attribute.append(helper.make_attribute("nodes_modes", ["LEAF"]))
    model = parsed("y = Relu(x)", inputs="float[n, 1] x", outputs="float[n, m] y")
    model.graph.node[0].CopyFrom(node)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    return model


ALL_SIZES = ", ".join(f"s{i}" for i in range(40))

BOMBS = {
    "groups of a pattern": lambda: parsed(
        f'm = RegexFullMatch <pattern = "{"(" * 9000 + ")" * 9000}"> (t) y = Relu(x)',
        'string[1] t = {"aaa"}',
        outputs="float[m] y, bool[1] m",
    ),
    "targets of a tree": lambda: voted(1 << 31),
    "axes": lambda: parsed("y = Unsqueeze(x, a)", f"int64[4000] a = {{{', '.join(map(str, range(4000)))}}}"),
    "the largest of many sizes": lambda: sized(
        40, f"a = Max({ALL_SIZES}) b = Min({ALL_SIZES}) c = Mul(a, b) y = Expand(one, c)"
    ),
    "inputs of many sizes": lambda: sized(8000, "y = Expand(one, s0)"),
    "functions of 11,000 nodes": lambda: laughs(4),
    "functions of 111,000 nodes": lambda: laughs(5),
    "nested loops": lambda: nested_loops(9),
    "sparse tensors": lambda: sparse(60),
    "4 GB of zeros": lambda: parsed("b = ConstantOfShape(s) y = Add(x, b)", "int64[1] s = {1073741824}"),
    "matrices": lambda: parsed(
        doubled("MatMul", "c0 = ConstantOfShape(s)", 20, "y = Add(x, {})"), "int64[2] s = {4000, 4000}"
    ),
    "mel weights": lambda: parsed(
        "b = MelWeightMatrix(a, a, r, lo, hi) y = Add(x, b)",
        "int64 a = {1048576}, int64 r = {16000}, float lo = {0}, float hi = {8000}",
    ),
    "a mapped sequence": lambda: parsed(
        "c = ConstantOfShape(s) q = SplitToSequence(c, one)"
        " r = SequenceMap <body: graph = b (float[k] e) => (float[k] f) { f = Neg(e) }> (q)"
        " b = ConcatFromSequence <axis = 0> (r) y = Add(x, b)",
        "int64[1] s = {1000000}, int64 one = {1}",
    ),
    "a sequence": lambda: parsed(
        "c = ConstantOfShape(s) q = SplitToSequence(c, one) b = ConcatFromSequence <axis = 0> (q) y = Add(x, b)",
        "int64[1] s = {10000000}, int64 one = {1}",
    ),
    "a sequence of an input": lambda: parsed(
        "q = SplitToSequence(x, one) y = ConcatFromSequence <axis = 0> (q)", "int64 one = {1}", "float[10000000] x"
    ),
    "strings": lambda: parsed(
        doubled("StringConcat", "c0 = Identity(s)", 36, "b = Identity({}) y = Relu(x)"),
        'string[1] s = {"ab"}',
        outputs="float[m] y, string[1] b",
    ),
    "concatenated zeros": lambda: parsed(
        doubled("Concat <axis = 0>", "c0 = ConstantOfShape(s)", 40, "y = Add(x, {})"), "int64[1] s = {8}"
    ),
    "many skips of n-grams": lambda: parsed(
        "y = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 9223372036854775806, min_gram_length = 2,"
        ' mode = "TF", ngram_counts = [0, 0], ngram_indexes = [0, 1], pool_int64s = [2, 3, 5, 4]> (i)',
        "int64[4] i = {2, 3, 5, 4}",
    ),
    "columns of n-grams": lambda: parsed(
        "y = TfIdfVectorizer <max_gram_length = 1, max_skip_count = 0, min_gram_length = 1,"
        ' mode = "TF", ngram_counts = [0], ngram_indexes = [0, 1073741824], pool_int64s = [2, 3]> (i)',
        "int64[4] i = {2, 3, 5, 4}",
    ),
    "an expansion to many dimensions": lambda: parsed(
        "y = Expand(x, s)", inputs="float[3, 1] x, int64[65536] s", outputs="float[a, b] y"
    ),
    "an image": lambda: parsed(
        'y = Resize(i, "", "", s)',
        "float[1, 1, 1, 1] i = {1}, int64[4] s = {1, 1, 268435456, 268435456}",
        outputs="float[a, b, c, d] y",
    ),
    "one hot": lambda: parsed(
        "h = OneHot(d, d, v) y = Add(x, h)", "int64[1] d = {268435456}, float[2] v = {0, 1}", outputs="float[a, b] y"
    ),
    "a window": lambda: parsed("w = BlackmanWindow(n) y = Add(x, w)", "int64 n = {268435456}"),
    "a triangle": lambda: parsed(
        "e = ConstantOfShape(s) t = Trilu(e, k) y = Add(x, t)",
        "int64[2] s = {268435456, 2}, int64 k = {268435456}",
        outputs="float[a, b] y",
    ),
    "repeats": lambda: parsed(
        "o = ConstantOfShape <value = int64[1] {1}> (s) r = NonZero(o) y = Tile(x, r)", "int64[1] s = {16777216}"
    ),
    "a gelu of huge values": lambda: parsed(
        "e = Erf(d) p = Add(e, one) q = Mul(x, p) y = Mul(q, half) d = Div(x, root)",
        "float one = {1}, float half = {0.5}, float root = {1.41421354}",
        "float[1073741824] x",
    ),
    "an endless loop": lambda: parsed(
        'y = Loop <body: graph = b (int64 i, bool c, float[k] a) => (bool c, float[k] z) { z = Add(a, a) }>(n, "", x)',
        "int64 n = {9223372036854775807}",
    ),
    "metadata": lambda: nested_scopes(100_000),
    "a sum over no elements": lambda: parsed("s = ReduceSum <keepdims = 0> (e, zero) y = Add(x, s)", EMPTY),
    "a norm over no elements": lambda: parsed("s = ReduceL2 <keepdims = 0> (e, zero) y = Add(x, s)", EMPTY),
    "a product of no elements": lambda: parsed(
        "s = MatMul(a, b) m = ReduceMean <keepdims = 0> (s) y = Add(x, m)", EMPTY
    ),
    "a border of no elements": lambda: parsed("s = Pad(e, p) m = ReduceMean <keepdims = 0> (s) y = Add(x, m)", EMPTY),
    "an index again and again": lambda: parsed("i = Expand(one, z) g = Gather(x, i) y = Relu(g)", SIZES),
    **{
        f"{name} of sizes": lambda nodes=nodes: parsed(
            f"s = Shape(x) {nodes} c = Cast <to = 1> (e) y = Add(x, c)", SIZES
        )
        for name, nodes in {
            "an expansion": "e = Expand(s, z)",
            "repetitions": "e = Tile(s, z)",
            "a border": "e = Pad(s, p)",
            "classes": "v = Concat <axis = 0> (s, s) e = OneHot(one, z, v)",
            "all products": "a = Expand(s, k) b = Reshape(a, column) e = Mul(a, b)",
            "a range": "n = Squeeze(s) l = Add(n, many) e = Range(n, l, number)",
            "a concatenation": doubled("Concat <axis = 0>", "c0 = Identity(s)", 28, "e = Identity({})"),
            "squares": doubled("Mul", "c0 = Squeeze(s)", 26, "e = Identity({})"),
            "squares of a sum": doubled("Mul", "n = Squeeze(s) c0 = Add(n, number)", 20, "e = Identity({})"),
            "products of quotients": chained(
                "q{0} = Add(p{0}, number) d{0} = Div(q{0}, three) p{1} = Mul(d{0}, q{0})", 40
            ),
        }.items()
    },
}

_CHILD = """
import json, logging, resource, sys, time, warnings
import onnx, torch, onnx2nn
warnings.simplefilter("ignore"); logging.disable(50)
small = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
small = onnx.parser.parse_model(small)
onnx2nn.load(small)
def measured(path):
    start = time.process_time()
    for _ in range(20):
        onnx2nn.load(small)
    load = (time.process_time() - start) / 20
    start = time.process_time()
    try:
        left, message = onnx2nn.load(path).meta["onnx2nn"].get("left_to_run_time", []), ""
    except onnx2nn.errors.Onnx2nnError as error:
        left, message = [], str(error)
    return (time.process_time() - start) / load, left, message
for path in sys.argv[1:]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    loads, left, message = measured(path)
    if loads > 1000:  # what else runs can only add to it, and not the same to both measurements
        loads = min(loads, measured(path)[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used.ru_maxrss
    print(json.dumps([loads, peak << 10, left, message]), flush=True)
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, int, list[str], str]]:
    """Time, bytes, nodes left to run time and the error of loading each bomb, all in one process of its own.

    The time is in loads of a model of one node, just before: a second has more or less of them by the machine and by
    what else runs on it. A long one is measured twice, and is the shorter.
    """
    pytest.importorskip("resource", reason="the system does not tell the memory of a process")
    folder = tmp_path_factory.mktemp("bombs")
    paths = []
    for number, make in enumerate(BOMBS.values()):
        paths.append(folder / f"{number}.onnx")
        onnx.save(make(), paths[-1])
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, *map(str, paths)], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    lines = child.stdout.splitlines()
    assert len(lines) == len(BOMBS), child.stderr[-2000:]
    return dict(zip(BOMBS, map(json.loads, lines), strict=True))


MOST_LOADS = 2000
"""2.5 s where a model of one node takes 1.26 ms, as it did when the slowest bomb, nested loops, took 1,361 loads."""


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_or_left_to_run_time(name: str, loaded: dict[str, tuple[float, int, list[str], str]]) -> None:
    """A small file takes neither the memory nor the time of the process that imports it."""
    loads, size, left, message = loaded[name]
    assert loads < MOST_LOADS and size < 1 << 30, (loads, size)
    for text in (*left, *([message] if "Limits." in message else [])):
        assert re.search(r"above the limit of [\d.]+ \(Limits\.\w+\)\. .*--limit \w+=", text), text


REFUSED = {
    "functions of 11,000 nodes": "expansion",
    "functions of 111,000 nodes": "expansion",
    "sparse tensors": "constant_bytes",
    "repeats": "elements",
    "axes": "rank",
}
LEFT = {
    "matrices": "folding_seconds",
    "mel weights": "constant_bytes",
    "a mapped sequence": "sequence_length",
    "strings": "constant_bytes",
    "one hot": "constant_bytes",
    "columns of n-grams": "constant_bytes",
    "an image": "constant_bytes",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_names_the_limit(name: str, loaded: dict[str, tuple[float, int, list[str], str]]) -> None:
    assert f"(Limits.{REFUSED[name]})" in loaded[name][3]


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_run_time_is_listed(name: str, loaded: dict[str, tuple[float, int, list[str], str]]) -> None:
    assert any(f"(Limits.{LEFT[name]})" in text for text in loaded[name][2])


def test_what_is_left_to_run_time_is_computed_there() -> None:
    """Results are those of folding, whichever limit is lowered."""
    model = parsed(
        "a = MatMul(u, v) b = Transpose(a) c = Tile(b, r) d = Resize(d4, '', '', s) e = Reshape(d, t)"
        " f = Add(c, e) q = SplitToSequence(f, one) g = ConcatFromSequence <axis = 1> (q) y = Add(g, x)".replace(
            "'", '"'
        ),
        "int64[2] r = {2, 1}, int64[4] s = {1, 1, 1200, 600}, int64[2] t = {1200, 600}, int64 one = {400},"
        "float[1,1,2,2] d4 = {1,2,3,4}",
        "float[k] x",
        "float[a, b] y",
    )
    random = np.random.default_rng(0)
    for name in ("u", "v"):
        array = random.integers(-3, 3, (600, 600)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    x = torch.ones(1800)
    expected = onnx2nn.load(model)(x)
    for lowered in ({"constant_bytes": 1}, {"folding_seconds": 1e-9}, {"sequence_length": 1}):
        module = onnx2nn.load(model, limits=onnx2nn.Limits(**lowered))
        torch.testing.assert_close(module(x), expected, rtol=0, atol=0)
    stored = 2 * 4 * 600 * 600
    assert expected.shape == (400, 1800)
    assert stored > 1 << 20  # stored tensors raise the limits, which are therefore not reached by all nodes


def test_limits_grow_with_the_stored_tensors() -> None:
    """A matrix of the file may be transposed, cast and widened, however large it is."""
    account = Account(onnx2nn.Limits(constant_bytes=1))
    read(parsed("y = MatMul(x, w)", "float[2, 2] w = {1, 2, 3, 4}"), account=account)
    assert account.free_bytes == 1 + 16 * 16
    account.take_bytes(257, "Constants have")
    with pytest.raises(LimitError, match=r"Limits\.constant_bytes"):
        account.take_bytes(1, "Constants have")


def test_external_data_count_as_stored(tmp_path: Path) -> None:
    weight = np.ones((300, 300), np.float32)
    model = parsed("y = MatMul(x, w)")
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
    account = Account()
    read(tmp_path / "m.onnx", account=account)
    assert account.stored_bytes == weight.nbytes


@pytest.mark.parametrize("spellings", [("w.bin",), ("w.bin", "./w.bin", ".//w.bin")])
def test_tensors_that_share_bytes_of_a_data_file_are_counted(tmp_path: Path, spellings: tuple[str, ...]) -> None:
    """A file of 1 MB is 400 weights of 1 MB each, whatever it is called in them; two of them are tied weights."""
    size = 1 << 18
    (tmp_path / "w.bin").write_bytes(bytes(4 * size))

    def write(count: int) -> Path:
        terms = " ".join(f"y{i} = Add(x, w{i})" for i in range(count))
        model = parsed(terms, outputs=", ".join(f"float[m] y{i}" for i in range(count)))
        for i in range(count):
            tensor = model.graph.initializer.add(name=f"w{i}", data_type=1, dims=[size], data_location=1)
            tensor.external_data.add(key="location", value=spellings[i % len(spellings)])
        onnx.save(model, tmp_path / "m.onnx")
        return tmp_path / "m.onnx"

    account = Account()
    read(write(2), account=account)
    assert account.stored_bytes == 4 * size
    assert len(onnx2nn.load(write(3)).state_dict()) == 3
    with pytest.raises(LimitError, match=r"shares its bytes in the data file.*Limits\.constant_bytes"):
        onnx2nn.load(write(400))
    onnx2nn.check(write(400), limits=onnx2nn.Limits(constant_bytes=1 << 29))


def test_attempts_are_held_to_one_account() -> None:
    """Each attempt has the limits for itself, so that it ends alike; all together have a few times of them."""
    account = Account()
    for _ in range(ATTEMPTS):
        account.renewed().visit(FREE_NODES)
    with pytest.raises(LimitError, match=r"All attempts to import the model visit 40001 nodes.*Limits\.expansion"):
        account.renewed().visit(1)
    for _ in range(ATTEMPTS):
        account.renewed().take_seconds(1.0, "Constants take")
    with pytest.raises(LimitError, match=r"All attempts .*8\.1 seconds, above the limit of 8\.0"):
        account.renewed().take_seconds(0.1, "Constants take")
    with pytest.raises(LimitError) as error:
        account.renewed().take_seconds(2.0, "Constants take")
    assert "Constants take 2.0 seconds" in str(error.value)


def test_the_length_of_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = parsed("y = Relu(x)")
    del model.graph.node[:]
    for i in range(60):
        model.graph.node.add(op_type=f"Unknown{i}{'o' * 300}", input=["x"], output=[f"y{i}"], name="n" * 300)
    model.graph.output[0].name = "y0"
    with pytest.raises(UnsupportedModelError) as error:
        onnx2nn.load(model)
    whole = str(error.value)
    assert 10_000 < len(whole) < 20_100
    with pytest.raises(UnsupportedModelError) as error:
        onnx2nn.load(model, limits=onnx2nn.Limits(message_length=1000))
    assert str(error.value).startswith(whole[:1000]) and "more characters)" in str(error.value)
    assert len(str(error.value)) < 1050 and len(error.value.problems) == 60
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + b"n" * 100)
    assert main(["check", str(tmp_path / "m.onnx"), "--limit", "message_length=10"]) == 2
    assert len(capsys.readouterr().err) < 100


@pytest.mark.parametrize("value", [0, -1, True, "3", float("nan"), None])
def test_a_limit_is_a_number_above_0(value: object) -> None:
    for name in ("nodes", "folding_seconds"):
        with pytest.raises(InputError, match=name):
            onnx2nn.Limits(**{name: value})  # type: ignore[arg-type]  # a wrong value is the point
    with pytest.raises(InputError, match="a whole number"):
        onnx2nn.Limits(nodes=1.5)  # type: ignore[arg-type]  # as above


def test_every_entrance_takes_limits(tmp_path: Path) -> None:
    model = laughs(2)
    onnx.save(model, tmp_path / "m.onnx")
    low = onnx2nn.Limits(nodes=3)
    entrances = [
        lambda: onnx2nn.load(model, limits=low),
        lambda: onnx2nn.check(model, limits=low),
        lambda: onnx2nn.verify(model, limits=low),
        lambda: onnx2nn.verify_nodes(model, limits=low),
        lambda: onnx2nn.simplify(model, limits=low),
        lambda: onnx2nn.to_python(model, tmp_path / "source", limits=low),
        lambda: onnx2nn.load(tmp_path / "m.onnx", limits=low),
    ]
    for entrance in entrances:
        with pytest.raises(LimitError, match=r"Limits\.nodes") as error:
            entrance()
        again = pickle.loads(pickle.dumps(error.value))
        assert (str(again), again.limit, again.allowed) == (str(error.value), "nodes", 3)


@pytest.mark.parametrize("command", ["check", "convert", "verify", "simplify", "ncnn"])
def test_every_command_takes_limits(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(laughs(2), tmp_path / "m.onnx")
    more = {"simplify": [str(tmp_path / "s.onnx")], "ncnn": ["-o", str(tmp_path / "n")]}.get(command, [])
    assert main([command, str(tmp_path / "m.onnx"), *more, "--limit", "nodes=3"]) == 2
    assert "Limits.nodes" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nodes", "nodes=", "nodes=-1", "nodes=x", "nodes=1.5", "folding_seconds=nan", "a=1"])
def test_wrong_limits_of_a_command(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "m.onnx", "--limit", text])
    assert "--limit" in capsys.readouterr().err


def test_a_limit_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(laughs(1), tmp_path / "m.onnx")
    assert main(["check", str(tmp_path / "m.onnx"), "--limit", "nodes=3", "--limit", "nodes=4"]) == 2
    assert "nodes twice" in capsys.readouterr().err


def test_raised_limits_are_taken() -> None:
    model = parsed("q = SplitToSequence(x, one) y = ConcatFromSequence <axis = 0> (q)", "int64 one = {1}", "float[9] x")
    with pytest.raises(LimitError):
        onnx2nn.load(laughs(4))
    onnx2nn.check(laughs(2), limits=onnx2nn.Limits(expansion=1000))
    module = onnx2nn.load(model, limits=onnx2nn.Limits(sequence_length=3))
    torch.testing.assert_close(module(torch.ones(9)), torch.ones(9))


def test_the_table_in_the_documentation() -> None:
    text = (ROOT / "docs" / "untrusted_files.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", text, re.MULTILINE)
    assert rows == [(name, str(default)) for name, default in dataclasses.asdict(onnx2nn.Limits()).items()]


def test_errors_are_ours() -> None:
    assert issubclass(LimitError, Onnx2nnError)
    with pytest.raises((LimitError, UnsupportedModelError)):
        onnx2nn.load(parsed("y = Tile(x, r)", "int64[3] r = {1, 1, 1}"), limits=onnx2nn.Limits(elements=2))


@pytest.mark.parametrize("place", ["node", "weight"])
def test_scopes_deeper_than_pythons_stack(place: str, tmp_path: Path) -> None:
    """A module tree is as deep as authors write them; a file with 60,000 scopes in a name loads and is written."""
    model = parsed("h = Conv(x, w) y = Relu(h)", "float[1,1,1,1] w = {1}", "float[1,1,4,4] x", "float[a,b,c,d] y")
    if place == "node":
        model.graph.node[0].name = "/" + "/".join(["a"] * 60_000) + "/Conv"
    else:
        model.graph.initializer[0].name = model.graph.node[0].input[1] = ".".join(["a"] * 60_000) + ".weight"
    module = onnx2nn.load(model)
    torch.testing.assert_close(module(torch.ones(1, 1, 4, 4)), torch.ones(1, 1, 4, 4))
    onnx2nn.to_python(model, tmp_path)


def test_an_input_of_many_sizes_is_not_read_one_by_one() -> None:
    """The scales of a Resize are an input of 2^28 numbers; a list of them took 2 GB, and symbols for them minutes."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 19]>
        g (float[1, 1, 4, 4] x, float[268435456] scales) => (float[a, b, c, d] y) { y = Resize(x, , scales) }"""
    )
    tracemalloc.start()
    try:
        onnx2nn.load(model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 28


def test_sizes_of_unknown_rank() -> None:
    """How many sizes an Expand takes is unknown where an If decides their rank; the operator reads them in the call."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[3, 1] x, bool c, int64[2] s) => (float[a, b] y) {
        sizes = If(c) <then_branch = t () => (t1) { t1 = Identity(s) },
                       else_branch = e () => (e1) { e1 = Constant <value = int64[1, 2] {3, 1}> () }>
        y = Expand(x, sizes) }"""
    )
    x = torch.ones(3, 1)
    y = onnx2nn.load(model)(x, torch.tensor(True), torch.tensor([3, 4]))
    torch.testing.assert_close(y, torch.ones(3, 4))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (5, 2, 1, 4), (3, 2, 7, 1), (2, 3, 6, 5)], ids=str)
def test_the_bound_of_recurrent_layers_holds(sizes: tuple[int, int, int, int], layers: int) -> None:
    """Multiplications and elements of all steps of an LSTM, counted by its definition."""
    steps, batch, features, hidden = sizes
    widths = [features] + [hidden] * (layers - 1)
    weights = [torch.empty(1, 4 * hidden, size) for width in widths for size in (width, hidden)]
    multiplied = steps * batch * sum(4 * hidden * (width + hidden) for width in widths)
    made = layers * steps * batch * 5 * hidden
    bound = bound_of_steps([torch.empty(steps, batch, features), *weights, None], [layers, 0, 0.5])
    assert bound >= max(multiplied, made)
    assert bound_of_steps([torch.empty(0, 1 << 20), *weights], []) >= 1 << 20
