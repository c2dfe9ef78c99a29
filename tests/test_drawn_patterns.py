"""Random graphs that match the patterns of the rewrite rules, or have channels last, equal ONNX Runtime."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, parser

import onnx2nn
from onnx2nn.errors import UnsupportedModelError
from onnx2nn.rewrite.rewrite_rule import Rule
from tests.drawn.channels_last import ChannelsLastGraph
from tests.drawn.draw import Draw, resized
from tests.drawn.graphs import NoCallError
from tests.drawn.oracle import NO_CALL, answer, difference
from tests.drawn.patterns import RULES, drawn

pytestmark = pytest.mark.filterwarnings("ignore:The file declares dimensions as dynamic")

FAST, HELD = 4, 100
"""Graphs of each rule."""


REFUSALS = (
    "The sizes of the inputs do not fit",
    *("Output size is too small", "Invalid computed output size", "smaller than kernel size"),
    "Expected more than 1 spatial element",
)
"""Our own words, and torch's of pools that give nothing and of an instance with a single element."""


def _asks_for_more(rule: Rule) -> bool:
    """Returns whether a rule asks for what no drawn graph has: names of exporters, or integers that are indices.

    The names tell folded batch normalisations, and weights of 1 that an exporter filled in.
    """
    return rule.name in ("BatchNorm", "Embedding") or not rule.roots.isdisjoint(
        {"InstanceNormalization", "LayerNormalization"}
    )


Model = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def _model(name: str, seed: int) -> Model | None:
    graph = drawn(Draw(random.Random(f"{name}.{seed}")), RULES[name].pattern)
    return None if graph is None else graph.model()


def _said(module: Any, wanted: list[np.ndarray], feeds: dict[str, np.ndarray], rtol: float) -> tuple[str, str]:
    """Returns whether a module is right, refuses the inputs by our own words, or is wrong, and what there is to say."""
    try:
        found = module(*(torch.from_numpy(value.copy()) for value in feeds.values()))
    except Exception as error:  # of any class of torch's; it is wrong, but for what REFUSALS names
        return ("refused" if any(text in str(error) for text in REFUSALS) else "wrong"), repr(error)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    for ours, theirs in zip(results, wanted, strict=True):
        if said := difference(ours, np.asarray(theirs), rtol):
            return "wrong", said
    return "right", ""


def _outcome(made: Model | None, seed: int, *, is_attention: bool = False) -> tuple[str, str]:
    if made is None:
        return "no graph", ""
    model, feeds = made
    try:
        wanted = answer(model, feeds)
    except NO_CALL:
        return "no oracle", ""
    if is_attention and any(np.isnan(value).any() for value in wanted):
        return "no oracle", ""  # 0 for a query without keys, see `raise_patterns` of onnx2nn.load
    about = f"seed {seed}: {onnx.printer.to_text(model)}\n"
    runs = [(feeds, wanted)]
    other = resized(model, feeds, random.Random(seed))
    with contextlib.suppress(*NO_CALL):  # these sizes do not fit each other
        runs.append((other, answer(model, other)))
    kinds = []
    for optimize in (None, "eager") if seed % FAST == 0 else (None,):
        try:
            module = onnx2nn.load(model, optimize=optimize)
        except UnsupportedModelError as error:
            return "refused", about + str(error)
        literal = None
        for given, expected in runs:
            kind, said = _said(module, expected, given, 2e-4)
            if kind == "wrong" and "of the largest element apart" in said:  # noise, if it is the literal nodes' too
                literal = literal or onnx2nn.load(model, raise_patterns=False)
                kind = "right" if _said(literal, expected, given, 1e-4)[0] == "wrong" else "wrong"
            if kind == "wrong":
                return kind, f"{about}optimize={optimize}, sizes {[x.shape for x in given.values()]}: {said}"
            kinds.append(kind)
    return kinds[0], about


def _check(name: str, seeds: range) -> None:
    is_attention = RULES[name].name == "scaled_dot_product_attention"
    _judge([_outcome(_model(name, seed), seed, is_attention=is_attention) for seed in seeds])


