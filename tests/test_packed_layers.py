"""Layers with packed weights are the layers: equal results, states, copies and gradients."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onnx2nn.optimization import packed_layers, packing, small_products
from onnx2nn.optimization.activations import activation_of
from onnx2nn.optimization.packed_layers import PackedConv2d, PackedLayer, PackedLinear
from onnx2nn.optimization.packing import pack_layers

ACTIVATIONS = (
    *(nn.ReLU(), nn.ReLU6(), nn.Sigmoid(), nn.Tanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.SiLU()),
    *(nn.LeakyReLU(0.2), nn.Hardtanh(-0.5, 0.25), nn.GELU(), nn.GELU("tanh")),
)


def packed(layer: Any) -> PackedLayer:
    return PackedLinear(layer) if isinstance(layer, nn.Linear) else PackedConv2d(layer)


@st.composite
def layers(draw: Callable[..., Any]) -> tuple[nn.Module, torch.Tensor]:
    """Draws a layer and an input."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    bias = draw(st.booleans())
    if draw(st.booleans()):
        layer: nn.Module = nn.Linear(draw(st.integers(1, 40)), draw(st.integers(1, 40)), bias)
        leading = draw(st.lists(st.integers(1, 4), max_size=3))
        return layer, torch.randn(*leading, layer.in_features)
    groups = draw(st.sampled_from([1, 1, 2, 8]))
    sizes = [draw(st.sampled_from([1, 2, 5, 8])) * groups for _ in range(2)]
    kernel, stride, dilation = (tuple(draw(st.integers(1, 3)) for _ in "hw") for _ in range(3))
    padding = tuple(draw(st.integers(0, 3)) for _ in "hw")
    layer = nn.Conv2d(sizes[0], sizes[1], kernel, stride, padding, dilation, groups, bias)
    x = torch.randn(draw(st.integers(1, 3)), sizes[0], *(7 + draw(st.integers(0, 9)) for _ in "hw"))
    return layer, x.to(memory_format=torch.channels_last) if draw(st.booleans()) else x


