"""nn.MultiheadAttention comes back as the layer, with the masks that it was called with."""

from __future__ import annotations

import pytest
import torch
from realmodels import EXPORTERS, Tensors, check_against_onnxruntime, check_same, check_travels, run, seeded
from tiers import mostly_slow
from torch import nn

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened

FEATURES, HEADS, STEPS = 8, 2, 5


def _attention(**options: bool) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(FEATURES, HEADS, batch_first=True, **options)


class Masked(nn.Module):
    """One attention of each kind of call, each an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.weighed, self.faded, self.plain = *(_attention() for _ in range(3)), _attention(bias=False)
        self.padded = nn.TransformerEncoderLayer(FEATURES, HEADS, 16)
        self.causal = nn.TransformerEncoderLayer(FEATURES, HEADS, 16, batch_first=True)

    def forward(
        self, x: torch.Tensor, future: torch.Tensor, bias: torch.Tensor, padding: torch.Tensor, fade: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        a, b, c = (x + step for step in range(3))  # exporters compute once what is written twice
        triangle = nn.Transformer.generate_square_subsequent_mask(STEPS)
        return (
            self.both(a, a, a, attn_mask=future, key_padding_mask=padding, need_weights=False)[0],
            self.weighed(b, b, b, attn_mask=bias)[0],
            self.faded(c, c, c, key_padding_mask=fade)[0],
            self.plain(x, x, x, need_weights=False)[0],
            self.padded(x.transpose(0, 1), src_key_padding_mask=padding),
            self.causal(x, src_mask=triangle, is_causal=True),
        )


def _inputs(n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    padding = torch.zeros(n, STEPS, dtype=torch.bool)
    padding[0, 3:] = True
    future = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
    bias, fade = torch.randn(STEPS, STEPS, generator=generator), torch.randn(n, STEPS, generator=generator)
    return torch.randn(n, STEPS, FEATURES, generator=generator), future, bias, padding, fade


@pytest.mark.parametrize("exporter", mostly_slow(EXPORTERS, ["torchscript"]))
def test_masks(exporter: str) -> None:
    """Every attention is the layer, called with the author's masks; its weights are the author's.

    The TorchScript exporter keeps no name of an attention without biases.
    """
    original = seeded(Masked)
    path = EXPORTERS[exporter]("multihead", original, _inputs(2), _inputs(3))
    module = onnx2nn.load(path)
    report = module.meta["onnx2nn"]["raising"]
    assert (report["raised"]["MultiheadAttention"], report["dropped"]) == (5 + (exporter == "dynamo"), [])
    graph = flattened(module).graph
    calls = {node.target: node for node in graph.find_nodes(op="call_module") if node.kwargs}
    masks = {name: {option: str(given) for option, given in node.kwargs.items()} for name, node in calls.items()}
    unmasked = {"need_weights": "False"}
    assert masks | {"plain": unmasked, "causal.self_attn": {}} == {
        "both": {"key_padding_mask": "padding", "attn_mask": "future", **unmasked},
        "weighed": {"attn_mask": "bias", **unmasked},
        "faded": {"key_padding_mask": "fade", **unmasked},
        "plain": unmasked,
        "padded.self_attn": {"key_padding_mask": "padding", **unmasked},
        "causal.self_attn": {},
    }, masks
    assert masks.get("causal.self_attn", {}).keys() <= {"attn_mask", "need_weights"}
    if exporter == "dynamo":
        original.load_state_dict(module.state_dict())
    literal = onnx2nn.load(path, raise_patterns=False)
    for size in (2, 3, 1):
        inputs = _inputs(size)
        outputs = check_against_onnxruntime(path, module, inputs)
        check_same(run(literal, inputs), outputs, "the literal import against the raised one")


class Unmasked(nn.Module):
    """Attentions without masks: two with the batch first, one of them called repeatedly, and one with the steps first.

    Args:
        repeats: the number of calls.
    """

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats
        self.first, self.repeated = _attention(), _attention()
        self.steps_first = nn.MultiheadAttention(FEATURES, HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(x, x, x, need_weights=False)[0]
        for _ in range(self.repeats):
            x = x + self.repeated(x, x, x, need_weights=False)[0]
        y = (x * 2).transpose(0, 1) + 1
        y = self.steps_first(y, y, y, need_weights=False)[0]
        return x.mean() + y


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_batch_is_first_as_in_the_authors_module(exporter: str) -> None:
    """No transposes stand around a call; a layer that the author calls with the steps first stays so.

    In a file of the TorchScript exporter the second call of an attention is not raised.
    """
    repeats = 2 if exporter == "dynamo" else 1
    original, inputs = seeded(lambda: Unmasked(repeats)), (_inputs(2)[0],)
    path = EXPORTERS[exporter]("multihead_unmasked", original, inputs, (_inputs(3)[0],))
    module = onnx2nn.load(path)
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.MultiheadAttention)}
    assert {name: layer.batch_first for name, layer in layers.items()} == {
        "first": True,
        "repeated": True,
        "steps_first": False,
    }
    transposes = flattened(module).graph.find_nodes(op="call_method", target="transpose")
    assert len(transposes) == 1, module.code
    seen: dict[str, list[tuple[int, ...]]] = {}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _, given, __, name=name: seen.setdefault(name, []).append(given[0].shape))
    for size in (2, 3, 1):
        check_against_onnxruntime(path, module, (_inputs(size)[0],))
    assert seen["repeated"] == [(size, STEPS, FEATURES) for size in (2, 3, 1) for _ in range(repeats)]
    assert seen["steps_first"] == [(STEPS, size, FEATURES) for size in (2, 3, 1)]
    report = onnx2nn.verify_nodes(path, onnx2nn.load(path), input_shapes={"x": (2, STEPS, FEATURES)})
    assert report.ok, report


class Causal(nn.Module):
    """Attention to what comes before, as OpenCLIP's texts have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(FEATURES), _attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask, y = torch.full((STEPS, STEPS), float("-inf")).triu(1), self.norm(x)
        return x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_batch_is_first_under_a_causal_mask(exporter: str) -> None:
    """torch chooses another function without gradients, which gives the same."""
    original, (x, y, z) = seeded(Causal), ((_inputs(size)[0],) for size in (2, 3, 1))
    path = EXPORTERS[exporter]("multihead_causal", original, x, y)
    module = onnx2nn.load(path)
    assert module.attention.batch_first
    assert not flattened(module).graph.find_nodes(op="call_method", target="transpose"), module.code
    for inputs in (x, y, z):
        outputs = check_against_onnxruntime(path, module, inputs)
        with torch.no_grad():
            check_same((module(*inputs),), outputs, "without gradients")
    report = onnx2nn.verify_nodes(path, onnx2nn.load(path), input_shapes={"x": (2, STEPS, FEATURES)})
    assert report.ok, report
    check_travels(module, x, y)


