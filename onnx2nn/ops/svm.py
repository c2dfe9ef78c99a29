"""ai.onnx.ml: support vector machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.ml import DOMAIN, POST_TRANSFORMS, floats, labels_of, pick, post_transform_of, rows
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import NeedsValues

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _kernel(F: Any, X: Any, vectors: Any, kind: str, parameters: Sequence[float] | None) -> Any:
    """Returns the kernel between the rows of `X` and those of `vectors`: `(N, vectors)`.

    Args:
        F: the namespace.
        X: float32 `(N, features)`.
        vectors: float32 `(vectors, features)`.
        kind: LINEAR, POLY, RBF or SIGMOID.
        parameters: gamma, the constant and the degree.
    """
    gamma, constant, degree = parameters or (0.0, 0.0, 0.0)
    if kind == "RBF":
        distance = F.cdist(X, vectors, compute_mode="donot_use_mm_for_euclid_dist")
        return F.exp(distance.square() * -gamma)
    products = X @ vectors.T
    if kind == "LINEAR":
        return products
    if kind == "POLY":
        return (products * gamma + constant) ** degree
    if kind == "SIGMOID":
        return F.tanh(products * gamma + constant)
    raise OperatorError(f"kernel_type={kind!r} is none of {', '.join(_KERNELS)}.")


@op(
    "SVMRegressor",
    1,
    choices={"kernel_type": _KERNELS, "post_transform": POST_TRANSFORMS},
    domain=DOMAIN,
)
def svm_regressor(
    F: Any,
    X: Any,
    *,
    coefficients: Sequence[float] | None = None,
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
) -> Any:
    """Without support vectors it is linear in `X`. A `post_transform` is refused, as its result is not defined."""
    if post_transform != "NONE":
        raise OperatorError(f"post_transform={post_transform!r} has no defined result.")
    X, weight, offset = rows(X), floats(F, coefficients or ()), (rho or [0.0])[0]
    if n_supports:
        X = _kernel(F, X, floats(F, support_vectors or ()).reshape(n_supports, -1), kernel_type, kernel_params)
    Y = X @ weight.reshape(-1, 1) + offset
    return F.where(Y > 0, 1.0, -1.0) if one_class else Y


def _pairs(F: Any, kernel: Any, coefficients: Any, counts: Sequence[int], rho: Sequence[float]) -> Any:
    """Returns the decision of each pair of classes, positive for the first of the two: `(N, pairs)`.

    For i < j, row `j - 1` of the coefficients weights the vectors of class i, row `i` the vectors of class j.
    """
    starts = [sum(counts[:i]) for i in range(len(counts))]
    weights = F.zeros(len(rho), sum(counts))
    pair = 0
    for i in range(len(counts)):
        for j in range(i + 1, len(counts)):
            a, b = slice(starts[i], starts[i] + counts[i]), slice(starts[j], starts[j] + counts[j])
            weights[pair, a] = coefficients[j - 1, a]
            weights[pair, b] = coefficients[i, b]
            pair += 1
    return F.nn.functional.linear(kernel, weights, floats(F, rho))


def _winners(F: Any, decisions: Any, classes: int) -> Any:
    """Returns for each row the class that wins most pairs; of equal classes the first."""
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    first = F.nn.functional.one_hot(F.tensor([i for i, _ in pairs]), classes)
    second = F.nn.functional.one_hot(F.tensor([j for _, j in pairs]), classes)
    votes = F.where((decisions > 0).unsqueeze(-1), first, second).sum(1)
    return F.argmax(votes, 1)


def _coupled(F: Any, decisions: Any, prob_a: Sequence[float], prob_b: Sequence[float], classes: int) -> Any:
    """Returns the classes' probabilities from the pairs', by the iteration of LIBSVM (Wu, Lin, Weng 2004).

    A row stops when its error is below `0.005 / classes`, at the latest after 100 rounds.
    """
    wins = F.sigmoid(-(decisions * floats(F, prob_a) + floats(F, prob_b))).clamp(1e-7, 1 - 1e-7)
    r = F.zeros(decisions.shape[0], classes, classes)
    upper = F.triu_indices(classes, classes, 1)
    r[:, upper[0], upper[1]] = wins
    r[:, upper[1], upper[0]] = 1 - wins
    Q = -r.mT * r
    diagonal = r.square().sum(1)
    Q = Q - F.diag_embed(Q.diagonal(dim1=1, dim2=2)) + F.diag_embed(diagonal)
    p = F.full((decisions.shape[0], classes), 1 / classes)
    for _ in range(100):
        Qp = (Q @ p.unsqueeze(-1)).squeeze(-1)
        pQp = (p * Qp).sum(1)
        active = (Qp - pQp.unsqueeze(1)).abs().amax(1) >= 0.005 / classes
        if not active.any():
            break
        new = p
        for i in range(classes):
            step = (pQp - Qp[:, i]) / diagonal[:, i]
            grown = 1 + step
            pQp = (pQp + step * (step * diagonal[:, i] + 2 * Qp[:, i])) / grown / grown
            Qp = (Qp + step.unsqueeze(1) * Q[:, i]) / grown.unsqueeze(1)
            new = (new + F.nn.functional.one_hot(F.tensor(i), classes) * step.unsqueeze(1)) / grown.unsqueeze(1)
        p = F.where(active.unsqueeze(1), new, p)
    return p


def _results_of_classifier(
    F: Any,
    X: Any,
    *,
    classlabels_ints: Sequence[int] | None = None,
    prob_a: Sequence[float] | None = None,
    vectors_per_class: Sequence[int] | None = None,
    **others: Any,
) -> Any:
    if not classlabels_ints:
        raise NeedsValues("its labels are strings, of which torch has no tensors")
    classes, count = len(classlabels_ints), X.shape[0] if X.ndim == 2 else 1
    pairs = classes * (classes - 1) // 2
    scores = classes if prob_a or classes == 2 or not vectors_per_class else pairs
    return [([count], F.int64), ([count, scores], F.float32)]


@op(
    "SVMClassifier",
    1,
    choices={"kernel_type": _KERNELS, "post_transform": POST_TRANSFORMS},
    domain=DOMAIN,
    results=_results_of_classifier,
    custom_op=True,
)
def svm_classifier(
    F: Any,
    X: Any,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float] | None = None,
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] | None = None,
    prob_b: Sequence[float] | None = None,
    rho: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
    vectors_per_class: Sequence[int] | None = None,
    _outputs: int = 2,
) -> tuple[Any, ...]:
    """The scores are probabilities with `prob_a`, else the decisions of the pairs; for two classes `(-s, s)`.

    As in ONNX Runtime: for two classes LOGISTIC transforms `(-s, s)`, and other transforms give `(1 - s, s)`. Without
    support vectors the coefficients are one row per class, and all classes use the first `rho`. Of two classes the
    second then wins where either score is positive (at least 0.5 where no coefficient is negative).
    """
    labels = labels_of(F, classlabels_ints, classlabels_strings)
    X, rho, weights = rows(X), list(rho or ()), floats(F, coefficients or ())
    if not vectors_per_class:
        scores = F.nn.functional.linear(X, weights.reshape(len(labels), -1)) + rho[0]
        winner = _largest(F, scores, positive=min(coefficients or [0.0]) >= 0)
        scores = post_transform_of(F, scores, post_transform)
    else:
        vectors = floats(F, support_vectors or ()).reshape(sum(vectors_per_class), -1)
        kernel = _kernel(F, X, vectors, kernel_type, kernel_params)
        decisions = _pairs(F, kernel, weights.reshape(-1, len(vectors)), vectors_per_class, rho)
        winner = _winners(F, decisions, len(labels))
        if prob_a:
            decisions = _coupled(F, decisions, prob_a, prob_b or (), len(labels))
        scores = _transformed(F, decisions, post_transform)
    return (pick(F, labels, winner), scores)[:_outputs]


def _largest(F: Any, scores: Any, positive: bool) -> Any:
    """Returns the class of the largest of the scores `(N, classes)`; `positive`: no coefficient is negative."""
    if scores.shape[1] != 2:
        return F.argmax(scores, 1)
    best = scores.amax(1)
    return F.where(best >= 0.5 if positive else best > 0, 1, F.argmax(scores, 1))


def _transformed(F: Any, scores: Any, transform: str) -> Any:
    """Returns the scores after `post_transform`; the single decision `s` of two classes gives two columns."""
    if scores.shape[1] != 1:
        return post_transform_of(F, scores, transform)
    if transform == "PROBIT":
        raise OperatorError("post_transform='PROBIT' of a decision between two classes has no defined result.")
    if transform in ("NONE", "LOGISTIC"):
        return post_transform_of(F, F.cat([-scores, scores], 1), transform)
    return F.cat([1 - scores, scores], 1)
