"""Modules loaded for other devices: on the meta device no weight is read, and a state_dict completes the module."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from realmodels import require_transformers
from safetensors.torch import load_file

import onnx2nn
from onnx2nn import backend
from onnx2nn.errors import InputError, Onnx2nnError
from scripts.language_models import built, feeds, tensors

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits" / "digits.onnx"


def _perceptron(path: Path, external: bool, width: int = 1024, layers: int = 16) -> Path:
    """Writes linear layers, of 64 MiB, stored transposed as exporters do."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((width, width), np.float32) for _ in range(layers)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"layer{i}.weight"], [f"x{i + 1}"]) for i in range(layers)]
    infos = [helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.FLOAT, ["n", width]) for i in (0, layers)]
    state = [numpy_helper.from_array(weight, f"layer{i}.weight") for i, weight in enumerate(weights)]
    model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:], state))
    onnx.save(model, path, save_as_external_data=external, location="data", convert_attribute=False)
    return path


_MEASURE = """
import gc, json, sys, onnx2nn
def resident(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))
onnx2nn.load(sys.argv[1])
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
own = resident("VmRSS")
module = onnx2nn.load(sys.argv[2], **json.loads(sys.argv[3]))
print(json.dumps([resident("VmHWM") - own, sum(p.nbytes for p in module.parameters())]))
"""


def _peak(path: Path, **options: Any) -> tuple[int, int]:
    """Returns the peak of a load's resident memory, and the bytes of the weights."""
    run = [sys.executable, "-c", _MEASURE, str(DIGITS), str(path), json.dumps(options)]
    peak, size = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    return peak, size


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_the_meta_device_takes_no_memory(external: bool, tmp_path: Path) -> None:
    path = _perceptron(tmp_path / "model.onnx", external)
    (peak, size), (whole, _) = _peak(path, device="meta"), _peak(path)
    assert peak < 0.05 * size < 0.9 * size < whole


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_mapped_weights_are_not_read(external: bool, tmp_path: Path) -> None:
    peak, size = _peak(_perceptron(tmp_path / "model.onnx", external), mmap=True)
    assert peak < (0.05 if external else 1.2) * size  # the names before weights inside may leave them unaligned


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_mapped_weights(external: bool, tmp_path: Path) -> None:
    """They give the same numbers, train, are written and saved, and the file stays as it is."""
    path = _perceptron(tmp_path / "model.onnx", external, 128, 2)
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    whole, module = onnx2nn.load(path), onnx2nn.load(path, mmap=True)
    for name, value in whole.state_dict().items():
        mapped = module.state_dict()[name]
        assert torch.equal(mapped, value) and not mapped.data_ptr() % mapped.element_size()
    x = torch.randn(3, 128)
    exact = copy.deepcopy(whole).double()(x.double())
    ours, theirs = (float((run(x) - exact).abs().max() / exact.abs().max()) for run in (module, whole))
    assert ours <= 4 * theirs + torch.finfo(x.dtype).eps  # another layout has another kernel
    for saved in (tmp_path / "state.safetensors", tmp_path / "whole.pth"):
        onnx2nn.save(module, saved)
        kept = (
            load_file(saved) if saved.suffix == ".safetensors" else torch.load(saved, weights_only=False).state_dict()
        )
        assert all(torch.equal(kept[name], value) for name, value in whole.state_dict().items())
    module(x).sum().backward()
    torch.optim.SGD(module.parameters(), 1.0).step()
    assert not any(map(torch.equal, module.parameters(), whole.parameters()))
    assert {file: file.read_bytes() for file in files} == files
    with pytest.raises(InputError, match="mmap needs framework='torch'"):
        onnx2nn.load(path, framework="oneflow", mmap=True)


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_state_dict_completes_a_module_on_the_meta_device(external: bool, tmp_path: Path) -> None:
    path = _perceptron(tmp_path / "model.onnx", external, 64, 2)
    whole, module = onnx2nn.load(path), onnx2nn.load(path, device="meta")
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert module.code == whole.code
    module.load_state_dict(whole.state_dict(), assign=True)
    x = torch.randn(3, 64)
    assert torch.equal(module(x), whole(x))


