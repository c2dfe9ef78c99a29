"""`onnx2nn.optimize`: equal outputs, and what a faster module is not for is an error."""

from __future__ import annotations

import copy
import ctypes.util
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import parser
from realmodels import EXPORTERS, seeded
from torch import nn

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError, ModuleInputError, VerificationError
from onnx2nn.optimization import compiling, packed_layers, packing
from onnx2nn.optimization.packed_code import pack_convolutions
from onnx2nn.optimization.packed_layers import PackedConv2d, PackedLinear
from onnx2nn.optimization.scaled_code import fold_numbers
from onnx2nn.optimization.sequences import skip_identities
from onnx2nn.verification.module_runs import check_same

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"


class Stem(nn.Module):
    """Two convolutions with batch norms, of which one is called twice, in a module and in an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU()
        self.rest = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardswish())
        self.twice = nn.Conv2d(8, 8, 1)
        self.after = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.first(x)))
        y = self.rest(x) + x
        z = self.after(self.twice(y)) + self.twice(x)
        return self.head(torch.relu(z).mean((2, 3)))


@pytest.fixture(scope="module")
def stem() -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        module = Stem()
        for inner in module.modules():
            if isinstance(inner, nn.BatchNorm2d):
                nn.init.uniform_(inner.running_mean)
                nn.init.uniform_(inner.running_var, 0.5, 2)
                nn.init.uniform_(inner.weight)
        return module

    images = torch.rand(2, 3, 6, 6), torch.rand(3, 3, 6, 6)
    # The exporters fold batch norms in evaluation mode, so the training graph of them is what keeps them.
    path = EXPORTERS["dynamo"]("optimization-stem", seeded(build), images[:1], images[1:])
    return lambda: onnx2nn.load(path)


def _batch_norms(module: nn.Module) -> int:
    return sum(isinstance(inner, nn.BatchNorm2d) for inner in module.modules())


UP: dict[str, Callable[[], nn.Module]] = {
    "as many channels": lambda: nn.ConvTranspose2d(4, 4, 2, 2),
    "fewer channels": lambda: nn.ConvTranspose2d(4, 2, 3, bias=False),
    "groups": lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2),
    "each channel": lambda: nn.ConvTranspose2d(4, 4, 2, 2, groups=4),
    "one dimension": lambda: nn.ConvTranspose1d(4, 4, 3, groups=2),
    "three dimensions": lambda: nn.ConvTranspose3d(4, 6, 2, groups=2),
}


@pytest.mark.parametrize("case", UP)
def test_batch_norms_behind_transposed_convolutions(case: str) -> None:
    """Their weights have the channels of the input first, and those of one group of the output second."""
    torch.manual_seed(0)
    up: Any = UP[case]()
    rank = up.weight.ndim - 2
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1](up.out_channels)
    for statistic, number in zip((norm.running_mean, norm.running_var), (-1.0, 0.5), strict=True):
        assert statistic is not None
        nn.init.uniform_(statistic, number, 2)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    original, x = nn.Sequential(up, norm, nn.ReLU()).eval(), torch.randn(2, 4, *range(3, 3 + rank))
    file = io.BytesIO()
    torch.onnx.export(original, (x,), file, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    faster = onnx2nn.load(file.getvalue(), optimize="eager")
    assert not any(isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)) for layer in faster.modules())
    for images in (x, x[:1]):
        torch.testing.assert_close(faster(images), original(images))


@pytest.mark.parametrize("packed", [False, True])
def test_eager(stem: Callable[[], nn.Module], packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_is_faster", lambda forms: packed)
    module = stem()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    faster: Any = onnx2nn.optimize(module, "eager")
    x = torch.randn(4, 3, 6, 6)
    torch.testing.assert_close(faster(x), module(x))
    assert _batch_norms(module) == 3 and _batch_norms(faster) == 1, "the layer that is called twice keeps its own"
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert faster.state_dict().keys() <= before.keys() | {"first.bias"}
    assert "relu_(" in faster.code and "relu_(" not in module.code
    if packed:
        assert type(faster.first) is PackedConv2d and type(faster.head) is PackedLinear
        assert isinstance(faster.first.activation.layer, nn.ReLU) and not hasattr(faster, "act")
        assert isinstance(faster.rest[0].activation.layer, nn.Hardswish)
    else:
        assert faster.first.weight.is_contiguous(memory_format=torch.channels_last)
        assert faster.act.inplace and faster.rest[2].inplace and not module.act.inplace
    assert not any(parameter.requires_grad for parameter in faster.parameters())
    assert torch.equal(x, x.clone()), "an activation never works in the memory of an input"
    for way in (copy.deepcopy, _pickled, torch.jit.freeze):
        other = way(torch.jit.trace(faster, x) if way is torch.jit.freeze else faster)
        torch.testing.assert_close(other(x), module(x))
    assert onnx2nn.load(DIGITS, optimize="eager").meta["onnx2nn"]["optimized"] == "eager"


def _pickled(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (3, 64)])
def test_a_packed_convolution_at_many_sizes(kernel: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight is packed anew for another size, and stays plain after a few of them, and where BLAS multiplies."""
    monkeypatch.setattr(packed_layers, "blas_multiplies_pixels", lambda pixels, *others: pixels < 100)
    plain = nn.Conv2d(64, 128, kernel, padding=kernel // 2, groups=groups).eval()
    packed = PackedConv2d(plain)
    orders = set()
    with torch.no_grad():
        for size in (7, 7, 28, 14, 7, 9, 7, 28):
            for batch in (1, 3):
                x = torch.randn(batch, 64, size, size + 1)
                torch.testing.assert_close(packed(x), plain(x))
                orders.add(packed._packed is not None)
    assert orders == {True, False}, "both ways were taken"
    assert torch.equal(packed.weight, plain.weight) and torch.equal(_pickled(packed).weight, plain.weight)


def _sum(added: str, kernel: int, activation: str) -> Any:
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 8, 6, 6] x, float[8, 8, {kernel}, {kernel}] w, {added} other) => (float[n, 8, h, v] z)
        <float[8, 8, {kernel}, {kernel}] w = {{{", ".join(str(i % 7 - 3) for i in range(64 * kernel * kernel))}}}>
        {{ c = Conv(x, w) s = Add(c, other) z = {activation}(s) }}"""
    )


@pytest.mark.parametrize("activation", ["Relu", "HardSwish", "Identity"])
@pytest.mark.parametrize("kernel", [1, 6])
@pytest.mark.parametrize(
    ("added", "shape"),
    [
        ("float[n, 8, 6, 6]", (2, 8, 6, 6)),
        ("float[n, 8, 1, 1]", (2, 8, 1, 1)),
        ("float[8, 1, 1]", (8, 1, 1)),
        ("float[1, 1, 6, 6]", (1, 1, 6, 6)),
    ],
)
def test_a_sum_of_a_convolution(
    added: str, shape: tuple[int, ...], kernel: int, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel adds what has the shape of its result; a sum that broadcasts either of them is as it was."""
    monkeypatch.setattr(packing, "_is_faster", lambda settings: True)
    module = onnx2nn.load(_sum(added, kernel, activation))
    faster: Any = onnx2nn.optimize(module, "eager")
    called = [node for node in faster.graph.nodes if node.op == "call_module" and len(node.args) == 2]
    assert len(called) == 1 and not any("add" in str(node.target) for node in faster.graph.nodes)
    x, other = torch.randn(2, 8, 6, 6), torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(faster(x, other), module(x, other), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(
            torch.jit.trace(faster, (x, other))(x, other), module(x, other), rtol=1e-5, atol=1e-4
        )


def test_an_optimised_module_is_not_trained(stem: Callable[[], nn.Module]) -> None:
    faster = onnx2nn.optimize(stem(), "eager")
    faster.eval()
    with pytest.raises(RuntimeError, match=r"Train the module of onnx2nn\.load"):
        faster.train()


def test_an_activation_of_an_input_is_not_in_place() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z)
        { y = Relu(x) t = HardSwish(y) z = Add(t, x) }"""
    )
    faster = onnx2nn.load(model, optimize="eager")
    x = torch.randn(3, 4)
    kept = x.clone()
    y, z = faster(x)
    assert torch.equal(x, kept) and torch.equal(y, kept.relu())
    torch.testing.assert_close(z, nn.functional.hardswish(kept.relu()) + kept)


def test_wrong_modes() -> None:
    for call in (lambda: onnx2nn.load(DIGITS, optimize="fast"), lambda: onnx2nn.optimize(onnx2nn.load(DIGITS), "fast")):
        with pytest.raises(InputError, match="optimize='fast': give 'eager' or 'compile'"):
            call()
    with pytest.raises(InputError, match="A Linear cannot be optimised"):
        onnx2nn.optimize(nn.Linear(2, 2), "eager")
    with pytest.raises(InputError, match="optimize needs framework='torch'"):
        onnx2nn.load(DIGITS, framework="oneflow", optimize="eager")


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX2NN_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.usefixtures("_cache")
def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = onnx2nn.load(DIGITS)
    made = onnx2nn.optimize(module, "compile")
    for batch in (1, 2, 5, 64):
        x = torch.rand(batch, 8, 8, 1)
        torch.testing.assert_close(made(x), module(x))
        torch.testing.assert_close(made(image=x.transpose(1, 2)), module(x.transpose(1, 2)))
    refused = [torch.rand(2, 9, 9, 1), torch.rand(2, 8, 8, 1).double(), torch.rand(0, 8, 8, 1), torch.rand(8, 8, 1), 3]
    for wrong in refused:
        with pytest.raises(ModuleInputError, match="Input 'image'"):
            made(wrong)
    with pytest.raises(ModuleInputError, match="The inputs are image"):
        made(torch.rand(2, 8, 8, 1), image=torch.rand(2, 8, 8, 1))
    with pytest.raises(RuntimeError, match="cannot be trained"):
        made.train()
    with pytest.raises(TypeError, match=r"Save it with onnx2nn\.save"):
        torch.save(made, tmp_path / "m.pth")
    torch.testing.assert_close(copy.deepcopy(made)(x), module(x))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", refuse)
    torch.testing.assert_close(onnx2nn.load(DIGITS, optimize="compile")(x), module(x))
    assert "machine code" in onnx2nn.save(made, tmp_path / "m.pt2")
    torch.testing.assert_close(torch._inductor.aoti_load_package(str(tmp_path / "m.pt2"))(x), module(x))
    with pytest.raises(InputError, match=r"Machine code is a \.pt2"):
        onnx2nn.save(made, tmp_path / "m.pth")
    assert main(["compile", str(DIGITS), "-o", str(tmp_path / "c.pt2")]) == 0
    assert (tmp_path / "c.pt2").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.usefixtures("_cache")
def test_convolutions_are_packed_for_all_batches(
    stem: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = []

    def spy(graph: torch.fx.Graph) -> None:
        pack_convolutions(graph)
        packed.extend(name for name, _ in graph.owning_module.named_buffers() if name.startswith("weight_of_"))

    monkeypatch.setitem(compiling._CONFIG, "post_grad_custom_pre_pass", spy)
    module = stem()
    made = onnx2nn.optimize(module, "compile")
    assert len(packed) == 3, "one for the layer that is called twice"
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 6, 6)
        torch.testing.assert_close(made(x), module(x))


@pytest.mark.usefixtures("_cache")
def test_what_inductor_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile goes on, or eager mode where nothing can be compiled; a warning says which and why."""
    module = onnx2nn.load(DIGITS)
    x = torch.rand(2, 8, 8, 1)

    def fail(message: str) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> None:
            raise RuntimeError(message)

        return call

    for message, made, way in (
        ("some operator", lambda module, **_: module, "AOTInductor refuses the module.*some operator.*leaves out"),
        ("some operator", lambda _, **__: fail("a kernel"), "some operator.*a kernel.*optimised for eager"),
        ("No working C++ compiler", None, "No machine code.*No working C"),
    ):
        monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail(message))
        monkeypatch.setattr(torch, "compile", made)
        with pytest.warns(UserWarning, match=way):
            other = onnx2nn.optimize(module, "compile")
        torch.testing.assert_close(other(x), module(x))


