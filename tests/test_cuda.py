"""Modules on a GPU give what they give on the CPU: `pytest -n 8 tests/test_cuda.py` on a machine that has one.

The tests themselves are tried by ONNX2NN_TEST_DEVICE=cpu.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import parser

import onnx2nn
from onnx2nn.backend import prepare
from onnx2nn.errors import Onnx2nnError
from onnx2nn.ground.device_placement import placed
from scripts import torchvision_schemas
from tests.drawn import operators
from tests.drawn.draw import CALLS, Draw, model_of
from tests.suitecases import SuiteCase, node_cases

DEVICE = os.environ.get("ONNX2NN_TEST_DEVICE", "cuda")

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="compares a GPU with the CPU: this machine has none"
)

CALLS_EACH = 30

NO_KERNEL = re.compile(
    r'"(index_cuda|baddbmm_cuda|addmm_cuda)" not implemented for \'(UInt16|UInt32|UInt64|Long|Int)\''
)
"""What torch has no kernels for on a GPU: elements of unsigned integers by their positions, products of integers."""

ROUNDING = dict.fromkeys(("Gelu", "BiasGelu"), 1e-3)
"""Operators that cancel digits: 1 + erf(x) where erf(x) is near -1."""


@pytest.fixture(autouse=True)
def _ieee() -> None:
    """Products of float32 in float32: cuDNN's convolutions round their operands to 10 bits by default."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _flat(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in _flat(each)] if isinstance(value, (list, tuple)) else [value]


