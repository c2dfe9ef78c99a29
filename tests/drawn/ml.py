"""Calls of the operators of classical machine learning, ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.drawn.draw import F32, F64, Call, Draw, call

ML = "ai.onnx.ml"
_POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_DATA = frozenset({0})


def ml(op: str, since: int, inputs: list[Any], attributes: dict[str, Any], **options: Any) -> Call:
    """Returns a call of an operator of ai.onnx.ml."""
    return Call(op, since, inputs, attributes, domain=ML, **{"open_": _DATA, "rtol": 1e-3, **options})


def _labels(d: Draw, count: int, integers: str = "classlabels_ints") -> dict[str, Any]:
    """Returns the labels of classes; `integers` is the attribute of integers."""
    if d.flag():
        return {"classlabels_strings": [f"class {i}" for i in range(count)]}
    return {integers: [3 * i - 1 for i in range(count)]}


def _numbers(d: Draw, *shape: int) -> list[float]:
    return [float(number) for number in d.array(shape, F32, -2, 2).ravel()]


def _post(d: Draw) -> dict[str, Any]:
    """Returns the transformation of scores; PROBIT asks for scores between 0 and 1."""
    return {"post_transform": d.one(_POST[:4])} if d.flag() else {}


def _tree(d: Draw, features: int, depth: int) -> list[dict[str, Any]]:
    """Returns the nodes of a random tree; leaves have no mode but `LEAF`."""
    nodes: list[dict[str, Any]] = []

    def grow(depth: int) -> int:
        node: dict[str, Any] = {"id": len(nodes), "mode": "LEAF", "feature": 0, "value": 0.0, "yes": 0, "no": 0}
        nodes.append(node)
        if depth and d.mostly(4):
            modes = ("BRANCH_LEQ",) * 4 + ("BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
            node |= {"mode": d.one(modes), "feature": d.int(0, features - 1), "value": d.one((-1.0, 0.0, 0.5, 1.0))}
            node["yes"], node["no"] = grow(depth - 1), grow(depth - 1)
        return int(node["id"])

    grow(depth)
    return nodes


def _trees(d: Draw, features: int) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Returns the attributes of the nodes of some trees, and the leaves by tree and node."""
    forest = [_tree(d, features, d.int(0, 3)) for _ in range(d.int(1, 3))]
    nodes = [(tree, node) for tree, found in enumerate(forest) for node in found]
    given = {
        "nodes_treeids": [tree for tree, _ in nodes],
        "nodes_nodeids": [node["id"] for _, node in nodes],
        "nodes_featureids": [node["feature"] for _, node in nodes],
        "nodes_modes": [node["mode"] for _, node in nodes],
        "nodes_values": [node["value"] for _, node in nodes],
        "nodes_truenodeids": [node["yes"] for _, node in nodes],
        "nodes_falsenodeids": [node["no"] for _, node in nodes],
    }
    if d.flag():
        given["nodes_missing_value_tracks_true"] = [d.int(0, 1) for _ in nodes]
    return given, [(tree, node["id"]) for tree, node in nodes if node["mode"] == "LEAF"]


def _samples(d: Draw, features: int, special: bool = True) -> np.ndarray:
    x = d.array([d.int(1, 5), features], d.one((F32, F32, F64)), -2, 2)
    if d.flag():
        x = np.round(x)
    if special and d.flag(4):
        x[0, 0] = np.nan
    return x


@call("TreeEnsembleRegressor", domain=ML)
def _regressor(d: Draw) -> Call:
    features, targets = d.int(1, 3), d.int(1, 3)
    given, leaves = _trees(d, features)
    weights = [(*leaf, target) for leaf in leaves for target in range(targets) if d.mostly(4) or target == 0]
    given |= {
        "n_targets": targets,
        "target_treeids": [tree for tree, _, _ in weights],
        "target_nodeids": [node for _, node, _ in weights],
        "target_ids": [target for _, _, target in weights],
        "target_weights": _numbers(d, len(weights)),
        **d.some(aggregate_function=d.one(("SUM", "AVERAGE", "MIN", "MAX")), base_values=_numbers(d, targets)),
        **_post(d),
    }
    return ml("TreeEnsembleRegressor", 3, [_samples(d, features)], given)


@call("TreeEnsembleClassifier", domain=ML)
def _classifier(d: Draw) -> Call:
    features, classes = d.int(1, 3), d.int(2, 4)
    given, leaves = _trees(d, features)
    is_binary = classes == 2 and d.flag()
    ids = [1] if is_binary else range(classes)
    weights = [(*leaf, one) for leaf in leaves for one in ids]
    votes = _numbers(d, len(weights))
    given |= {
        "class_treeids": [tree for tree, _, _ in weights],
        "class_nodeids": [node for _, node, _ in weights],
        "class_ids": [one for _, _, one in weights],
        "class_weights": list(map(abs, votes)) if d.flag() else votes,
        **_labels(d, classes, "classlabels_int64s"),
        **_post(d),
    }
    if d.flag(3):
        given["base_values"] = _numbers(d, classes)
    return ml("TreeEnsembleClassifier", 3, [_samples(d, features)], given, outputs=2)