class Crossed(nn.Module):
    """Attention of queries to another tensor, to keys and other values, and to itself with its place in the keys.

    Args:
        bias: whether one of the layers has biases, too.
    """

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.memory, self.placed, self.plain = _attention(), _attention(), _attention(bias=bias)
        self.steps_first, self.padded = nn.MultiheadAttention(FEATURES, HEADS), nn.MultiheadAttention(FEATURES, HEADS)
        for name, value in self.named_parameters():
            if "bias" in name:
                nn.init.normal_(value)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, place: torch.Tensor, padding: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        at = y + place
        x = x + self.placed(x + 1, x + 1, x, need_weights=False)[0]
        x = x + self.memory(x, y, y)[0] + self.plain(x, at, y)[0]
        x, y, at = x.transpose(0, 1), y.transpose(0, 1), at.transpose(0, 1)
        x = x + self.steps_first(x, at, y, need_weights=False)[0]
        return x + self.padded(x, y, y, key_padding_mask=padding, attn_mask=mask)[0]


def _crossed_inputs(n: int, queries: int = STEPS, keys: int = 7) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    x, y, place, mask = (
        torch.randn(shape, generator=generator)
        for shape in ((n, queries, FEATURES), (n, keys, FEATURES), (keys, FEATURES), (queries, keys))
    )
    padding = torch.zeros(n, keys)
    padding[0, (keys + 1) // 2 :] = -torch.inf
    return x, y, place, padding, mask


CROSSED_SIZES: dict[tuple[str, bool], list[tuple[int, ...]]] = {
    ("torchscript", True): [(2,), (3,), (1,)],
    ("torchscript", False): [(2,)],
    ("dynamo", True): [(2,), (3, 4, 9), (1, 1, 1)],
    ("dynamo", False): [(2,)],
}
"""Exporter and whether it keeps sizes open → the sizes that are tried: samples, queries and keys."""


@pytest.mark.parametrize(("exporter", "is_open"), mostly_slow(CROSSED_SIZES, [*CROSSED_SIZES][:2]))
def test_attention_to_other_tensors(exporter: str, is_open: bool) -> None:
    """The layers have the author's arguments in the author's order: query, key, value.

    The TorchScript exporter keeps no name of an attention without biases.
    """
    original = seeded(lambda: Crossed(bias=exporter == "torchscript"))
    first, *others = (_crossed_inputs(*size) for size in CROSSED_SIZES[exporter, is_open])
    other = others[0] if is_open else None
    path = EXPORTERS[exporter](f"multihead_crossed_{is_open}", original, first, other)
    module = onnx2nn.load(path)
    module.load_state_dict(original.state_dict(), strict=True)
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.MultiheadAttention)}
    assert {name: layer.batch_first for name, layer in layers.items()} == {
        "memory": True,
        "placed": True,
        "plain": True,
        "steps_first": False,
        "padded": False,
    }
    given: dict[str, dict[str, Tensors]] = {"author's": {}, "import's": {}}
    hooks = [
        of.get_submodule(name).register_forward_hook(
            lambda _, args, __, into=given[owner], name=name: into.update({name: args})
        )
        for owner, of in (("author's", original), ("import's", module))
        for name in layers
    ]
    for inputs in (first, *others):
        original(*inputs)
        check_against_onnxruntime(path, module, inputs)
        for name in layers:
            check_same(given["import's"][name], given["author's"][name], f"the arguments of {name}")
    for hook in hooks:
        hook.remove()
    check_travels(module, first, other)


