"""Reads what an earlier version saved, in a process that has imported nothing of ours; no test itself."""

from __future__ import annotations

import pickletools
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

Arrays = Sequence[np.ndarray]


def run(path: Path) -> tuple[Arrays, Arrays]:
    """Returns what a saved module gives, and what it gave when it was saved."""
    assert not any(name.partition(".")[0] == "onnx2nn" for name in sys.modules), "the process is not a fresh one"
    module = _READERS[path.suffix](path)
    with np.load(path.with_suffix(".torch.npz"), allow_pickle=False) as stored:
        inputs = [stored[key] for key in sorted(stored.files) if key.startswith("input")]
        expected = [stored[key] for key in sorted(stored.files) if key.startswith("output")]
    with torch.set_grad_enabled(path.stem == "gradient"):
        result = module(*map(torch.from_numpy, inputs))
    results = result if isinstance(result, tuple) else (result,)
    return [value if isinstance(value, np.ndarray) else value.detach().numpy() for value in results], expected


def _read_module(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def _read_program(path: Path) -> Any:
    import onnx2nn.operators  # noqa: F401, what `onnx2nn.save` asks for

    return torch.export.load(path).module()


def _read_torchscript(path: Path) -> Any:
    import onnx2nn.operators  # noqa: F401, what `onnx2nn.save` asks for

    return torch.jit.load(path)


def _read_state(path: Path) -> Any:
    import safetensors.torch

    import onnx2nn

    module = onnx2nn.load(path.with_suffix(".onnx"))
    for parameter in module.parameters():
        parameter.data.zero_()
    safetensors.torch.load_model(module, path)
    return module


_READERS = {".pth": _read_module, ".pt2": _read_program, ".torchscript": _read_torchscript, ".safetensors": _read_state}


def names_of_ours(path: Path) -> set[str]:
    """Returns module and name of what a pickle and the programs in it name of ours."""
    with zipfile.ZipFile(path) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        pickle = archive.read(member)
    found = set()
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name == "GLOBAL":
            found.add(str(argument))
        elif isinstance(argument, str):
            found |= {" ".join(pair) for pair in re.findall(r"^from (\S+) import (\S+)", argument, re.MULTILINE)}
    return {name for name in found if name.startswith("onnx2nn")}
