"""Language models of transformers that take and give tensors alone; imported only where transformers is installed.

They are subclasses rather than wrappers, so that the names of their submodules are the authors'.
"""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)


class Bert(BertForSequenceClassification):
    """Two layers of BERT and a classifier."""

    def __init__(self) -> None:
        super().__init__(
            BertConfig(
                vocab_size=100,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=40,
                num_labels=10,
            )
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns the logits `(N, 10)` of token ids and a mask `(N, T)`, both int64."""
        return super().forward(input_ids=input_ids, attention_mask=attention_mask).logits


class Llama(LlamaForCausalLM):
    """Two layers of Llama with grouped queries."""

    def __init__(self) -> None:
        super().__init__(
            LlamaConfig(
                vocab_size=100,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=64,
                max_position_embeddings=40,
                use_cache=False,
            )
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns the logits `(N, T, 100)` of token ids and a mask `(N, T)`, both int64."""
        return super().forward(input_ids=input_ids, attention_mask=attention_mask).logits


class GPT2(GPT2LMHeadModel):
    """Two layers of GPT-2."""

    def __init__(self) -> None:
        super().__init__(
            GPT2Config(
                vocab_size=100,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=40,
                use_cache=False,
                bos_token_id=1,
                eos_token_id=2,
            )
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns the logits `(N, T, 100)` of token ids and a mask `(N, T)`, both int64."""
        return super().forward(input_ids=input_ids, attention_mask=attention_mask).logits
