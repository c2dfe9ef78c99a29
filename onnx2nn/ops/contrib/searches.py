"""Signatures of ONNX Runtime's searches for tokens; `fx.subgraphs.searches` imports them as `onnx2nn.searches`."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED

_REGION = "a search is no function of tensors: its decoder is imported with the model."


@op("GreedySearch", 1, domain=MICROSOFT, call="subgraph")
def greedy_search(
    F: Any,
    input_ids: Any,
    max_length: Any,
    min_length: Any = None,
    repetition_penalty: Any = None,
    vocab_mask: Any = None,
    prefix_vocab_mask: Any = None,
    attention_mask: Any = None,
    *,
    decoder: Any,
    decoder_start_token_id: int = -1,
    encoder: Any = None,
    eos_token_id: int,
    init_decoder: Any = None,
    model_type: int = 0,
    no_repeat_ngram_size: int = 0,
    pad_token_id: int,
    vocab_size: int = -1,
) -> Any:
    raise OperatorError(_REGION)


@op("Sampling", 1, domain=MICROSOFT, call="subgraph", random=True)
def sampling(
    F: Any,
    input_ids: Any,
    max_length: Any,
    min_length: Any = None,
    repetition_penalty: Any = None,
    vocab_mask: Any = None,
    prefix_vocab_mask: Any = None,
    attention_mask: Any = None,
    presence_mask: Any = None,
    seed: Any = None,
    *,
    custom: int = 0,
    decoder: Any,
    decoder_start_token_id: int = -1,
    encoder: Any = None,
    eos_token_id: int,
    filter_value: float = -1e20,
    init_decoder: Any = None,
    min_tokens_to_keep: int = 0,
    model_type: int = 0,
    no_repeat_ngram_size: int = 0,
    pad_token_id: int,
    presence_penalty: float = 0.0,
    temperature: float = 1.0,
    top_p: float = 0.0,
    vocab_size: int = -1,
) -> Any:
    raise OperatorError(_REGION)


@op("BeamSearch", 1, domain=MICROSOFT, call="subgraph")
def beam_search(
    F: Any,
    input_ids: Any,
    max_length: Any,
    min_length: Any = None,
    num_beams: Any = REQUIRED,
    num_return_sequences: Any = REQUIRED,
    length_penalty: Any = None,
    repetition_penalty: Any = None,
    vocab_mask: Any = None,
    prefix_vocab_mask: Any = None,
    attention_mask: Any = None,
    decoder_input_ids: Any = None,
    logits_processor: Any = None,
    *,
    decoder: Any,
    decoder_start_token_id: int = -1,
    early_stopping: int = 0,
    encoder: Any = None,
    eos_token_id: int,
    init_decoder: Any = None,
    model_type: int = 0,
    no_repeat_ngram_size: int = 0,
    pad_token_id: int,
    vocab_size: int = -1,
) -> Any:
    raise OperatorError(_REGION)
