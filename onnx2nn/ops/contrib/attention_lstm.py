"""ONNX Runtime's LSTM that attends a memory after each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.rnn import (
    check_shapes,
    linear_maps,
    lstm_cells,
    outputs_asked,
    recurrent_loop,
    recurrent_results,
    settings,
    state_maps,
    summed,
)  # fmt: skip
from onnx2nn.optable.registry import op


def _results(F: Any, X: Any, W: Any, R: Any, *others: Any, **attributes: Any) -> Any:
    return recurrent_results(X, W.shape[0], X.shape[-1], R.shape[-1], 0)


@op("AttnLSTM", 1, domain=MICROSOFT, results=_results, custom_op=True)
def attn_lstm(
    F: Any,
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    initial_c: Any = None,
    P: Any = None,
    QW: Any = None,
    MW: Any = None,
    V: Any = None,
    M: Any = None,
    memory_seq_lens: Any = None,
    AW: Any = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    _outputs: int = 3,
) -> Any:
    """LSTM whose input is X beside the attention of the step before, of which there is none in the first step.

    M: the memory `(N, steps, depth)`, of which memory_seq_lens steps are attended by Bahdanau's mechanism. AW maps the
    hidden state beside the context to the attention; without it the attention is the context. W's columns are those of
    X, then those of the attention.
    """
    if any(value is None for value in (QW, MW, V, M)):
        raise OperatorError("QW, MW, V and M are needed: ONNX Runtime has no attention without one of them.")
    s = settings(direction, activations, ("Sigmoid", "Tanh", "Tanh"), activation_alpha, activation_beta, clip, 0)
    depth = M.shape[-1] if AW is None else AW.shape[-1]
    check_shapes(F, s, 4, X, W.shape, R.shape, B, [initial_h, initial_c], P, beside_x=depth)
    hidden, features = R.shape[-1], X.shape[-1]
    of_input, of_state = linear_maps(F, W[:, :, :features], summed(B)), state_maps(F, R)
    of_attention = state_maps(F, W[:, :, features:])
    cells = lstm_cells(F, P, hidden, input_forget, s)
    keys = [M @ weight for weight in MW]

    def attended(i: int, h: Any) -> Any:
        scores = (F.tanh(keys[i] + (h @ QW[i]).unsqueeze(1)) * V[i]).sum(-1)
        if memory_seq_lens is not None:
            there = F.arange(M.shape[1], device=M.device) < memory_seq_lens.reshape(-1, 1)
            scores = scores.masked_fill(F.logical_not(there), -float("inf"))
        context = (F.softmax(scores, -1).unsqueeze(1) @ M).squeeze(1)
        return context if AW is None else F.cat([h, context], 1) @ AW[i]

    def step(i: int, x: Any, h: Any, c: Any, attention: Any) -> tuple[Any, ...]:
        h, c = cells[i](of_attention[i](of_state[i](x, h), attention), c)
        return h, c, attended(i, h)

    nothing = F.zeros([W.shape[0], X.shape[1], W.shape[2] - features], dtype=X.dtype)
    states = [initial_h, initial_c, nothing]
    Y, Y_h, Y_c, _ = recurrent_loop(F, X, of_input, sequence_lens, states, hidden, step, s)
    return outputs_asked((Y, Y_h, Y_c), _outputs)
