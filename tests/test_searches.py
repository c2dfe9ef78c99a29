"""Searches of ONNX Runtime: how often Sampling draws a token, where cases leave one; sources; refused traces."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import onnx2nn
from onnx2nn.errors import VerificationError
from tests import onnxnode
from tests.cases.contrib.fused import ms
from tests.cases.contrib.searches import CASES
from tests.decoders import VOCABULARY, decoder

ROWS = 4000


OPTIONS: list[dict[str, Any]] = [
    {"top_p": 0.8},
    {"top_p": 0.6, "temperature": 25.0},
    {"top_p": 0.7, "custom": 1},
    {"top_p": 0.3, "min_tokens_to_keep": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_tokens_are_drawn_as_often(options: dict[str, Any]) -> None:
    """Draws one token behind many equal prompts."""
    ids = np.tile(np.array([[3, 5, 1]], np.int32), (ROWS, 1))
    settings: dict[str, Any] = {"min_tokens_to_keep": 1, "temperature": 12.0}
    settings |= {"eos_token_id": VOCABULARY - 1, "pad_token_id": VOCABULARY - 1}
    call = ms("Sampling", ids, np.array([4], np.int32), decoder=decoder(4), **settings | options)
    model, feeds = onnxnode.model_of(call, 1)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    torch.manual_seed(0)
    found = onnx2nn.load(model)(*(torch.from_numpy(value) for value in feeds.values()))
    counts = [np.bincount(tokens[:, 3], minlength=VOCABULARY) for tokens in (np.asarray(found), expected)]
    often = [{token for token, count in enumerate(c) if count > ROWS / 100} for c in counts]
    assert often[0] == often[1] and len(often[0]) > 1
    assert np.abs(counts[0] - counts[1]).sum() / 2 < 0.05 * ROWS


def _imported(call: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
    model, feeds = onnxnode.model_of(call, 1)
    return onnx2nn.load(model), tuple(torch.from_numpy(value) for value in feeds.values())


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: f"{CASES[case].operator}-{case}")
def test_sources_search_alike(case: int, tmp_path: Path) -> None:
    module, inputs = _imported(CASES[case])
    onnx2nn.to_python(module, tmp_path)
    (source,) = tmp_path.glob("*.py")
    assert "onnx2nn" not in source.read_text(encoding="utf-8").replace("torch.ops.onnx2nn", "")
    written = runpy.run_path(str(source))["load_model"]()
    found, expected = (
        (each,) if isinstance(each, torch.Tensor) else each for each in (written(*inputs), module(*inputs))
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["GreedySearch", "Sampling", "BeamSearch"])
def test_a_trace_is_refused_by_the_name_of_the_node(name: str, tmp_path: Path) -> None:
    """A trace would have as many steps as its example took."""
    module, inputs = _imported(next(call for call in CASES if call.operator == name))
    with pytest.raises(RuntimeError, match=r"The search of node 'node' cannot be traced"):
        torch.export.export(module, inputs)
    for ending in (".onnx", ".pt2", ".torchscript"):
        with pytest.raises(VerificationError, match=r"The search of node 'node' cannot be traced"):
            if ending == ".onnx":
                onnx2nn.export_onnx(module, tmp_path / "model.onnx", example_inputs=inputs)
            else:
                onnx2nn.save(module, tmp_path / f"model{ending}", example_inputs=inputs)
    assert list(tmp_path.iterdir()) == []