def _judge(found: list[tuple[str, str]]) -> None:
    wrong = [said for kind, said in found if kind == "wrong"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)} are wrong", *wrong[:3]])
    refused = [said for kind, said in found if kind == "refused"]
    assert len(refused) <= max(1, len(found) // 10), "\n".join([f"{len(refused)} are refused", *refused[:3]])


@pytest.mark.pinned("onnxruntime")
@pytest.mark.parametrize("name", RULES)
def test_some_graphs(name: str) -> None:
    _check(name, range(FAST))


@pytest.mark.held
@pytest.mark.parametrize("name", RULES)
def test_many_graphs(name: str, request: pytest.FixtureRequest) -> None:
    first = FAST + HELD * request.config.getoption("--seed")
    _check(name, range(first, first + HELD))


def _channels_last(seed: int) -> Model | None:
    with contextlib.suppress(NoCallError):
        return ChannelsLastGraph(Draw(random.Random(f"channels last.{seed}"))).model()
    return None


PARTS = 8
"""Of the graphs with channels last, each of as many as a rule has in the held tier, and four times in the fast one."""


@pytest.mark.pinned("onnxruntime")
@pytest.mark.parametrize("part", range(PARTS))
def test_some_graphs_with_channels_last(part: int) -> None:
    _judge([_outcome(_channels_last(seed), seed) for seed in range(part, 4 * FAST * PARTS, PARTS)])


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
def test_many_graphs_with_channels_last(part: int, request: pytest.FixtureRequest) -> None:
    first = PARTS * (4 * FAST + HELD * request.config.getoption("--seed"))
    _judge([_outcome(_channels_last(seed), seed) for seed in range(first + part, first + HELD * PARTS, PARTS)])


def test_channels_move() -> None:
    """In many of these graphs the order of dimensions changes."""
    moved = 0
    for model in filter(None, map(_channels_last, range(40))):
        with contextlib.suppress(UnsupportedModelError):
            moved += "channels first" in onnx2nn.load(model[0]).meta["onnx2nn"]["raising"]["raised"]
    assert moved > 4


def _applies(rule: Rule, name: str, seed: int) -> bool:
    made = _model(name, seed)
    with contextlib.suppress(UnsupportedModelError):
        return made is not None and rule.name in onnx2nn.load(made[0]).meta["onnx2nn"]["raising"]["raised"]
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not _asks_for_more(rule)])
def test_a_rule_applies(name: str) -> None:
    """What is drawn is no graph that every rule declines."""
    assert any(_applies(RULES[name], name, seed) for seed in range(2000))


FOUND = {
    "a mean over another axis beside the last ones": (
        17,
        "(float[N,2,6] x) => (float[a,b,c] y) <float e = {1e-6}, float[1] w = {0.1}, float[1] o = {-0.3}> {"
        " m = ReduceMean <axes = [-2]> (x) c = Sub (x, m) n = GlobalAveragePool (x) d = Sub (x, n) s = Mul (c, d)"
        " v = GlobalAveragePool (s) p = Add (v, e) q = Sqrt (p) r = Reciprocal (q) f = Mul (w, r) g = Mul (x, f)"
        " k = Neg (n) l = Mul (f, k) t = Add (l, o) y = Add (g, t) }",
        [(3, 2, 6)],
    ),
    "a constant with more dimensions than what is normalised": (
        18,
        "(float[N] x) => (float[a,b] y) <float[1,1] two = {2}, int64[2] axes = {-2, -1}, float e = {0.001}> {"
        " s = Pow (x, two) m = ReduceMean (s, axes) p = Add (m, e) q = Sqrt (p) y = Div (x, q) }",
        [(5,)],
    ),
    "groups of samples": (
        13,
        "(float[N,1] x) => (float[a,b] y) <int64[3] split = {1, 1, 3}, float[1] w = {1}, float[1] o = {0},"
        " int64[2] sizes = {1, 3}> {"
        " s = Reshape (x, split) n = InstanceNormalization (s, w, o) y = Reshape (n, sizes) }",
        [(3, 1)],
    ),
    "a norm that is expanded to more dimensions": (
        18,
        "(double[5,N,2,1] x) => (double[a,b,c,d,f] y) <int64[1] axes = {-1}, double e = {0.001},"
        " int64[5] sizes = {1, 5, 2, 2, 3}> {"
        " n = ReduceL2 (x, axes) c = Clip (n, e) z = Expand (c, sizes) y = Div (x, z) }",
        [(5, 2, 2, 1)],
    ),
    "a mask of the keys alone": (
        17,
        "(float[2,3,5,4] q, float[2,3,4,6] k, bool[6] m, float[2,3,6,2] v) => (float[a,b,c,d] y)"
        " <float low = {-1e30}> {"
        " s = MatMul (q, k) w = Where (m, low, s) p = Softmax <axis = -1> (w) y = MatMul (p, v) }",
        [(2, 3, 5, 4), (2, 3, 4, 6), (6,), (2, 3, 6, 2)],
    ),
    "a mask with more queries than there are": (
        17,
        "(float[2,4,1,3] q, float[2,4,3,2] k, float[1,4,5,1] m, float[2,4,2,4] v) => (float[a,b,c,d] y) {"
        " s = MatMul (q, k) w = Add (s, m) p = Softmax <axis = -1> (w) y = MatMul (p, v) }",
        [(2, 4, 1, 3), (2, 4, 3, 2), (1, 4, 5, 1), (2, 4, 2, 4)],
    ),
}


@pytest.mark.parametrize("about", FOUND)
def test_what_was_found(about: str) -> None:
    opset, text, shapes = FOUND[about]
    model = helper.make_model(
        parser.parse_graph("g " + text), opset_imports=[helper.make_opsetid("", opset)], ir_version=9
    )
    rng = np.random.default_rng(0)
    feeds = {
        info.name: rng.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        if info.type.tensor_type.elem_type != onnx.TensorProto.BOOL
        else np.arange(int(np.prod(shape))).reshape(shape) % 3 > 0
        for info, shape in zip(model.graph.input, shapes, strict=True)
    }
    wanted = answer(model, feeds)
    kind, said = _said(onnx2nn.load(model), wanted, feeds, 1e-5)
    assert kind == "right", said
