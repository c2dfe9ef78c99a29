"""ai.onnx.ml: scaling, encoding and linear models, in float32 as in ONNX Runtime; a map is a dict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.text import strings
from onnx2nn.optable.registry import at_run_time, op
from onnx2nn.optable.revisions import revision

DOMAIN = "ai.onnx.ml"


@at_run_time
def pick_strings(names: Sequence[str], index: Any) -> Any:
    """Returns the object array of the strings `names` at the positions `index`, an integer tensor."""
    return np.asarray(strings(names)[index.cpu().numpy()], dtype=object)


def pick(F: Any, values: Any, index: Any) -> Any:
    """Returns the `values`, a tensor or a list of strings, at the positions `index`."""
    return pick_strings(list(values), index) if isinstance(values, (list, np.ndarray)) else _at(values, index)


def _at(values: Any, index: Any) -> Any:
    """Returns the elements of a vector; a scalar would be a number for torch, which a trace does not know."""
    return values[(index,)] if index.ndim else values[(index.reshape(1),)].reshape([])


def labels_of(F: Any, ints: Sequence[int] | None, names: Sequence[str] | None) -> Any:
    """Returns a classifier's labels: a list of strings or an int64 tensor.

    Raises:
        OperatorError: not exactly one of the two attributes is given.
    """
    if bool(ints) == bool(names):
        raise OperatorError(
            f"its labels are given by {'both attributes' if names else 'no attribute'}. Give it one of them."
        )
    return list(names) if names else F.tensor(list(ints or ()), dtype=F.int64)


def floats(F: Any, values: Any) -> Any:
    """Returns an attribute's numbers as a float32 tensor."""
    return F.tensor(list(values), dtype=F.float32)


def rows(X: Any) -> Any:
    """Returns `X` as float32 of shape `(N, features)`; one dimension is one row."""
    X = X.float()
    return X.reshape([1, -1]) if X.ndim == 1 else X


def matrix(F: Any, coefficients: Sequence[float], count: int, X: Any) -> Any:
    """Returns the coefficients as a matrix `(count, features)` for `X`, `(N, features)`.

    Superfluous coefficients at the end are ignored, as in ONNX Runtime: its logreg_iris.onnx has 12 coefficients for
    3 classes and 2 features.

    Raises:
        OperatorError: the list is too short.
    """
    features = X.shape[1]
    if not isinstance(features, int):  # dynamic: the length of the list decides
        return floats(F, coefficients).reshape(count, -1)
    if len(coefficients) < count * features:
        raise OperatorError(f"it has {len(coefficients)} coefficients, {count} rows of {features} are needed.")
    return floats(F, coefficients[: count * features]).reshape(count, features)


def probit(F: Any, p: Any) -> Any:
    """Returns ONNX Runtime's approximation (of Winitzki) of the inverse of the normal distribution function."""
    x = p * 2 - 1
    logarithm = F.log((1 - x) * (1 + x))
    v = logarithm * 0.5 + 2 / (3.14159 * 0.147)
    root = F.sqrt(F.sqrt(v * v - logarithm * (1 / 0.147)) - v)
    return F.where(x < 0, -root, root) * math.sqrt(2)


def _softmax_zero(F: Any, scores: Any) -> Any:
    """Returns a softmax of the scores that are not 0; scores of 0 stay 0."""
    largest = scores.amax(-1, keepdim=True)
    counts = scores.abs() > 1e-7
    # Where a score is not counted the largest is no less than it; elsewhere the other term has to have a gradient.
    terms = F.where(counts, F.exp(scores - largest), scores * F.exp(-largest.clamp_min(-1.0)))
    return terms / F.where(counts, terms, 0.0).sum(-1, keepdim=True)


POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def post_transform_of(F: Any, scores: Any, transform: str) -> Any:
    """Returns scores of shape `(N, classes)` after an operator's `post_transform`.

    Raises:
        OperatorError: the standard does not have this transform.
    """
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return F.sigmoid(scores)
    if transform == "SOFTMAX":
        return F.softmax(scores, -1)
    if transform == "SOFTMAX_ZERO":
        return _softmax_zero(F, scores)
    if transform == "PROBIT":
        return probit(F, scores)
    raise OperatorError(f"post_transform={transform!r} is none of {', '.join(POST_TRANSFORMS)}.")


