"""Language models: decoding with their caches, and the models of transformers that they were built from.

Imported modules and files with a configuration beside them come in; tokens and models of transformers go out. Only the
package's public names import this room. PyTorch is imported at the first call.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def generate(
    module: Any,
    input_ids: torch.Tensor,
    *,
    max_new_tokens: int,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_token_id: int | Collection[int] = (),
    pad_token_id: int = 0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Continues prompts, token by token, with the model's cache of keys and values.

    Args:
        module: of `onnx2nn.load`, with inputs `input_ids`, `past_key_values.0.key`, ... and outputs `logits`,
            `present.0.key`, ..., as onnxruntime-genai's builder and Optimum write them.
        input_ids: the prompts, `(N, L)` int64, all of one length.
        max_new_tokens: how many tokens are added at most.
        do_sample: whether tokens are drawn by their probability; otherwise the most probable one is taken.
        temperature: by which the logits are divided before tokens are drawn.
        top_k: draws among this number of the most probable tokens.
        top_p: draws among the most probable tokens whose probabilities sum up to this, the last of them included.
        eos_token_id: the tokens that end a sequence.
        pad_token_id: what follows the end of a sequence that is shorter than others.
        generator: draws the tokens; by default torch's.

    Returns:
        The prompts with the new tokens, `(N, L + new)`.

    Raises:
        InputError: the module is no decoder with a cache, or an argument does not fit.
    """
    from onnx2nn.language.generation import Drawing, decode

    drawing = Drawing(temperature, top_k, top_p, generator) if do_sample else None
    return decode(module, input_ids, max_new_tokens, drawing, eos_token_id, pad_token_id)


def to_transformers(path: str | os.PathLike[str], *, config: Any = None) -> Any:
    """Returns the model of transformers that a file was built from, with the file's weights, in eval mode.

    Args:
        path: of a file of onnxruntime-genai's builder; `genai_config.json` lies beside it. Weights of int4 and int8
            become floats.
        config: the model's configuration, an object of transformers. By default `config.json` beside the file, or what
            `genai_config.json` and the file say of it.

    Returns:
        The model (`transformers.PreTrainedModel`). Its logits for a prompt were compared with the imported file's.

    Raises:
        InputError: the configuration is not known, or the file's weights do not fit it.
        MissingDependencyError: transformers is not installed.
        VerificationError: the model computes something else than the file.
        ModelFileError, UnsupportedModelError: as for `onnx2nn.load`.
    """
    from onnx2nn.language.transformers_model import with_weights_of

    return with_weights_of(path, config)