@pytest.mark.slow
@pytest.mark.usefixtures("_cache")
def test_convolutions_of_float64(stem: Callable[[], nn.Module], recwarn: pytest.WarningsRecorder) -> None:
    """Inductor packs their weights for oneDNN, which has no float64: AOTInductor and torch.compile raise an error."""
    module = stem().double()
    made = onnx2nn.optimize(module, "compile")
    assert type(made) is compiling.CompiledModule and not [w for w in recwarn if "refuses" in str(w.message)]
    x = torch.randn(3, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(made(x), module(x))
    wrapped = compiling.Frozen(torch.compile(module, options=compiling._CONFIG), module)
    torch.testing.assert_close(wrapped(x), module(x))


class Scaled(nn.Module):
    """Transposed convolutions of as many channels as they get, behind each a batch norm, or a product and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.more = nn.ConvTranspose2d(4, 4, 2, 2), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 3)
        self.scale, self.shift = nn.Parameter(torch.randn(4, 1, 1)), nn.Parameter(torch.randn(1, 4, 1, 1))
        for value in (self.norm.running_mean, self.norm.running_var, self.norm.weight):
            assert value is not None
            nn.init.uniform_(value, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.more(torch.relu(self.norm(self.up(x)))) * self.scale + self.shift


class Slopes(nn.Module):
    """Convolutions whose results are combined with numbers, of which no two are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, bias=False)
        self.third = nn.ConvTranspose2d(4, 4, 2, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x) * 0.2 + 0.5)
        z = torch.relu(self.second(y) / 3.0 - 0.125)
        return (self.third(z) + 0.75) * -0.4