@op("LinearClassifier", 1, choices={"post_transform": POST_TRANSFORMS}, domain=DOMAIN)
def linear_classifier(
    F: Any,
    X: Any,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Any, ...]:
    """One row of coefficients gives two scores, as in ONNX Runtime: LOGISTIC of `(-s, s)`, else `(1 - s, s)`."""
    labels = labels_of(F, classlabels_ints, classlabels_strings)
    X = rows(X)
    classes = len(intercepts) if intercepts else len(coefficients) // X.shape[1]
    if classes > 1 and len(labels) < classes:
        raise OperatorError(f"it has {classes} rows of coefficients for {len(labels)} labels.")
    scores = F.nn.functional.linear(
        X, matrix(F, coefficients, classes, X), floats(F, intercepts) if intercepts else None
    )
    if classes > 1:
        return pick(F, labels, F.argmax(scores, 1)), post_transform_of(F, scores, post_transform)
    if len(labels) != 2:
        raise OperatorError(f"it has {len(labels)} labels for one row of coefficients, 2 are needed.")
    if post_transform == "PROBIT":
        raise OperatorError("post_transform='PROBIT' with one row of coefficients has no defined result.")
    winner = pick(F, labels, (scores[:, 0] > 0).long())
    if post_transform == "LOGISTIC":
        return winner, F.sigmoid(F.cat([-scores, scores], 1))
    return winner, F.cat([1 - scores, scores], 1)