@contextlib.contextmanager
def multiplied_by(blas: bool) -> Iterator[None]:
    """Lets torch's BLAS, or oneDNN, compute all products that both can."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("blas_multiplies_rows", "blas_multiplies_pixels"):
            patch.setattr(packed_layers, name, lambda *_: blas)
        yield


@settings(max_examples=200)
@given(layers(), st.sampled_from([None, *ACTIVATIONS]), st.booleans())
def test_results(case: tuple[Any, torch.Tensor], activation: nn.Module | None, blas: bool) -> None:
    layer, x = case
    form = packed(layer)
    form.activation = None if activation is None else activation_of(activation)
    expected = layer(x) if activation is None else activation(layer(x))
    with torch.no_grad(), multiplied_by(blas):
        for _ in range(2):
            torch.testing.assert_close(form(x), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(form.weight, layer.weight)
    ours, theirs = form.state_dict(), layer.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.fixture(params=[lambda: nn.Linear(5, 7), lambda: nn.Conv2d(5, 7, 3, padding=1)], ids=["linear", "convolution"])
def layer(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    made = request.param()
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made


@pytest.fixture
def x(layer: Any) -> torch.Tensor:
    return torch.randn(3, 5) if isinstance(layer, nn.Linear) else torch.randn(2, 5, 9, 8)


def pickled(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_copies(layer: Any, x: torch.Tensor) -> None:
    form = packed(layer)
    form.activation = activation_of(nn.ReLU())
    with multiplied_by(blas=False):
        for way in (copy.deepcopy, copy.copy, pickled):
            again = way(form)
            assert torch.equal(again(x), form(x)) and torch.equal(again.weight, layer.weight)
            assert again._packed is not None and again._dense is None, "packed for the input that comes"
            assert str(again) == str(form) and "activation=ReLU()" in str(form)


@pytest.mark.parametrize("blas", [False, True])
def test_what_is_prepared_follows_the_layer(layer: Any, x: torch.Tensor, blas: bool) -> None:
    form = packed(layer)
    with torch.no_grad(), multiplied_by(blas):
        for shape in (x.shape, (1, *x.shape[1:]), x.shape):
            given = torch.randn(shape)
            torch.testing.assert_close(form(given), layer(given))
        form.activation = activation_of(nn.Tanh())
        torch.testing.assert_close(form(x), layer(x).tanh())
        bias = torch.randn_like(layer.bias)
        torch.testing.assert_close(torch.func.functional_call(form, {"bias": bias}, (x,)), _with(layer, bias)(x).tanh())
        torch.testing.assert_close(form(x), layer(x).tanh())
        form.load_state_dict(_with(layer, bias).state_dict())
        torch.testing.assert_close(form(x), _with(layer, bias)(x).tanh())


def _with(layer: Any, bias: torch.Tensor) -> Any:
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.bias.copy_(bias)
    return other


def test_a_linear_layer_is_packed_when_oneDNN_is_faster() -> None:
    layer = nn.Linear(5, 7).requires_grad_(False)
    form, x = PackedLinear(layer), torch.randn(3, 5)
    for blas in (True, False, True):
        with multiplied_by(blas):
            torch.testing.assert_close(form(x), layer(x))
            assert (form._packed is None) == (form._dense is not None)
            torch.testing.assert_close(form(x[:1]), layer(x[:1]))
    assert form._packed is not None, "it stays packed"


def test_states_are_not_shared(layer: Any, x: torch.Tensor) -> None:
    form, state = packed(layer), copy.deepcopy(layer.state_dict())
    form.load_state_dict(state)
    expected = layer(x)
    for value in state.values():
        value.zero_()
    torch.testing.assert_close(form(x), expected)


@pytest.mark.parametrize("blas", [False, True])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_sums(activation: nn.Module | None, blas: bool) -> None:
    torch.manual_seed(0)
    behind = activation or nn.Identity()
    for layer in (nn.Conv2d(6, 8, 1), nn.Conv2d(6, 8, 1, bias=False), nn.Conv2d(6, 8, 3, padding=1)):
        form = packed(layer.requires_grad_(False))
        form.activation = None if activation is None else activation_of(activation)
        for size in (1, 5):
            x, added = torch.randn(2, 6, size, size), torch.randn(2, 8, size, size)
            kept = added.clone()
            with multiplied_by(blas):
                torch.testing.assert_close(form(x, added), behind(layer(x) + added))
                torch.testing.assert_close(form(x, added[:1]), behind(layer(x) + added[:1]))
                inputs = added.clone().requires_grad_(), added.clone().requires_grad_()
                form(x, inputs[0]).sum().backward()
                behind(layer(x) + inputs[1]).sum().backward()
            torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
            assert torch.equal(added, kept)


def test_not_a_number_stays_one_in_products_of_blas(layer: Any, x: torch.Tensor) -> None:
    layer = layer if isinstance(layer, nn.Linear) else nn.Conv2d(5, 7, 1).requires_grad_(False)
    form = packed(layer)
    form.activation = activation_of(nn.Hardtanh(-0.5, 0.25))
    with multiplied_by(blas=True):
        assert torch.equal(form(x * torch.nan).isnan(), nn.Hardtanh(-0.5, 0.25)(layer(x * torch.nan)).isnan())


def test_the_faster_product_is_measured() -> None:
    activation = activation_of(nn.ReLU6())
    for faster in (small_products.blas_multiplies_rows, small_products.blas_multiplies_pixels):
        assert not faster(1 << 20, (64, 64, 1, 1)[: 2 if faster is small_products.blas_multiplies_rows else 4], None)
    assert isinstance(small_products.blas_multiplies_rows(3, (4, 4), activation), bool)
    assert isinstance(small_products.blas_multiplies_pixels(3, (4, 4, 1, 1), activation), bool)
    for found in (small_products._rows_are_faster, small_products._pixels_are_faster):
        before = found.cache_info().misses
        for other in (activation_of(nn.ReLU6()), activation):
            found(2, 4, 4, other)
        assert found.cache_info().misses <= before + 1, "equal activations are measured once"


def test_states(layer: Any, x: torch.Tensor) -> None:
    form, other = packed(layer), copy.deepcopy(layer)
    torch.nn.init.normal_(other.weight)
    form.load_state_dict(other.state_dict())
    torch.testing.assert_close(form(x), other(x))
    wrapped = nn.Sequential(form)
    wrapped.load_state_dict(nn.Sequential(layer).state_dict())
    torch.testing.assert_close(wrapped(x), layer(x))
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.weight"'):
        wrapped.load_state_dict({"0.bias": layer.bias})
    with pytest.raises(RuntimeError, match=r"0\.weight has shape \(1, 1\), not"):
        wrapped.load_state_dict({"0.bias": layer.bias, "0.weight": torch.ones(1, 1)})


def test_other_types_and_devices(layer: Any, x: torch.Tensor) -> None:
    form = packed(layer)
    torch.testing.assert_close(form.double()(x.double()), layer.double()(x.double()))
    assert torch.equal(form.float()(x), packed(layer.float())(x)), "packed again"
    assert form.to("meta")(x.to("meta")).is_meta and form.weight.is_meta
    form = packed(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert form(x).dtype == torch.bfloat16


def test_gradients_of_inputs(layer: Any, x: torch.Tensor) -> None:
    form = packed(layer)
    form.activation = activation_of(nn.Tanh())
    inputs = x.clone().requires_grad_(), x.clone().requires_grad_()
    form(inputs[0]).sum().backward()
    torch.tanh(layer(inputs[1])).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def test_traces_and_programs(layer: Any, x: torch.Tensor) -> None:
    form = packed(layer)
    form.activation = activation_of(nn.ReLU())
    expected = torch.relu(layer(x))
    torch.testing.assert_close(torch.jit.trace(form, x)(x), expected)
    torch.testing.assert_close(torch.compile(form, fullgraph=True, backend="eager")(x), expected)


class Network(nn.Module):
    """Layers that are packed, and ones that are not: shared weights, a read weight, a module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.act = nn.Conv2d(3, 8, 3), nn.ReLU6()
        self.rest = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Hardswish(), nn.Conv2d(8, 4, 1, padding_mode="circular"))
        self.twice, self.read = nn.Linear(4, 4), nn.Linear(4, 4)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.rest(self.act(self.convolution(x))).mean((2, 3))
        x = torch.relu(self.twice(torch.sigmoid(self.twice(x))))
        x = x @ self.read.weight + self.read(x)
        return self.two(self.one(x))


