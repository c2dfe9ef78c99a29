"""Losses."""

from __future__ import annotations

from typing import Any

from onnx2nn.optable.registry import op

_REDUCTIONS = ("mean", "sum", "none")


def _ignored(ignore_index: int | None) -> dict[str, int]:
    """Returns torch's keyword for a class that is ignored."""
    return {} if ignore_index is None else {"ignore_index": ignore_index}


@op("NegativeLogLikelihoodLoss", 12, choices={"reduction": _REDUCTIONS}, buffers=["weight"])
def negative_log_likelihood_loss(
    F: Any, input: Any, target: Any, weight: Any = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Any:
    """The mean is divided by the sum of the targets' weights, in torch too."""
    options = _ignored(ignore_index)
    return F.nn.functional.nll_loss(input, target.long(), weight, reduction=reduction, **options)


@op("SoftmaxCrossEntropyLoss", 12, choices={"reduction": _REDUCTIONS}, buffers=["weights"])
def softmax_cross_entropy_loss(
    F: Any,
    scores: Any,
    labels: Any,
    weights: Any = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    _outputs: int = 1,
) -> Any:
    options = _ignored(ignore_index)
    loss = F.nn.functional.cross_entropy(scores, labels.long(), weights, reduction=reduction, **options)
    return loss if _outputs == 1 else (loss, F.log_softmax(scores, 1))
