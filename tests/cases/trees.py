"""Cases of `onnx2nn.ops.trees`: full trees of random splits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import case, f32, of

ML = "ai.onnx.ml"
RNG = np.random.default_rng(11)
LEQ = ("BRANCH_LEQ",)
ALL = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def rounded(rng: np.random.Generator) -> np.ndarray:
    """Returns numbers, many of which equal a split and some of which are NaN."""
    values = np.round(rng.standard_normal((30, 4)), 1).astype(np.float32)
    return np.where(rng.random(values.shape) < 0.1, np.float32(np.nan), values)


def forest(vote: str, targets: list[int], *, trees: int = 5, depth: int = 3, modes: Any = LEQ, sign: int = 0) -> dict:
    """Returns the attributes of full trees.

    Args:
        vote: prefix of the votes' attributes, `class` or `target`.
        targets: each tree votes for one of them in turn; all leaves for all where there is one tree.
        trees: how many.
        depth: levels of nodes above the leaves.
        modes: chosen at random.
        sign: 1 for weights that are not negative.
    """
    nodes: dict[str, list] = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes")}
    nodes |= {name: [] for name in ("truenodeids", "falsenodeids", "missing_value_tracks_true")}
    votes: dict[str, list] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    inner = 2**depth - 1
    for tree, node in np.ndindex(trees, 2 * inner + 1):
        leaf = node >= inner
        values = (tree, node, int(RNG.integers(4)), round(float(RNG.standard_normal()), 1), str(RNG.choice(modes)))
        values += (2 * node + 1, 2 * node + 2, int(RNG.integers(2)))
        for name, value in zip(nodes, values, strict=True):
            nodes[name].append(value)
        if leaf:
            nodes["modes"][-1], nodes["truenodeids"][-1], nodes["falsenodeids"][-1] = "LEAF", 0, 0
            for target in targets if trees == 1 else [targets[tree % len(targets)]]:
                weight = round(float(RNG.standard_normal()), 2)
                for name, value in zip(votes, (tree, node, target, abs(weight) if sign else weight), strict=True):
                    votes[name].append(value)
    return {f"nodes_{k}": v for k, v in nodes.items()} | {f"{vote}_{k}": v for k, v in votes.items()}


def classify(note: str, *inputs: Any, **attributes: Any) -> Any:
    return case("TreeEnsembleClassifier", *inputs, **attributes, domain=ML, outputs=2, note=note)


def regress(note: str, *inputs: Any, n_targets: int = 1, **attributes: Any) -> Any:
    """ONNX Runtime wants `n_targets`, which has no default in the standard."""
    return case("TreeEnsembleRegressor", *inputs, n_targets=n_targets, **attributes, domain=ML, note=note)


def as_tensors(attributes: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes with their numbers as float64 tensors, as revision 3 has them."""
    named = {name: value for name, value in attributes.items() if name.endswith(("values", "weights"))}
    rest = {name: value for name, value in attributes.items() if name not in named}
    return rest | {f"{name}_as_tensor": np.array(value, np.float64) for name, value in named.items()}


def repeated(attributes: dict[str, Any], vote: str, step: float) -> dict[str, Any]:
    """Returns the attributes with each vote three times, the later ones with larger weights.

    skl2onnx writes the numbers of leaves once for each class (its options decision_leaf and decision_path).
    """
    names = [name for name in attributes if name.startswith(f"{vote}_")]
    thrice = {name: [value for value in attributes[name] for _ in range(3)] for name in names}
    weights = thrice[f"{vote}_weights"]
    thrice[f"{vote}_weights"] = [weight + step * (i % 3) for i, weight in enumerate(weights)]
    return attributes | thrice


def ballot(ids: list[list[int]], trees: int = 20) -> dict[str, Any]:
    """Returns a forest of one split on each of `trees` features, whose leaves vote for one class of equal weight.

    Args:
        ids: the class of the true and of the false leaf, of the trees in turn; -1 for a leaf of no vote.
        trees: how many.
    """
    nodes = {"treeids": np.repeat(range(trees), 3), "featureids": np.repeat(range(trees), 3)}
    nodes |= {name: np.tile(row, trees) for name, row in (("nodeids", [0, 1, 2]), ("truenodeids", [1, 0, 0]))}
    nodes |= {"falsenodeids": np.tile([2, 0, 0], trees), "values": np.zeros(3 * trees)}
    leaves = [(tree, 1 + side, each) for tree in range(trees) for side, each in enumerate(ids[tree % len(ids)])]
    votes = [leaf for leaf in leaves if leaf[2] >= 0]
    return {
        **{f"nodes_{name}": values.tolist() for name, values in nodes.items()},
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * trees,
        **{f"class_{name}": [vote[at] for vote in votes] for at, name in enumerate(("treeids", "nodeids", "ids"))},
        "class_weights": [1 / trees] * len(votes),
    }


def numbered(**attributes: Any) -> dict[str, Any]:
    """Returns one tree of revision 5: three nodes, four leaves."""
    return {
        "tree_roots": [0],
        "nodes_featureids": [0, 2, 1],
        "nodes_splits": np.array([0.1, -0.3, 0.4], np.float32),
        "nodes_modes": np.array([0, 1, 3], np.uint8),
        "nodes_truenodeids": [1, 0, 2],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 3],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": np.array([0.5, -1.5, 2.25, 0.75], np.float32),
        "n_targets": 2,
        **attributes,
    }