def test_which_layers_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = torch.fx.symbolic_trace(Network().eval().requires_grad_(False))
    x = torch.randn(2, 3, 12, 12)
    expected = network(x)
    monkeypatch.setattr(packing, "_is_faster", lambda forms: False)
    pack_layers(network)
    assert not [layer for layer in network.modules() if isinstance(layer, PackedLayer)]
    monkeypatch.setattr(packing, "_is_faster", lambda forms: True)
    pack_layers(network)
    forms = {name: layer for name, layer in network.named_modules() if isinstance(layer, PackedLayer)}
    assert forms.keys() == {"convolution", "rest.0", "twice"}
    computed = {name: type(form.activation and form.activation.layer) for name, form in forms.items()}
    nothing = type(None)  # two calls have different functions behind them
    assert computed == {"convolution": nn.ReLU6, "rest.0": nn.Hardswish, "twice": nothing}
    assert not hasattr(network, "act")
    with torch.no_grad():
        torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, nn.ReLU(), nn.SiLU()])
def test_layers_in_half_precision(dtype: torch.dtype, activation: nn.Module | None) -> None:
    """The sums are those of float32, rounded once before the activation, as behind torch's kernel."""
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(16, 24, 3, stride=2, padding=1).to(dtype), nn.Linear(48, 8).to(dtype)
    behind = activation or nn.Identity()
    for plain, shape in ((convolution, (2, 16, 9, 7)), (linear, (5, 48))):
        packed: Any = (PackedConv2d if plain is convolution else PackedLinear)(plain.eval())
        packed.activation = activation_of(activation) if activation else None
        assert packed.state_dict()["weight"].dtype == dtype and torch.equal(packed.weight, plain.weight)
        for factor in (1.0, 1e5 if dtype is torch.bfloat16 else 1e4):
            x = (torch.randn(shape) * factor).to(dtype)
            with torch.no_grad():
                exact = behind(copy.deepcopy(plain).double()(x.double()).to(dtype))
                for form in (packed, copy.deepcopy(packed)):
                    for _ in range(2):
                        found = form(x)
                        assert found.dtype == dtype
                        epsilon = torch.finfo(dtype).eps
                        torch.testing.assert_close(found, exact, rtol=epsilon, atol=epsilon * factor, equal_nan=True)


