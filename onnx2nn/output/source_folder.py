"""A module as a folder for Hugging Face's hub: its Python source, its weights, its inputs and outputs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx2nn.importing.inputs import specs_of
from onnx2nn.output.python_source import write_source

if TYPE_CHECKING:
    import torch

_WEIGHTS = "model.safetensors"
"""The name under which the hub, and huggingface_hub's mixins, look for weights."""


def save_source(module: torch.nn.Module, folder: Path, example_inputs: Sequence[torch.Tensor] | None) -> str:
    """Writes `model.py`, `model.safetensors` and `config.json`; returns a line that describes them.

    Raises:
        InputError, MissingDependencyError, VerificationError: as for `onnx2nn.to_python`.
    """
    config = json.dumps(_config(module), indent=2) + "\n"
    line = write_source(module, folder, example_inputs, weights=_WEIGHTS, others={"config.json": config})
    return f"{line}; for the hub: hf upload ORGANISATION/NAME {folder}"


def _config(module: Any) -> dict[str, Any]:
    inputs = [dataclasses.asdict(spec) | {"dtype": spec.dtype and spec.dtype.name} for spec in specs_of(module)]
    known = ("name", "dtype", "shape")
    return {
        "library_name": "pytorch",
        "loader": "model.py: load_model",
        "inputs": [{key: spec[key] for key in known} for spec in inputs],
        "outputs": list(module.meta["onnx2nn"]["outputs"]),
    }
