"""LoRA on a language model of int4 weights: the builder of onnxruntime-genai writes the file, PEFT the adapters.

python examples/lora_int4.py    # a minute; needs onnx2nn[all,transformers], onnxruntime-genai, peft, scikit-learn

The text is scikit-learn's description of its digits. Its bytes are the tokens, so that a tiny model with random weights
will do: LoRA leaves those as they are, and must make what sense there is of them.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import tempfile
from pathlib import Path
from unittest import mock

import peft
import tokenizers
import torch
import transformers
from sklearn.datasets import load_digits
from torch.nn import functional as F

import onnx2nn

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]


def write(folder: Path) -> Path:
    """Writes a Llama of random weights, and the file of int4 weights that the builder makes of it."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).save_pretrained(folder / "llama")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"byte {i}": i for i in range(256)}))  # it wants one
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder / "llama")
    options = ["-i", folder / "llama", "-o", folder / "int4", "-p", "int4", "-e", "cpu", "-c", folder / "cache"]
    with mock.patch.object(sys, "argv", ["builder", *map(str, options)]), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")  # `python -m ...`
    return folder / "int4" / "model.onnx"


def main(steps: int = 120) -> dict[str, float]:
    """Trains adapters; returns the losses on bytes that training does not see, in nats a byte."""
    text = torch.tensor(list(load_digits().DESCR.encode()))
    train, test = text[:-129], text[-129:].unsqueeze(0)  # (1, 129)
    with tempfile.TemporaryDirectory() as folder:
        model = onnx2nn.load(write(Path(folder)), quantized="dequantize", trainable=False)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=LAYERS))
    adapted.print_trainable_parameters()

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape[0], tokens.shape[1] - 1
        empty = [torch.zeros(batch, 2, 0, 32)] * 4  # keys and values of two layers: there is nothing before
        logits = adapted(tokens[:, :-1], torch.ones(batch, length, dtype=torch.int64), *empty)[0]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    with torch.no_grad():
        before = loss(test).item()
    optimizer = torch.optim.AdamW((x for x in adapted.parameters() if x.requires_grad), 5e-3)
    for _ in range(steps):
        starts = torch.randint(len(train) - 65, (16,)).tolist()
        found = loss(torch.stack([train[start : start + 65] for start in starts]))
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
    with torch.no_grad():
        after = loss(test).item()
    print(f"nats a byte of text that it has not seen: {before:.2f} before, {after:.2f} after")
    merged = adapted.merge_and_unload()
    prompt = torch.tensor([list(b"The data ")])
    print(bytes(onnx2nn.generate(merged, prompt, max_new_tokens=40)[0].tolist()).decode(errors="replace"))
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