def test_what_is_too_large_for_float16_is_infinite_before_a_sum() -> None:
    plain = nn.Conv2d(1, 1, 1).half()
    nn.init.constant_(plain.weight, 2.0)
    x, added = torch.full((1, 1, 2, 2), 4e4, dtype=torch.float16), torch.full((1, 1, 2, 2), -4e4, dtype=torch.float16)
    packed = PackedConv2d(plain.eval())
    with torch.no_grad():
        assert torch.equal(packed(x, added), plain(x) + added) and packed(x, added).isinf().all()


def test_half_precision_is_packed_where_its_kernels_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in (False, True):
        monkeypatch.setattr(packing, "is_slow", lambda kind, dtype, slow=slow: slow)
        network = torch.fx.symbolic_trace(Network().eval().requires_grad_(False).half())
        pack_layers(network)
        assert any(isinstance(layer, PackedLayer) for layer in network.modules()) == slow


class Attending(nn.Module):
    """One attention that is packed, one with a mask, and one of two tensors."""

    def __init__(self, batch_first: bool, bias: bool) -> None:
        super().__init__()
        options = {"batch_first": batch_first, "bias": bias}
        self.own, self.masked, self.cross = (nn.MultiheadAttention(12, 3, **options) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.own(x, x, x, need_weights=False)[0]
        y = self.masked(y, y, y, attn_mask=mask, need_weights=False)[0]
        return self.cross(y, x, x, need_weights=False)[0]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention(batch_first: bool, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_is_faster", lambda forms: True)
    torch.manual_seed(0)
    plain = torch.fx.symbolic_trace(Attending(batch_first, bias).eval().requires_grad_(False))
    network = copy.deepcopy(plain)
    pack_layers(network)
    kinds = [type(getattr(network, name)).__name__ for name in ("own", "masked", "cross")]
    assert kinds == ["PackedSelfAttention", "MultiheadAttention", "MultiheadAttention"]
    x, mask = torch.randn(5, 5, 12), torch.randn(5, 5)
    with torch.no_grad():
        for form in (network, copy.deepcopy(network)):
            torch.testing.assert_close(form(x, mask), plain(x, mask))
        for layer in (network.own, pickled(network.own)):
            torch.testing.assert_close(layer(x[0], x[0], x[0])[0], plain.own(x[0], x[0], x[0])[0])
    state = plain.state_dict()
    assert network.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    network.load_state_dict({key: value + 1 for key, value in state.items()})
    assert torch.equal(network.state_dict()["own.in_proj_weight"], state["own.in_proj_weight"] + 1)


def test_the_faster_product_is_measured_whatever_the_default_type_is() -> None:
    layer, x = nn.Linear(5, 7).requires_grad_(False), torch.randn(3, 5)
    convolution, images = nn.Conv2d(5, 7, 1).requires_grad_(False), torch.randn(3, 5, 2, 2)
    expected = layer(x), convolution(images)
    for found in (small_products._rows_are_faster, small_products._pixels_are_faster):
        found.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = PackedLinear(layer)(x), PackedConv2d(convolution)(images)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("blas", [False, True])
def test_inputs_of_other_widths_are_errors(blas: bool) -> None:
    with multiplied_by(blas):
        for form, shape in (
            (PackedLinear(nn.Linear(8, 4).requires_grad_(False)), (2, 9)),
            (PackedConv2d(nn.Conv2d(8, 4, 1).requires_grad_(False)), (2, 9, 3, 3)),
        ):
            for _ in range(2):
                with pytest.raises(RuntimeError):
                    form(torch.zeros(shape))