@op("LinearRegressor", 1, choices={"post_transform": POST_TRANSFORMS}, domain=DOMAIN)
def linear_regressor(
    F: Any,
    X: Any,
    *,
    coefficients: Sequence[float] | None = None,
    intercepts: Sequence[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Any:
    """A single target is transformed by PROBIT only, as in ONNX Runtime."""
    X = rows(X)
    Y = F.nn.functional.linear(
        X, matrix(F, coefficients or (), targets, X), floats(F, intercepts) if intercepts else None
    )
    return Y if targets == 1 and post_transform != "PROBIT" else post_transform_of(F, Y, post_transform)


@op("Scaler", 1, domain=DOMAIN)
def scaler(F: Any, X: Any, *, offset: Sequence[float] | None = None, scale: Sequence[float] | None = None) -> Any:
    X = X if X.dtype == F.float64 else X.float()
    X = X if not offset else X - floats(F, offset)
    return (X if not scale else X * floats(F, scale)).float()


@op("Normalizer", 1, domain=DOMAIN)
def normalizer(F: Any, X: Any, *, norm: str = "MAX") -> Any:
    """Divides each row by its norm; a row of norm 0 stays. MAX is the largest value, not the largest magnitude."""
    X = X if X.dtype == F.float64 else X.float()
    if norm == "MAX":
        size = X.amax(-1, keepdim=True)
    elif norm == "L1":
        size = X.abs().sum(-1, keepdim=True)
    elif norm == "L2":
        size = F.linalg.vector_norm(X, 2, -1, keepdim=True)  # has a gradient at 0
    else:
        raise OperatorError(f"norm={norm!r} is none of MAX, L1, L2.")
    return (X / F.where(size == 0, 1.0, size)).float()


@op("Imputer", 1, domain=DOMAIN)
def imputer(
    F: Any,
    X: Any,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Any:
    """Replaces one value, which may be NaN, by a value, or by a value per column."""
    if X.is_floating_point():
        values, replaced = imputed_value_floats, float(np.float32(replaced_value_float))
    else:
        values, replaced = imputed_value_int64s, replaced_value_int64
    if not values:
        raise OperatorError("its imputed values are missing in the type of its input.")
    if X.ndim > 2:
        raise OperatorError(f"an input of {X.ndim} dimensions, rows or one row of features are needed.")
    missing = X.isnan() if isinstance(replaced, float) and math.isnan(replaced) else F.eq(X, replaced)
    new = floats(F, values) if X.is_floating_point() else F.tensor(list(values), dtype=F.int64)
    return F.where(missing, new.to(X.dtype), X)


@op("Binarizer", 1, domain=DOMAIN)
def binarizer(F: Any, X: Any, *, threshold: float = 0.0) -> Any:
    return F.gt(X, threshold).to(X.dtype)


@op("FeatureVectorizer", 1, domain=DOMAIN)
def feature_vectorizer(F: Any, *X: Any, inputdimensions: Sequence[int] | None = None) -> Any:
    """Concatenates columns; each input is cut, or filled up with zeros, to its entry of `inputdimensions`."""
    parts = [rows(x).flatten(1) for x in X]
    for index, size in enumerate(inputdimensions or ()):
        if (parts[index].shape[1] == size) is not True:
            parts[index] = F.nn.functional.pad(parts[index], (0, size - parts[index].shape[1]))
    return F.cat(parts, 1)


def _values_of_extract(X: Any, Y: Any) -> Any:
    result = np.take(X, Y.astype(np.int64).reshape(-1), -1)
    return result.reshape(1, -1) if X.ndim == 1 else result


@op("ArrayFeatureExtractor", 1, domain=DOMAIN, on_shape_values=_values_of_extract)
def array_feature_extractor(F: Any, X: Any, Y: Any) -> Any:
    """Gathers along the last dimension; a vector gets a first dimension of size 1."""
    result = F.index_select(X, -1, Y.flatten())
    return result.unsqueeze(0) if X.ndim == 1 else result


@op("OneHotEncoder", 1, domain=DOMAIN)
def one_hot_encoder(
    F: Any,
    X: Any,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    zeros: int = 1,
) -> Any:
    """A value that is no category gives zeros; it is an error with `zeros=0`."""
    cats = list(cats_int64s or cats_strings or ())
    if (cats_int64s and cats_strings) or len(set(cats)) < len(cats):
        raise OperatorError("it has numbers and strings as categories, or one twice. List each of one kind once.")
    if isinstance(X, np.ndarray):
        hits = F.from_numpy(np.asarray(X[..., None] == strings(cats_strings or []), dtype=bool))
    else:
        hits = X.long().unsqueeze(-1) == F.tensor(list(cats_int64s or ()), dtype=F.int64)
    if not zeros and not hits.any(-1).all():
        raise OperatorError("a value is none of the categories, which zeros=0 does not permit.")
    return hits.float()


@lru_cache(maxsize=64)
def _positions(keys: tuple[Any, ...]) -> dict[Any, int]:
    """Returns the position of each key; of equal keys the first."""
    return {key: index for index, key in reversed(list(enumerate(keys)))}


def _find(F: Any, X: Any, keys: Any) -> Any:
    """Returns the position of each element of `X` in `keys`, strings or a tensor; `len(keys)` where it is missing.

    Numbers are looked up in the sorted keys; NaN equals NaN.
    """
    if isinstance(keys, (list, np.ndarray)):
        table = _positions(tuple(keys))
        found = [table.get(item, len(keys)) for item in X.flat]
        return F.tensor(found, dtype=F.int64).reshape(X.shape)
    keys = keys.to(X.dtype)
    order = F.argsort(keys, stable=True)
    nans = keys[order].isnan()
    last = max(len(keys) - int(nans.sum()), 1)  # NaN is sorted behind all keys, where a binary search would fail
    ordered = keys[order][:last]
    slot = F.searchsorted(ordered, X).clamp(max=last - 1)
    index = F.where(_at(ordered, slot) == X, _at(order, slot), len(keys))
    return F.where(X.isnan(), int(order[nans][0]), index) if nans.any() else index


def _encode(F: Any, X: Any, keys: Any, values: Any, default: Any) -> Any:
    """Returns the value at the key that equals each element of `X`, else `default`."""
    if len(keys) != len(values):
        raise OperatorError(f"it has {len(keys)} keys for {len(values)} values.")
    if isinstance(values, (list, np.ndarray)):
        return pick(F, [*values, default], _find(F, X, keys))
    return pick(F, F.cat([values, F.tensor([default], dtype=values.dtype)]), _find(F, X, keys))


def _given(F: Any, what: str, **options: Any) -> Any:
    """Returns the attribute that is given, of several: strings as a list, numbers as a tensor, a tensor flattened."""
    given = {name: value for name, value in options.items() if value is not None and len(value)}
    if len(given) != 1:
        raise OperatorError(f"its {what} are given by {len(given)} attributes. Give it one of them.")
    ((kind, value),) = given.items()
    if kind == "tensor":
        return value.reshape(-1)
    if kind == "strings":
        return list(value)
    return F.tensor(list(value), dtype=F.float32 if kind == "floats" else F.int64)


@op("LabelEncoder", 4, domain=DOMAIN)
def label_encoder(
    F: Any,
    X: Any,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Any = None,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Any = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Any = None,
) -> Any:
    keys = _given(F, "keys", floats=keys_floats, int64s=keys_int64s, strings=keys_strings, tensor=keys_tensor)
    values = _given(
        F, "values", floats=values_floats, int64s=values_int64s, strings=values_strings, tensor=values_tensor
    )
    if default_tensor is not None:
        default = default_tensor.reshape(-1)[0]
        default = default if isinstance(default, str) else default.item()
    elif isinstance(values, (list, np.ndarray)):
        default = default_string
    else:
        default = default_float if values.dtype.is_floating_point else default_int64
    return _encode(F, X, keys, values, default)


revision(label_encoder, 2, without=["default_tensor", "keys_tensor", "values_tensor"])


def _between(F: Any, X: Any, ints: Sequence[int], names: Sequence[str], default_int64: int, default_string: str) -> Any:
    """Returns the integers of strings `X`, or the strings of integers `X`."""
    numbers = F.tensor(list(ints), dtype=F.int64)
    if isinstance(X, np.ndarray):
        return _encode(F, X, list(names), numbers, default_int64)
    return _encode(F, X, numbers, list(names), default_string)


@op("LabelEncoder", 1, domain=DOMAIN)
def label_encoder_1(
    F: Any,
    X: Any,
    *,
    classes_strings: Sequence[str] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:
    names = classes_strings or []
    return _between(F, X, range(len(names)), names, default_int64, default_string)


@op("CategoryMapper", 1, domain=DOMAIN)
def category_mapper(
    F: Any,
    X: Any,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:
    return _between(F, X, cats_int64s or (), cats_strings or (), default_int64, default_string)


def _column(F: Any, values: Sequence[Any], dtype: Any) -> Any:
    """Returns `values` as one row: strings as an object array, numbers as a tensor of `dtype`."""
    if dtype is None:
        return strings([str(value) for value in values]).reshape(1, -1)
    return F.tensor([values], dtype=dtype)


@op("DictVectorizer", 1, domain=DOMAIN, call="opaque")
def dict_vectorizer(
    F: Any,
    X: Any,
    *,
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
    _output_types: Any = None,
) -> Any:
    """The values of the map `X` in the order of the vocabulary, `(1, keys)`; 0 or `""` for a missing key."""
    keys = list(string_vocabulary or int64_vocabulary or ())
    text = any(isinstance(value, str) for value in X.values())
    dtypes = {"INT64": F.int64, "DOUBLE": F.float64}
    dtype = dtypes.get((_output_types or ["FLOAT"])[0], F.float32)
    return _column(F, [X.get(key, "" if text else 0) for key in keys], None if text else dtype)


@op(
    "CastMap",
    1,
    choices={"cast_to": ("TO_FLOAT", "TO_STRING", "TO_INT64"), "map_form": ("DENSE", "SPARSE")},
    domain=DOMAIN,
    call="opaque",
)
def cast_map(F: Any, X: Any, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Any:
    """DENSE: the values in the order of their keys; SPARSE: each value at the position of its key, below `max_map`."""
    kinds = {"TO_FLOAT": (float, F.float32), "TO_INT64": (int, F.int64), "TO_STRING": (str, None)}
    if cast_to not in kinds:
        raise OperatorError(f"cast_to={cast_to!r} is none of {', '.join(kinds)}.")
    convert, dtype = kinds[cast_to]
    if map_form == "DENSE":
        return _column(F, [convert(X[key]) for key in sorted(X)], dtype)
    if any(not 0 <= key < max_map for key in X):
        raise OperatorError(f"its map has keys outside [0, {max_map}).")
    missing = convert(0) if dtype is not None else "0"
    return _column(F, [convert(X[key]) if key in X else missing for key in range(max_map)], dtype)


@op("ZipMap", 1, domain=DOMAIN, call="opaque")
def zip_map(
    F: Any,
    X: Any,
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> Any:
    """Returns a list with a dict for each row: label → probability."""
    labels = list(classlabels_strings or classlabels_int64s or ())
    matrix = X.reshape([1, -1]) if X.ndim == 1 else X
    if len(labels) != matrix.shape[1]:
        raise OperatorError(f"it has {len(labels)} labels for {matrix.shape[1]} columns.")
    return [dict(zip(labels, row, strict=True)) for row in matrix.tolist()]
