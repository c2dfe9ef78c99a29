"""Sampling of ONNX Runtime: the tokens that can be drawn, and how often; the cases leave one token to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import onnx2nn
from tests import onnxnode
from tests.cases.contrib_fused import ms
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