def _apart(found: Any, wanted: Any, rtol: float = 2e-5, *, is_placed: bool = True) -> str:
    """Returns how the outputs of a GPU differ from the CPU's, empty where they are equal within rounding.

    Where no input is a tensor, such as strings, results are where the weights are, or on the CPU.
    """
    ours, theirs = _flat(found), _flat(wanted)
    if len(ours) != len(theirs):
        return f"{len(ours)} outputs, not {len(theirs)}"
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            if not (np.array_equal(np.asarray(a, object), np.asarray(b, object)) if b is not None else a is None):
                return f"output {index}: {a!r}, not {b!r}"
            continue
        if is_placed and a.device.type != DEVICE:
            return f"output {index} is on {a.device}"
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {index}: {a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
        a, b = a.detach().cpu(), b.detach()
        if not (b.is_floating_point() or b.is_complex()):
            if not torch.equal(a, b):
                return f"output {index}: {a.tolist()}, not {b.tolist()}"
            continue
        coarse = {torch.float16: 4e-3, torch.bfloat16: 2e-2}.get(b.dtype, 0.13 if b.element_size() == 1 else rtol)
        exact = torch.complex128 if b.is_complex() else torch.float64
        a, b = a.to(exact).resolve_conj(), b.to(exact).resolve_conj()
        finite = torch.isfinite(a) & torch.isfinite(b)
        if not torch.equal(a[~finite].nan_to_num(7e77, 8e77, -8e77), b[~finite].nan_to_num(7e77, 8e77, -8e77)):
            return f"output {index}: {a.tolist()}, not {b.tolist()}"
        scale = max(b[finite].abs().max().item(), 1e-3) if finite.any() else 1.0
        far = (a[finite] - b[finite]).abs().max().item() / scale if finite.any() else 0.0
        if far > coarse:
            return f"output {index}: {far:.2g} of the largest element apart"
    return ""


def _beside(model: Any, inputs: list[Any], tries: tuple[str | None, ...], rtol: float) -> str | None:
    """Returns how a model differs on the GPU, empty where it does not, None where the CPU does not run it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = onnx2nn.load(model)
        wanted = whole(*inputs)
    except (Onnx2nnError, ValueError, RuntimeError, IndexError, TypeError):
        return None
    moved = placed(inputs, torch.device(DEVICE))
    for optimize in tries:
        with warnings.catch_warnings(), torch.set_grad_enabled(optimize is None):
            warnings.simplefilter("ignore")
            module = onnx2nn.load(model, device=DEVICE, optimize=optimize)
            try:
                said = _apart(module(*moved), wanted, rtol)
            except Exception as error:  # of any class of torch's: it is what is looked for
                said = f"{type(error).__name__}: {error}"
        if said:
            return f"optimize={optimize}: {said}"
    return ""


@pytest.mark.parametrize(("domain", "op"), operators.parameters())
def test_drawn_calls(domain: str, op: str) -> None:
    found: dict[int, str] = {}
    compared = 0
    for seed in range(CALLS_EACH):
        d = Draw(random.Random(f"{domain}.{op}.{seed}"))
        model, feeds = model_of(CALLS[domain, op](d), d)
        tries = (None, "eager") if seed % 3 == 0 else (None,)
        said = _beside(model, [torch.from_numpy(x.copy()) for x in feeds.values()], tries, ROUNDING.get(op, 2e-5))
        compared += said is not None
        if said and not NO_KERNEL.search(said):
            found[seed] = said
    assert not found, "\n".join(
        f"{len(found)} of {compared}, seed {seed}: {said[:1500]}" for seed, said in found.items()
    )
    assert compared > CALLS_EACH // 2


@functools.cache
def _cases() -> dict[str, SuiteCase]:
    return {case.name: case for cases in node_cases().values() for case in cases}


RANDOM = ("bernoulli", "training_dropout")


@pytest.mark.parametrize("part", range(16))
def test_cases_of_the_suite(part: int) -> None:
    """Each case of ONNX's own suite, beside the CPU's answer."""
    found: dict[str, str] = {}
    compared = 0
    for name in [name for name in sorted(_cases()) if not any(kind in name for kind in RANDOM)][part::16]:
        case = _cases()[name]
        try:
            whole = prepare(case.model, "CPU")
            given = whole.arguments(case.inputs)
            wanted = whole.module(*placed(given, torch.device("cpu")))
        except (Onnx2nnError, ValueError, RuntimeError):  # the CPU's refusals are told in docs/conformance.md
            continue
        try:
            there = prepare(case.model, DEVICE.upper())
            given = there.arguments(case.inputs)
            is_placed = any(isinstance(value, torch.Tensor) for value in _flat(given))
            said = _apart(there.module(*given), wanted, is_placed=is_placed)
        except Exception as error:  # of any class of torch's: it is what is looked for
            said = f"{type(error).__name__}: {error}"
        compared += 1
        if said and not NO_KERNEL.search(said):
            found[name] = said
    assert not found, "\n".join(f"{name}: {said[:1500]}" for name, said in found.items())
    assert compared > 50


MODELS = (
    "resnet18", "mobilenet_v2", "efficientnet_b0", "swin_t", "vit_b_16", "densenet121", "convnext_tiny",
    "regnet_x_400mf", "shufflenet_v2_x1_0", "googlenet",
)  # fmt: skip


@functools.cache
def _file(name: str) -> bytes:
    torchvision_schemas.predefine()
    import torchvision

    model = getattr(torchvision.models, name)(weights=None, **({"init_weights": True} if name == "googlenet" else {}))
    stored = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), (_image(name, 2),), stored, dynamo=False, input_names=["image"], output_names=["scores"],
            dynamic_axes={"image": {0: "N"}, "scores": {0: "N"}},
        )  # fmt: skip
    return stored.getvalue()


def _image(name: str, batch: int = 3) -> torch.Tensor:
    return torch.rand(batch, 3, *[224 if name == "vit_b_16" else 96] * 2)


USES: dict[str, Callable[[Any, torch.Tensor, Path], Any]] = {}


def _use(function: Callable[[Any, torch.Tensor, Path], Any]) -> Callable[[Any, torch.Tensor, Path], Any]:
    USES[function.__name__.strip("_")] = function
    return function


@_use
def _call(module: Any, x: torch.Tensor, folder: Path) -> Any:
    return module(x)


@_use
def _trace(module: Any, x: torch.Tensor, folder: Path) -> Any:
    return torch.jit.trace(module, x[:2], check_trace=False)(x)


@_use
def _pickle(module: Any, x: torch.Tensor, folder: Path) -> Any:
    onnx2nn.save(module, folder / "module.pth")
    return torch.load(folder / "module.pth", weights_only=False)(x)


@_use
def _exported(module: Any, x: torch.Tensor, folder: Path) -> Any:
    batch = torch.export.Dim("batch", min=2, max=64)
    return torch.export.export(module, (x,), dynamic_shapes=({0: batch},)).module()(x)


@_use
def _package(module: Any, x: torch.Tensor, folder: Path) -> Any:
    onnx2nn.save(module, folder / "module.pt2", example_inputs=[x])
    return torch.export.load(folder / "module.pt2").module()(x)


@_use
def _compiled(module: Any, x: torch.Tensor, folder: Path) -> Any:
    return torch.compile(module, fullgraph=True, dynamic=True)(x)


@_use
def _optimized_eager(module: Any, x: torch.Tensor, folder: Path) -> Any:
    return onnx2nn.optimize(module, "eager")(x)


@_use
def _optimized_compile(module: Any, x: torch.Tensor, folder: Path) -> Any:
    return onnx2nn.optimize(module, "compile")(x)


@_use
def _source(module: Any, x: torch.Tensor, folder: Path) -> Any:
    onnx2nn.to_python(module, folder / "source", example_inputs=[x])
    spec = importlib.util.spec_from_file_location("model", folder / "source" / "model.py")
    assert spec is not None and spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    return source.load_model(folder / "source" / "weights.safetensors").to(x.device)(x)


@_use
def _file_again(module: Any, x: torch.Tensor, folder: Path) -> Any:
    onnx2nn.export_onnx(module, folder / "module.onnx")
    return onnx2nn.load(folder / "module.onnx", device=DEVICE)(x)


@_use
def _verified(module: Any, x: torch.Tensor, folder: Path) -> Any:
    onnx2nn.export_onnx(onnx2nn.load(module.meta["file"]), folder / "module.onnx")
    module = onnx2nn.load(folder / "module.onnx", device=DEVICE)
    assert onnx2nn.verify(folder / "module.onnx", module).ok
    assert onnx2nn.verify_nodes(folder / "module.onnx", module).ok
    return module(x)


@_use
def _machine_code(module: Any, x: torch.Tensor, folder: Path) -> Any:
    onnx2nn.save(module, folder / "module.pt2", compiled=True)
    return torch._inductor.aoti_load_package(str(folder / "module.pt2"))(x)


def test_steps_of_dynamic_quantisation_are_quotients() -> None:
    """Not products with the rounded reciprocal of 255, as torch divides by a Python number on a GPU."""
    module = onnx2nn.load(
        parser.parse_model("""<ir_version: 8, opset_import: ["": 18]> g (float[n] x) => (uint8[n] y, float s, uint8 z)
        { y, s, z = DynamicQuantizeLinear(x) }""")
    )
    rng = torch.Generator().manual_seed(0)
    for _ in range(500):
        x = torch.randn(64, generator=rng) * 10
        for found, wanted in zip(module(x.to(DEVICE)), module(x), strict=True):
            assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", MODELS[:4])
def test_what_is_done_with_a_network(name: str, use: str, tmp_path: Path) -> None:
    x = _image(name)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = onnx2nn.load(_file(name))(x)
        module = onnx2nn.load(_file(name), device=DEVICE)
        module.meta["file"] = _file(name)
        found = USES[use](module, x.to(DEVICE), tmp_path)
    assert not _apart(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_networks(name: str) -> None:
    """Outputs and gradients; float16 and bfloat16 stay near them."""
    x = _image(name)
    whole, module = onnx2nn.load(_file(name)), onnx2nn.load(_file(name), device=DEVICE)
    wanted, found = whole(x), module(x.to(DEVICE))
    assert not _apart(found, wanted, rtol=1e-4)
    for outputs in (wanted, found):
        outputs.square().sum().backward()
    for (key, ours), theirs in zip(module.named_parameters(), whole.parameters(), strict=True):
        assert not _apart(ours.grad, theirs.grad, rtol=5e-3), key
    with torch.no_grad():
        for dtype in (torch.float16, torch.bfloat16):
            half = onnx2nn.load(_file(name), device=DEVICE, dtype=dtype)(x.to(DEVICE, dtype))
            assert half.dtype == dtype
            assert not _apart(half.float(), wanted.detach(), rtol=0.1)
        with torch.autocast(DEVICE, torch.bfloat16):
            mixed = module(x.to(DEVICE))
        assert not _apart(mixed.float(), wanted.detach(), rtol=0.1)