class OfImages(nn.Module):
    """Attention of learned queries to the places of an image, which the exporters permute once."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.queries = nn.Conv2d(3, FEATURES, 3, 2, 1), nn.Parameter(torch.randn(STEPS, FEATURES))
        self.encode, self.decode = _attention(), _attention()

    def forward(self, image: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        memory = self.conv(image).flatten(2).transpose(1, 2)
        memory = memory + self.encode(memory, memory, memory, need_weights=False)[0]
        queries = self.queries.expand(image.size(0), -1, -1)
        return queries + self.decode(queries, memory + places, memory, need_weights=False)[0]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_attention_to_images(exporter: str) -> None:
    """Sizes of sequences are computed of the image's; a file of the older exporter has its example's in some places."""
    original = seeded(OfImages)
    first, second, third = (
        (torch.randn(n, 3, height, width), torch.randn(n, -(-height // 2) * -(-width // 2), FEATURES))
        for n, height, width in ((2, 8, 6), (3, 9, 10), (1, 2, 3))
    )
    module = onnx2nn.load(EXPORTERS[exporter]("multihead_images", original, first, second))
    assert module.meta["onnx2nn"]["raising"]["dropped"] == []
    module.load_state_dict(original.state_dict(), strict=True)
    assert module.encode.batch_first and module.decode.batch_first
    calls = flattened(module).graph.find_nodes(op="call_method")
    assert [node.args[1:] for node in calls if node.target in ("transpose", "permute")] == [(1, 2)]
    for inputs in (first, second, third):
        check_same(run(module, inputs), run(original, inputs), "against the original")
    check_travels(module, first, second)