def test_numbers_behind_convolutions_fold() -> None:
    torch.manual_seed(0)
    original, x = Slopes(), torch.randn(2, 3, 5, 6)
    program = torch.export.export(original, (x,)).run_decompositions()
    fold_numbers(program.graph)
    program.graph_module.recompile()
    convolutions = program.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    readers = [user.target for conv in convolutions for user in conv.users]
    assert readers == [torch.ops.aten.relu.default] * 2 + ["output"]
    torch.testing.assert_close(program.module()(x), original(x))


@pytest.mark.slow
@pytest.mark.usefixtures("_cache")
def test_machine_code_of_a_module_that_is_trained(stem: Callable[[], nn.Module]) -> None:
    module, x = stem(), torch.randn(3, 3, 6, 6)
    expected = module(x)
    module.train()
    module.norm.eval()
    state = copy.deepcopy(module.state_dict())
    made = onnx2nn.optimize(module, "compile")
    assert type(made) is compiling.CompiledModule and module.training and not module.norm.training
    torch.testing.assert_close(made(x), expected)
    torch.testing.assert_close(dict(module.state_dict()), dict(state), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("_cache")
def test_machine_code_of_numbers_behind_convolutions(recwarn: pytest.WarningsRecorder) -> None:
    """Inductor takes one of the numbers for all."""
    torch.manual_seed(0)
    original, x, file = Slopes().eval(), torch.randn(2, 3, 5, 6), io.BytesIO()
    torch.onnx.export(original, (x,), file, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    module = onnx2nn.load(file.getvalue())
    made = onnx2nn.optimize(module, "compile", example_inputs=(x,))
    assert type(made) is compiling.CompiledModule and not [w for w in recwarn if "refuses" in str(w.message)]
    for images in (x, torch.randn(3, 3, 5, 6)):
        torch.testing.assert_close(made(images), original(images))
    wrong = torch.compile(module, fullgraph=True)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        assert not torch.allclose(wrong(x), original(x), atol=1e-3), "inductor is right; fold_numbers can go"


@pytest.mark.slow
@pytest.mark.usefixtures("_cache")
def test_machine_code_of_scaled_transposed_convolutions(recwarn: pytest.WarningsRecorder) -> None:
    """Inductor folds the numbers of the output's channels into those of the input."""
    torch.manual_seed(0)
    original, x, file = Scaled().eval(), torch.randn(2, 4, 5, 6), io.BytesIO()
    axes = {"x": {0: "n", 2: "h", 3: "w"}}
    torch.onnx.export(original, (x,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    module = onnx2nn.load(file.getvalue())
    made = onnx2nn.optimize(module, "compile", example_inputs=(x,))
    assert type(made) is compiling.CompiledModule and not [w for w in recwarn if "refuses" in str(w.message)]
    for images in (x, torch.randn(3, 4, 2, 7)):
        torch.testing.assert_close(made(images), original(images))
    wrong = torch.compile(module, fullgraph=True, options={"freezing": True})
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        assert not torch.allclose(wrong(x), original(x), atol=1e-3), "inductor is right; keep_convolutions can let go"


@pytest.mark.usefixtures("_cache")
def test_wrong_machine_code_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = onnx2nn.load(DIGITS)

    def write(program: object, package_path: str, **_: object) -> None:
        Path(package_path).write_bytes(b"code")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", write)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: lambda x: module(x) + 0.1)
    with pytest.raises(VerificationError, match="The compiled module differs"):
        onnx2nn.optimize(module, "compile")
    assert [*(tmp_path / "cache").iterdir()] == []


def test_a_cache_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("ONNX2NN_CACHE", str(folder))
    with pytest.raises(InputError, match="Other users can write the cache"):
        onnx2nn.optimize(onnx2nn.load(DIGITS), "compile")


def test_a_size_that_must_be_given() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, m] x) => (float[n, m] y) { y = Relu(x) }"""
    )
    with pytest.raises(InputError, match="give example_inputs"):
        onnx2nn.optimize(onnx2nn.load(model), "compile")


def test_a_layer_named_package_is_no_machine_code(tmp_path: Path) -> None:
    module = nn.Module()
    module.package = nn.Linear(2, 2)
    assert "whole module" in onnx2nn.save(module, tmp_path / "m.pth")


class Rounded(nn.Module):
    """Rounds a product, as a quantised layer does; the sums of its `parts` round otherwise."""

    def __init__(self, weight: torch.Tensor, parts: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.parts, self.offset = nn.Parameter(weight), parts, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = zip(x.chunk(self.parts, 1), self.weight.chunk(self.parts, 0), strict=True)
        y = sum((a @ b for a, b in pairs), torch.zeros(()))
        return y + torch.round(y * 2.0**18) % 2 / 100 + self.offset


def test_another_form_may_differ_by_the_modules_own_noise() -> None:
    """A number that is almost a half is rounded otherwise where a kernel adds in another order; more is an error."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 256, generator=generator), torch.randn(256, 64, generator=generator)
    module, other = Rounded(weight, 1), Rounded(weight, 8)
    check_same(module, other, [x], "other module", other_kernels=True)
    with pytest.raises(VerificationError, match="differs from the module"):
        check_same(module, other, [x], "other module")
    for wrong in (Rounded(weight, 8, 64.0), Rounded(weight * 1.001, 8)):
        with pytest.raises(VerificationError, match=r"The other module differs from the module: .* own noise"):
            check_same(module, wrong, [x], "other module", other_kernels=True)


def test_a_module_of_chance_is_no_excuse() -> None:
    """Outputs that change from call to call are no noise."""
    module = nn.Dropout(0.5)
    with pytest.raises(VerificationError, match="differs from the module"):
        check_same(module, module, [torch.randn(64)], "other module", other_kernels=True)


_STRIDES = """
import io, sys, warnings
import torch
import onnx2nn

warnings.simplefilter("ignore")
layers = [torch.nn.Conv2d(1, 16, (1, width), stride=(step, 1), padding=1) for width in (2, 3, 5) for step in (3, 4, 5)]
model = torch.nn.Sequential(*layers, torch.nn.Flatten()).eval()
model.forward = lambda x: torch.cat([layer(x).flatten(1) for layer in layers], 1)
for side in (112, 150):
    file, x = io.BytesIO(), torch.rand(1, 1, side, side)
    torch.onnx.export(model, (x,), file, dynamo=False, input_names=["x"], output_names=["y"])
    with torch.no_grad():
        module = onnx2nn.load(file.getvalue(), optimize=sys.argv[1])
        for _ in range(10):
            assert (module(x) - model(x)).abs().max() < 1e-5
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_convolutions_that_skip_rows(mode: str, tmp_path: Path) -> None:
    """oneDNN's kernel for packed weights wrote outside of its memory, which ended the process."""
    environment = {**os.environ, "ONNX2NN_CACHE": str(tmp_path), "MALLOC_CHECK_": "3", "OMP_NUM_THREADS": "1"}
    if ctypes.util.find_library("c_malloc_debug"):  # glibc's own checks of the heap
        environment["LD_PRELOAD"] = "libc_malloc_debug.so.0"
    done = subprocess.run([sys.executable, "-c", _STRIDES, mode], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sequences_skip_what_was_folded() -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Identity(), nn.ReLU())
    model, x, called = nn.Sequential(plain), torch.randn(2, 3), list[str]()
    expected, shown = model(x), str(model)
    skip_identities(model)
    again = copy.deepcopy(model)
    for name, layer in model[0].named_children():
        layer.forward = lambda x, name=name, forward=layer.forward: (called.append(name), forward(x))[1]  # type: ignore[misc]  # a list's method gives None
    assert torch.equal(model(x), expected) and torch.equal(again(x), expected)
    assert called == ["0", "3"] and str(model) == shown == str(again)


@pytest.mark.usefixtures("_cache")
@pytest.mark.parametrize("outputs", ["float[n, 3] y", "float[n, 3] y, float[n, 3] z"])
def test_compiled_outputs_keep_their_structure(outputs: str) -> None:
    graph = f"g (float[n, 3] x) => ({outputs}) {{ y = Relu(x) z = Neg(x) }}"
    model = onnx2nn.load(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}'))
    made = onnx2nn.optimize(model, "compile")
    for rows in (2, 3, 2):
        x = torch.randn(rows, 3)
        found, expected = made(x), model(x)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)