@call("LinearClassifier", "LinearRegressor", domain=ML)
def _linear(d: Draw, name: str) -> Call:
    features, count = d.int(1, 4), d.int(1, 4)
    given: dict[str, Any] = {"coefficients": _numbers(d, count * features), **_post(d)}
    if d.flag() or name == "LinearClassifier":
        given["intercepts"] = _numbers(d, count)
    x = _samples(d, features, special=False).astype(d.one((F32, F32, np.int64)))
    if name == "LinearRegressor":
        return ml(name, 1, [x.astype(F32)], {**given, "targets": count})
    if d.flag():
        given["multi_class"] = d.int(0, 1)
    return ml(name, 1, [x], {**given, **_labels(d, max(count, 2))}, outputs=2)


@call("SVMRegressor", "SVMClassifier", domain=ML)
def _svm(d: Draw, name: str) -> Call:
    features, vectors = d.int(1, 3), d.int(2, 5)
    given: dict[str, Any] = {
        "kernel_type": d.one(("LINEAR", "POLY", "RBF", "SIGMOID")),
        "kernel_params": [0.3, 0.5, 2.0],
        "support_vectors": _numbers(d, vectors * features),
    }
    x = _samples(d, features, special=False).astype(F32)
    if name == "SVMRegressor":
        given |= {"coefficients": _numbers(d, vectors), "n_supports": vectors, "rho": _numbers(d, 1)}
        return ml(name, 1, [x], given | d.some(one_class=d.int(0, 1)))
    classes = d.int(2, 3)
    pairs = classes * (classes - 1) // 2
    first = d.int(1, vectors - 1)
    second = d.int(1, vectors - first) if classes == 3 else vectors - first
    per_class = [first, second, vectors - first - second][:classes]
    given |= {
        "coefficients": _numbers(d, (classes - 1) * vectors),
        "rho": _numbers(d, pairs),
        "vectors_per_class": per_class,
        **_labels(d, classes),
    }
    if d.flag():
        given |= {"prob_a": _numbers(d, pairs), "prob_b": _numbers(d, pairs)}
    return ml(name, 1, [x], given, outputs=2)


@call("Normalizer", "Scaler", "Binarizer", "Imputer", "OneHotEncoder", "ArrayFeatureExtractor", domain=ML)
def _feature(d: Draw, name: str) -> Call:
    features = d.int(1, 4)
    x = _samples(d, features, special=name == "Imputer").astype(F32)
    if name == "Normalizer":
        return ml(name, 1, [x], d.some(norm=d.one(("MAX", "L1", "L2"))))
    if name == "Scaler":
        count = d.one((1, features))
        return ml(name, 1, [x], {"offset": _numbers(d, count), "scale": _numbers(d, count)})
    if name == "Binarizer":
        return ml(name, 1, [x], d.some(threshold=0.5))
    if name == "Imputer":
        replaced = d.one((float("nan"), 0.0, 1.0))
        values = _numbers(d, d.one((1, features)))
        return ml(name, 1, [x], {"imputed_value_floats": values, "replaced_value_float": replaced})
    if name == "OneHotEncoder":
        x = d.np.integers(0, 4, d.filled(1, 2, (1, 2, 3))).astype(d.one((np.int64, F32)))
        return ml(name, 1, [x], {"cats_int64s": [0, 1, 2, 3], **d.some(zeros=1)})
    positions = d.np.integers(0, features, [1, d.int(1, 4)]).astype(np.int64)
    return ml(name, 1, [x, positions], {}, static=frozenset({1}))


@call("LabelEncoder", domain=ML)
def _encoder(d: Draw) -> Call:
    x = d.np.integers(-1, 4, d.filled(1, 2, (1, 2, 3)))
    kind = d.r.randrange(3)
    if kind == 0:
        given: dict[str, Any] = {"keys_int64s": [0, 1, 2], "values_floats": [0.5, -1.0, 3.0]}
        given |= d.some(default_float=7.0)
    elif kind == 1:
        given = {"keys_floats": [0.0, 1.0, 2.0], "values_int64s": [5, 6, 7], **d.some(default_int64=-9)}
    else:
        given = {"keys_int64s": [0, 1, 2], "values_int64s": [5, 6, 7], **d.some(default_int64=-9)}
    return ml("LabelEncoder", 2, [x.astype(F32 if kind == 1 else np.int64)], given)