CLASSES = [0, 1, 2]
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
CASES = [
    *(
        classify(f"three {t}", f32(30, 4), **forest("class", CLASSES), classlabels_int64s=[5, 3, 9], post_transform=t)
        for t in TRANSFORMS
    ),
    *(
        classify(f"{note} {t}", f32(30, 4), **forest("class", ids, sign=sign), classlabels_strings=["n", "y"], **extra, post_transform=t)
        for note, ids, sign, extra in (
            ("votes for the first", [0], 0, {}),
            ("positive votes for the first", [0], 1, {"base_values": [0.1]}),
            ("votes for the second", [1], 0, {"base_values": [0.2, 0.3]}),
            ("votes for both", [0, 1], 0, {}),
        )
        for t in TRANSFORMS[:3]
    ),
    classify("base", f32(30, 4), **forest("class", CLASSES), base_values=[0.3, -0.2, 0.1], classlabels_int64s=[5, 3, 9]),
    classify("every leaf all", f32(30, 4), **forest("class", CLASSES, trees=1), classlabels_strings=["a", "b", "c"]),
    classify("a class without votes", f32(30, 4), **forest("class", [0, 2]), classlabels_int64s=[5, 3, 9]),
    classify("one label", f32(30, 4), **forest("class", [0]), classlabels_int64s=[1]),
    classify("one label, votes repeated", f32(30, 4), **repeated(forest("class", [0]), "class", 0.5), classlabels_int64s=[1]),
    classify("votes repeated", f32(30, 4), **repeated(forest("class", CLASSES), "class", 0.5), classlabels_int64s=[5, 3, 9]),
    classify("targets of unequal trees", f32(30, 4), **forest("class", [0, 1, 2, 0]), classlabels_int64s=[5, 3, 9]),
    classify("ties of two", f32(200, 20), **ballot([[0, -1]]), classlabels_int64s=[5, 3]),
    classify("ties of three", f32(200, 20), **ballot([[0, 1], [1, 2], [2, 0]]), classlabels_int64s=[5, 3, 9]),
    classify("ties of float64", of("float64", 200, 20), **ballot([[0, 1], [1, 2], [2, 0]]), classlabels_int64s=[5, 3, 9]),
    classify("float64", of("float64", 30, 4), **forest("class", CLASSES), classlabels_int64s=[5, 3, 9]),
    classify("int64", of("int64", 30, 4), **forest("class", CLASSES), classlabels_int64s=[5, 3, 9]),
    classify("modes", rounded, **forest("class", CLASSES, modes=ALL), classlabels_int64s=[5, 3, 9]),
    classify("tensors", of("float64", 30, 4), **as_tensors(forest("class", CLASSES)), classlabels_int64s=[5, 3, 9], since=3),
    *(regress(f"modes {mode}", rounded, **forest("target", [0], modes=(mode,))) for mode in ALL),
    regress("modes mixed", rounded, **forest("target", [0], modes=ALL)),
    *(
        regress(f"votes repeated {f}", f32(30, 4), **repeated(forest("target", [0]), "target", 0.5), aggregate_function=f)
        for f in ("SUM", "AVERAGE", "MIN", "MAX")
    ),
    regress("leaf alone", f32(5, 4), **forest("target", [0], depth=0)),
    regress("deep", f32(30, 4), **forest("target", [0], depth=7), base_values=[0.5]),
    regress("logistic", f32(30, 4), **forest("target", [0]), post_transform="LOGISTIC"),
    *(
        regress(f"{f} {t}", f32(30, 4), **forest("target", ids), n_targets=3, aggregate_function=f, base_values=[0.5, 1.5, -2.0], post_transform=t)
        for f in ("SUM", "AVERAGE", "MIN", "MAX")
        for ids, t in ((CLASSES, "NONE"), ([0, 2], "SOFTMAX"))
    ),
    regress("tensors", of("float64", 30, 4), **as_tensors(forest("target", CLASSES)), n_targets=3, since=3),
    *(case("TreeEnsemble", f32(9, 3), **numbered(aggregate_function=f, tree_roots=[0, 1]), domain=ML, note=f"aggregate {f}") for f in range(4)),
    case("TreeEnsemble", f32(9, 3), **numbered(post_transform=3), domain=ML, note="softmax zero"),
    *(
        case("TreeEnsemble", np.zeros((1, 3), np.float32), **numbered(post_transform=t), domain=ML, note=f"transform {t}", expected=[np.array([expected], np.float32)], why="ONNX Runtime 1.31 takes 1 for LOGISTIC and 2 for SOFTMAX, the standard the other way round; the reference ignores it")
        for t, expected in ((1, [0.8175745, 0.18242552]), (2, [0.5, 0.18242552]))
    ),
    case(
        "TreeEnsemble",
        lambda rng: rng.integers(-3, 4, (30, 3)).astype(np.float32),
        **numbered(nodes_modes=np.array([6, 0, 6], np.uint8), membership_values=np.array([1, -2, 3, np.nan, 0, 2], np.float32)),
        domain=ML,
        note="members",
    ),
]  # fmt: skip