def _gpt2(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=64, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).eval()
    torch.onnx.export(
        model, (torch.ones(1, 7, dtype=torch.int64),), folder / "gpt2.onnx", dynamo=True, input_names=["input_ids"],
        verbose=False,
    )  # fmt: skip
    return folder / "gpt2.onnx"


def test_tied_weights_and_constants(tmp_path: Path) -> None:
    """A tied weight stays one parameter; constants outside of state_dict have their elements."""
    require_transformers()
    path, tokens = _gpt2(tmp_path), torch.randint(0, 256, (1, 7))
    whole, module = onnx2nn.load(path), onnx2nn.load(path, device="meta")
    assert len(list(module.parameters())) == len(list(whole.parameters()))
    held = {name for name in module.state_dict()}
    assert all(buffer.device.type == "cpu" for name, buffer in module.named_buffers() if name not in held)
    module.load_state_dict(whole.state_dict(), assign=True)
    assert torch.equal(module(tokens), whole(tokens))


def test_the_types_follow_on_the_meta_device(tmp_path: Path) -> None:
    require_transformers()
    path, tokens = _gpt2(tmp_path), torch.randint(0, 256, (1, 7))
    whole, module = (onnx2nn.load(path, dtype=torch.bfloat16, device=device) for device in ("cpu", "meta"))
    module.load_state_dict(whole.state_dict(), assign=True)
    assert torch.equal(module(tokens), whole(tokens))


@pytest.mark.parametrize("buffers", [False, True])
def test_empty_weights_of_accelerate(buffers: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    with accelerate.init_empty_weights(include_buffers=buffers):
        module = onnx2nn.load(DIGITS)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    module.load_state_dict(onnx2nn.load(DIGITS).state_dict(), assign=True)
    assert module(torch.rand(2, 8, 8, 1)).shape == (2, 10)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_a_language_model(precision: str) -> None:
    path = built("llama", precision)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the size of a cache's rows
        whole, module = onnx2nn.load(path), onnx2nn.load(path, device="meta")
    module.load_state_dict(whole.state_dict(), assign=True)
    inputs: Any = tensors(feeds(path, 2, 5, 0))
    for ours, theirs in zip(module(*inputs), whole(*inputs), strict=True):
        assert torch.equal(ours, theirs)


def test_a_device_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="device='tpu'"):
        onnx2nn.load(DIGITS, device="tpu")
    with pytest.raises(InputError, match="device needs framework='torch'"):
        onnx2nn.load(DIGITS, framework="oneflow", device="meta")


def test_a_file_that_became_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is mapped; while it is mapped the system ends the process, which docs/untrusted_files.md says."""
    path = _perceptron(tmp_path / "model.onnx", True, 64, 2)
    from onnx2nn.reading import mapped

    mapping = mapped.mapping

    def shorten(model: Any) -> Any:
        (tmp_path / "data").write_bytes(b"")
        return mapping(model)

    monkeypatch.setattr("onnx2nn.loading.mapping", shorten)
    with pytest.raises(Onnx2nnError, match="Cannot map"):
        onnx2nn.load(path, device="meta")


@pytest.mark.slow
@pytest.mark.pinned("torch")  # fake tensors of a simulated device are of the newest
def test_results_are_where_the_inputs_are() -> None:
    """On a device without elements, as there is no GPU: drawn calls make all their tensors there."""
    command = [sys.executable, "-m", "tests.simulated_device", "4"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert found.returncode == 0, found.stderr
    *wrong, counts = found.stdout.splitlines()
    assert not wrong, "\n".join(wrong)
    right = re.search(r"(\d+) right", counts)
    assert right is not None and int(right.group(1)) > 800, counts


def test_what_is_on_no_single_device_is_not_optimised() -> None:
    module = onnx2nn.load(DIGITS, device="meta")
    with pytest.raises(InputError, match="weights are on meta"):
        onnx2nn.optimize(module, "eager")


def test_devices_of_the_backend() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CUDA") == torch.cuda.is_available()
    assert not backend.supports_device("CUDA:99")
    assert not backend.supports_device("TPU")
