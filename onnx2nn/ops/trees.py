"""ai.onnx.ml: ensembles of decision trees; all rows descend all trees at once, one level at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.ml import DOMAIN, POST_TRANSFORMS, labels_of, pick, post_transform_of, rows
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _LEAF = range(len(_MODES))
_COMPARISONS = {_LEQ: "le", _LT: "lt", _GTE: "ge", _GT: "gt", _EQ: "eq", _NEQ: "ne"}


_MANY = 1 << 16
"""Targets of trees that few votes may have; each node has a row with all of them."""


@dataclass
class Forest:
    """The trees as arrays with one entry per node; a leaf is its own child.

    Attributes:
        roots: the root of each tree, int64 `(trees,)`.
        features: the column that a node compares, int64 `(nodes,)`.
        splits: the number that it is compared with, `(nodes,)` of the data's dtype.
        modes: the kind of comparison, a position in `_MODES`, `(nodes,)`.
        missing: whether NaN takes the true branch, bool `(nodes,)`.
        children: the false and the true child of each node, int64 `(nodes, 2)`.
        votes: leaf, target and weight of every vote: `(votes,)` each. Of several votes of a leaf for a single target
            the first counts, as in ONNX Runtime.
        targets: the number of targets.
    """

    roots: np.ndarray[Any, Any]
    features: np.ndarray[Any, Any]
    splits: np.ndarray[Any, Any]
    modes: np.ndarray[Any, Any]
    missing: np.ndarray[Any, Any]
    children: np.ndarray[Any, Any]
    votes: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]
    targets: int

    def __post_init__(self) -> None:
        lengths = {len(self.features), len(self.splits), len(self.modes), len(self.missing), len(self.children)}
        leaves, targets, weights = self.votes
        if len(lengths) != 1 or not len(leaves) == len(targets) == len(weights):
            raise OperatorError("the attributes of its nodes or leaves differ in length.")
        nodes, votes = len(self.features), len(leaves)
        if self.targets > max(_MANY, votes) or nodes * self.targets > max(_MANY << 10, 256 * (nodes + votes)):
            raise OperatorError(f"it has {self.targets} targets for {votes} votes in {nodes} nodes.")
        if targets.size and not 0 <= targets.min() <= targets.max() < self.targets:
            raise OperatorError(f"a leaf votes for a target outside of [0, {self.targets}).")
        for index in (self.children, self.roots, leaves):
            if index.size and not 0 <= index.min() <= index.max() < len(self.features):
                raise OperatorError("a child, root or leaf refers to a node that does not exist.")
        if self.targets == 1:  # skl2onnx writes the number of a leaf once for each class
            first = np.unique(leaves, return_index=True)[1]
            self.votes = (leaves[first], targets[first], weights[first])

    def levels(self) -> list[np.ndarray[Any, Any]]:
        """Returns the nodes that are no leaves, level by level.

        Raises:
            OperatorError: a node is its own ancestor.
        """
        levels: list[np.ndarray[Any, Any]] = []
        level = np.unique(self.roots)
        while (level := level[self.modes[level] != _LEAF]).size:
            if len(levels) > len(self.features):
                raise OperatorError("a node of its trees is its own ancestor.")
            levels.append(level)
            level = np.unique(self.children[level])
        return levels


def _values(values: Any, dtype: str) -> np.ndarray[Any, Any]:
    """Returns an attribute's numbers, a list of floats or a tensor, as an array of `dtype`."""
    if hasattr(values, "numpy"):
        return np.asarray(values.numpy()).astype(dtype)
    return np.asarray(list(values or ()), np.float32).astype(dtype)


def _integers(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(list(values or ()), np.int64)


def _codes(modes: Sequence[Any]) -> np.ndarray[Any, Any]:
    unknown = set(modes) - set(_MODES)
    if unknown:
        raise OperatorError(f"the mode {unknown.pop()!r} of a node is none of {', '.join(_MODES)}.")
    codes = {mode: code for code, mode in enumerate(_MODES)}
    return np.asarray([codes[mode] for mode in modes], np.int64)


def _find_nodes(known: tuple[Any, Any], trees: Any, nodes: Any) -> np.ndarray[Any, Any]:
    """Returns the positions of the pairs of tree and node id in the `known` pairs, the last ones; -1 where missing."""
    if len(known[0]) != len(known[1]) or len(trees) != len(nodes):
        raise OperatorError("the attributes of its nodes differ in length.")
    tree, node = (np.concatenate(pair) for pair in zip(known, (trees, nodes), strict=True))
    own, wanted = np.split(_pairs(tree, node), [len(known[0])])
    order = np.argsort(own, kind="stable")
    places = np.searchsorted(own, wanted, side="right", sorter=order) - 1
    found = np.append(order, -1)[places]  # the last of those that are equal, or a smaller one
    return np.where(np.append(own, -1)[found] == wanted, found, -1)


def _pairs(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a number for each pair of integers, from 0 on, that equal pairs alone share."""
    if not len(a):
        return a
    spans = [int(ids.max()) - int(ids.min()) + 1 for ids in (a, b)]
    if spans[0] * spans[1] < 1 << 62:
        a, b = a - a.min(), b - b.min()
    else:  # their ranks, of which there are no more than pairs
        a, b = (np.unique(ids, return_inverse=True)[1].astype(np.int64) for ids in (a, b))
    return a * (b.max() + 1) + b


def _forest(
    dtype: str, nodes: dict[str, Any], votes: tuple[Any, Any, Any, Any], targets: int, weights_dtype: str
) -> Forest:
    """Returns the forest of TreeEnsembleRegressor and TreeEnsembleClassifier, where nodes have a tree id and a node id.

    Args:
        dtype: the data's dtype.
        nodes: the attributes `nodes_*`, by their names without the prefix.
        votes: tree id, node id, target and weight of each vote.
        targets: the number of targets.
        weights_dtype: the result's dtype.
    """
    trees, ids = _integers(nodes["treeids"]), _integers(nodes["nodeids"])
    modes = _codes(nodes["modes"] or ())
    if not len(trees) == len(ids) == len(modes):
        raise OperatorError("the attributes of its nodes differ in length.")
    inner = modes != _LEAF
    children = np.repeat(np.arange(len(ids))[:, None], 2, 1)
    for side, name in enumerate(("falsenodeids", "truenodeids")):
        children[inner, side] = _find_nodes((trees, ids), trees[inner], _integers(nodes[name])[inner])
    missing = _integers(nodes["missing_value_tracks_true"]).astype(bool)
    vote_trees, vote_nodes, vote_targets = map(_integers, votes[:3])
    return Forest(
        np.sort(np.unique(trees, return_index=True)[1]),  # a tree's root is its first node
        np.where(inner, _integers(nodes["featureids"]), 0),
        _values(nodes["values"], dtype),
        modes,
        missing if len(missing) else np.zeros(len(ids), bool),
        children,
        (_find_nodes((trees, ids), vote_trees, vote_nodes), vote_targets, _values(votes[3], weights_dtype)),
        targets,
    )


def _compare(F: Any, x: Any, split: Any, mode: Any, used: Sequence[int]) -> Any:
    """Returns whether each node's condition holds; `used`: the modes that occur."""
    result = getattr(F, _COMPARISONS[used[0]])(x, split)
    for code in used[1:]:
        result = F.where(mode == code, getattr(F, _COMPARISONS[code])(x, split), result)
    return result


def _leaves(F: Any, forest: Forest, X: Any) -> Any:
    """Returns the leaf that each row of `X` reaches in each tree, `(N, trees)`.

    Behind the roots all rows and trees are one dimension: torch looks up a vector in a third of the time.
    """
    # Every node has two entries, 2 * n and 2 * n + 1, so that the entry plus the condition is the child's position.
    at, trees = F.from_numpy(forest.roots * 2), len(forest.roots)
    features, splits = F.from_numpy(forest.features.repeat(2)), F.from_numpy(forest.splits.repeat(2))
    modes, missing = F.from_numpy(forest.modes.repeat(2)), F.from_numpy(forest.missing.repeat(2))
    children = F.from_numpy(forest.children.reshape(-1) * 2)
    levels = forest.levels()
    for depth, level in enumerate(levels):
        column = F.index_select(features, 0, at)
        x = X.gather(1, column.reshape(-1, trees)).reshape(-1) if depth else X[:, column]
        used = sorted(set(forest.modes[level].tolist()))
        mode = F.index_select(modes, 0, at) if len(used) > 1 else None
        condition = _compare(F, x, F.index_select(splits, 0, at), mode, used)
        if forest.missing[level].any():
            condition = condition | (F.index_select(missing, 0, at) & x.isnan())
        if depth == len(levels) - 1:
            children = F.from_numpy(forest.children.reshape(-1))
        at = F.index_select(children, 0, (at + condition).reshape(-1))
    if levels:
        return at.reshape(-1, trees)
    return F.broadcast_to(F.from_numpy(forest.roots), (X.shape[0], trees))


def _leaves_of(forest: Forest, root: int) -> np.ndarray[Any, Any]:
    """Returns the leaves below a node, one that is below several of its children more than once."""
    reached, level = [], np.array([root])
    while level.size:
        leaf = forest.modes[level] == _LEAF
        reached.append(level[leaf])
        level = forest.children[level[~leaf]].reshape(-1)
        level = level if level.size <= len(forest.modes) else np.unique(level)
    return np.concatenate(reached)


def _dense_votes(forest: Forest) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the weight of each node's votes for each target, `(nodes, targets)`, and whether it has votes for it."""
    leaves, targets, weights = forest.votes
    dense = np.zeros((len(forest.features), forest.targets), weights.dtype)
    given = np.zeros(dense.shape, bool)
    np.add.at(dense, (leaves, targets), weights)
    given[leaves, targets] = True
    return dense, given


def _voted(F: Any, forest: Forest, at: Any) -> list[Any]:
    """Returns for each target whether the leaves `at` have votes for it: a bool, or a tensor `(N,)`."""
    _, given = _dense_votes(forest)
    always = np.any([given[_leaves_of(forest, root)].all(0) for root in forest.roots], 0)
    voted: list[Any] = [bool(flag) for flag in always]
    for target in np.flatnonzero(given.any(0) & ~always).tolist():
        voted[target] = F.from_numpy(np.ascontiguousarray(given[:, target]))[(at,)].any(-1)
    return voted


def _counts(F: Any, scores: Any, voted: list[Any]) -> list[Any]:
    """Returns each of `_voted` as 0 or 1 of the scores' type, `(N,)`."""
    return [F.zeros_like(scores[:, 0]) + (int(flag) if isinstance(flag, bool) else flag) for flag in voted]


def _with_base(F: Any, forest: Forest, at: Any, scores: Any, base: np.ndarray[Any, Any]) -> Any:
    """Returns the scores `(N, targets)` plus base values; a target without votes stays 0, as in ONNX Runtime."""
    if not base.size:
        return scores
    voted = _voted(F, forest, at)
    if any(not isinstance(flag, bool) for flag in voted):
        flags = F.stack(_counts(F, scores, voted), 1)
        return scores + flags * F.from_numpy(base)
    return scores + F.from_numpy(base * np.asarray(voted, base.dtype))


def _target_of_trees(forest: Forest, given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Returns the target that each tree votes for, `(trees,)`; None where a tree votes for several or none."""
    targets = [np.flatnonzero(given[_leaves_of(forest, root)].any(0)) for root in forest.roots]
    return None if any(len(found) != 1 for found in targets) else np.concatenate(targets)


def _trees_of_targets(target_of: np.ndarray[Any, Any], targets: int) -> np.ndarray[Any, Any]:
    """Returns the trees that vote for each target, `(targets, most)`; behind them the number of trees."""
    trees = [np.flatnonzero(target_of == target) for target in range(targets)]
    table = np.full((targets, max(map(len, trees))), len(target_of))
    for row, found in zip(table, trees, strict=True):
        row[: len(found)] = found
    return table


def _sums(F: Any, forest: Forest, at: Any) -> Any:
    """Returns the sum of the votes of the leaves `at` for each target: `(N, targets)`.

    The trees are added one by one in the order of the file, as in ONNX Runtime: half of a forest's trees against the
    other half is a tie that the rounding decides. An embedding_bag does so in one pass.
    """
    bag = F.nn.functional.embedding_bag
    weights, given = _dense_votes(forest)
    target_of = _target_of_trees(forest, given) if forest.targets > 1 else None
    if target_of is None:
        return bag(at, F.from_numpy(weights), mode="sum")
    # Each tree votes for one target, as in boosting: one weight a node, instead of a row of zeros around it.
    votes, trees = weights.sum(1), _trees_of_targets(target_of, forest.targets)
    if trees.max() == len(target_of):  # one more leaf, which votes 0, fills the rows of targets with fewer trees
        at, votes = F.nn.functional.pad(at, (0, 1), value=len(votes)), np.append(votes, votes.dtype.type(0))
    leaves = F.index_select(at, 1, F.from_numpy(trees.reshape(-1))).reshape(-1, trees.shape[1])
    return bag(leaves, F.from_numpy(votes[:, None]), mode="sum").reshape(-1, forest.targets)


def _extremes(F: Any, forest: Forest, at: Any, smallest: bool) -> Any:
    """Returns the smallest or largest vote of the leaves `at` for each target, 0 without votes: `(N, targets)`."""
    leaves, targets, weights = forest.votes
    bound = np.inf if smallest else -np.inf
    dense = np.full((len(forest.features), forest.targets), bound, weights.dtype)
    (np.minimum if smallest else np.maximum).at(dense, (leaves, targets), weights)
    votes = F.from_numpy(dense)[(at,)]
    result = votes.amin(-2) if smallest else votes.amax(-2)
    return F.where(result == bound, 0.0, result)


def _aggregate(F: Any, forest: Forest, at: Any, function: str) -> Any:
    """Returns the votes of the leaves `at` for each target, aggregated by `function`: `(N, targets)`."""
    if function in ("MIN", "MAX"):
        return _extremes(F, forest, at, function == "MIN")
    if function not in ("SUM", "AVERAGE"):
        raise OperatorError(f"aggregate_function={function!r} is none of SUM, AVERAGE, MIN, MAX.")
    sums = _sums(F, forest, at)
    return sums / len(forest.roots) if function == "AVERAGE" else sums


def _one_of(name: str, values: Any, tensor: Any) -> Any:
    """Returns an attribute's floats, or the tensor that is given in their place."""
    if values and tensor is not None:
        raise OperatorError(f"both {name} and {name}_as_tensor are given. Give it one of them.")
    return values if tensor is None else tensor


def _data(F: Any, X: Any) -> tuple[Any, str]:
    """Returns the rows in the type of the comparisons, and its name: float64 stays, other types become float32."""
    return (X, "float64") if X.dtype == F.float64 else (rows(X), "float32")


def _nodes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes `nodes_*` by their names without the prefix, numbers from the tensor if it is given."""
    values = _one_of("nodes_values", attributes["nodes_values"], attributes.get("nodes_values_as_tensor"))
    nodes = {name.removeprefix("nodes_"): value for name, value in attributes.items() if name.startswith("nodes_")}
    return {**nodes, "values": values}


@op(
    "TreeEnsembleRegressor",
    3,
    choices={"aggregate_function": ("SUM", "AVERAGE", "MIN", "MAX"), "post_transform": POST_TRANSFORMS},
    domain=DOMAIN,
)
def tree_ensemble_regressor(
    F: Any,
    X: Any,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Any = None,
    n_targets: int | None = None,
    nodes_falsenodeids: Sequence[int] | None = None,
    nodes_featureids: Sequence[int] | None = None,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Any = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Sequence[str] | None = None,
    nodes_nodeids: Sequence[int] | None = None,
    nodes_treeids: Sequence[int] | None = None,
    nodes_truenodeids: Sequence[int] | None = None,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Any = None,
    post_transform: str = "NONE",
    target_ids: Sequence[int] | None = None,
    target_nodeids: Sequence[int] | None = None,
    target_treeids: Sequence[int] | None = None,
    target_weights: Sequence[float] | None = None,
    target_weights_as_tensor: Any = None,
) -> Any:
    """A single target is transformed by PROBIT only, as in ONNX Runtime."""
    nodes = _nodes(locals())
    X, dtype = _data(F, X)
    weights = _one_of("target_weights", target_weights, target_weights_as_tensor)
    targets = n_targets or 1
    forest = _forest(dtype, nodes, (target_treeids, target_nodeids, target_ids, weights), targets, dtype)
    base = _values(_one_of("base_values", base_values, base_values_as_tensor), dtype)
    at = _leaves(F, forest, X)
    Y = _with_base(F, forest, at, _aggregate(F, forest, at, aggregate_function), base).float()
    return Y if targets == 1 and post_transform != "PROBIT" else post_transform_of(F, Y, post_transform)


revision(
    tree_ensemble_regressor,
    1,
    without=[f"{name}_as_tensor" for name in ("base_values", "nodes_hitrates", "nodes_values", "target_weights")],
)


def _two_classes(
    F: Any, sums: Any, voted: Any, base: np.ndarray[Any, Any], threshold: float, mirrored: bool, transform: str
) -> tuple[Any, Any]:
    """Returns whether the second class wins, `(N,)`, and the scores, `(N, 2)`.

    Args:
        F: the namespace.
        sums: sums of the votes for each class, `(N, 2)`.
        voted: whether there are votes for the first class, a bool or a tensor `(N,)`, and for the second, a bool.
        base: no, one or two base values.
        threshold: the second class wins where the deciding score exceeds it.
        mirrored: whether a single score `s` stands for `(-s, s)`, otherwise for `(1 - s, s)`.
        transform: the operator's `post_transform`.
    """
    first, second = sums[:, 0], sums[:, 1]
    if voted[1]:
        if base.size == 2:
            second = first + base[1]
            first = -second * voted[0]
        elif base.size:
            first = first + voted[0] * base[0]
        return second > threshold, post_transform_of(F, F.stack([first, second], 1), transform)
    if base.size == 2:
        first = first + base[0]
        return first > threshold, post_transform_of(F, F.stack([first, second], 1), transform)
    score = first + voted[0] * base[0] if base.size else first
    if transform == "PROBIT":
        raise OperatorError("post_transform='PROBIT' of votes for one of two classes has no defined result.")
    other = -score if mirrored or transform == "LOGISTIC" else 1 - score
    scores = F.stack([other, score], 1)
    return score > threshold, F.sigmoid(scores) if transform == "LOGISTIC" else scores


def _decide(
    F: Any, forest: Forest, sums: Any, voted: list[Any], base: np.ndarray[Any, Any], transform: str
) -> tuple[Any, Any]:
    """Returns the position of each row's class `(N,)`, and the scores `(N, classes)`."""
    if forest.targets > 2:
        scores = sums + F.from_numpy(base) if base.size else sums
        counted = scores
        if not base.size and not all(flag is True for flag in voted):
            present = [count > 0 for count in _counts(F, sums, voted)]
            counted = F.where(F.stack(present, 1), scores, -float("inf"))
        return F.argmax(counted, 1), post_transform_of(F, scores, transform)
    if forest.targets == 1:
        score = sums + F.from_numpy(base) if base.size else sums
        scores = post_transform_of(F, score, transform) if transform == "PROBIT" else score
        return (score[:, 0] > 0).long(), scores
    one_class = len(np.unique(forest.votes[1])) == 1
    positive = bool((forest.votes[2] >= 0).all())
    options = (base, 0.5 if one_class and positive else 0.0, not (one_class and positive), transform)
    if isinstance(voted[1], bool):
        wins, scores = _two_classes(F, sums, voted, *options)
        return wins.long(), scores
    wins, scores = _two_classes(F, sums, [voted[0], True], *options)
    single_wins, single_scores = _two_classes(F, sums, [voted[0], False], *options)
    return F.where(voted[1], wins.long(), single_wins.long()), F.where(voted[1].unsqueeze(1), scores, single_scores)


@op("TreeEnsembleClassifier", 3, choices={"post_transform": POST_TRANSFORMS}, domain=DOMAIN)
def tree_ensemble_classifier(
    F: Any,
    X: Any,
    *,
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Any = None,
    class_ids: Sequence[int] | None = None,
    class_nodeids: Sequence[int] | None = None,
    class_treeids: Sequence[int] | None = None,
    class_weights: Sequence[float] | None = None,
    class_weights_as_tensor: Any = None,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    nodes_falsenodeids: Sequence[int] | None = None,
    nodes_featureids: Sequence[int] | None = None,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Any = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Sequence[str] | None = None,
    nodes_nodeids: Sequence[int] | None = None,
    nodes_treeids: Sequence[int] | None = None,
    nodes_truenodeids: Sequence[int] | None = None,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Any = None,
    post_transform: str = "NONE",
) -> tuple[Any, ...]:
    """Two classes follow ONNX Runtime's rules, as the standard has none.

    With votes for one of them only, the second class wins above 0.5 where no weight is negative, else above 0; the
    scores are `(1 - s, s)` or `(-s, s)`. With votes for both, the second wins where its sum is positive. The label is
    always one of the node's labels (ONNX Runtime gives 0 or 1 with votes for both).
    """
    nodes = _nodes(locals())
    labels = labels_of(F, classlabels_int64s, classlabels_strings)
    X, dtype = _data(F, X)
    weights = _one_of("class_weights", class_weights, class_weights_as_tensor)
    forest = _forest(dtype, nodes, (class_treeids, class_nodeids, class_ids, weights), len(labels), dtype)
    base = _values(_one_of("base_values", base_values, base_values_as_tensor), dtype)
    at = _leaves(F, forest, X)
    winner, scores = _decide(F, forest, _sums(F, forest, at), _voted(F, forest, at), base, post_transform)
    if len(labels) == 1:
        labels = ["0", "1"] if classlabels_strings else F.tensor([0, 1])
    return pick(F, labels, winner), scores.float()


revision(
    tree_ensemble_classifier,
    1,
    without=[f"{name}_as_tensor" for name in ("base_values", "class_weights", "nodes_hitrates", "nodes_values")],
)


_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _members(values: Any, count: int) -> list[list[float]]:
    """Returns the sets of members of the nodes of mode BRANCH_MEMBER; the file separates them by NaN."""
    sets: list[list[float]] = [[]]
    for value in [] if values is None else _values(values, "float64").tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    if len(sets) < count:
        raise OperatorError(f"it has {len(sets)} sets of members for {count} nodes of mode BRANCH_MEMBER.")
    return sets


class _Builder:
    """Collects the nodes of a forest; a membership test becomes a chain of equality tests."""

    def __init__(self) -> None:
        self.features: list[int] = []
        self.splits: list[float] = []
        self.modes: list[int] = []
        self.missing: list[int] = []
        self.children: list[tuple[int, int]] = []

    def add(self, feature: int, split: float, mode: int, missing: int, children: tuple[int, int]) -> None:
        self.features.append(feature)
        self.splits.append(split)
        self.modes.append(mode)
        self.missing.append(missing)
        self.children.append(children)

    def add_members(self, feature: int, members: list[float], missing: int, children: tuple[int, int]) -> None:
        """Adds a chain of equality tests, with `children` as false and true child of the chain."""
        for position, member in enumerate(members):
            rest = len(self.features) + 1 if position < len(members) - 1 else children[0]
            self.add(feature, member, _EQ, missing, (rest, children[1]))


@op("TreeEnsemble", 5, domain=DOMAIN)
def tree_ensemble(
    F: Any,
    X: Any,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Any,
    membership_values: Any = None,
    n_targets: int | None = None,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Any = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Any,
    nodes_splits: Any,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Any:
    """Nodes and leaves have numbers; the forest holds the nodes, then the leaves, then the chains of members.

    float16 is computed in float32.
    """
    if not (0 <= aggregate_function < len(_AGGREGATES) and 0 <= post_transform < len(_TRANSFORMS)):
        given = f"aggregate_function={aggregate_function}, post_transform={post_transform}"
        raise OperatorError(f"{given} are not both numbers of the standard.")
    data, dtype = _data(F, X)
    modes, count = _values(nodes_modes, "int64"), len(nodes_featureids)
    if modes.size and modes.max() > _MEMBER:
        raise OperatorError(f"the mode {modes.max()} of a node is none of 0 to {_MEMBER}.")
    sides = [_integers(nodes_falseleafs), _integers(nodes_falsenodeids), _integers(nodes_trueleafs)]
    sides.append(_integers(nodes_truenodeids))
    missing = _integers(nodes_missing_value_tracks_true or [0] * count)
    splits = _values(nodes_splits, "float64")
    if {len(modes), len(splits), len(missing), *map(len, sides)} != {count}:
        raise OperatorError("the attributes of its nodes differ in length.")
    false, true = (np.where(leaf > 0, ids + count, ids) for leaf, ids in (sides[:2], sides[2:]))
    forest = _numbered_forest(
        (_integers(nodes_featureids), splits, modes, missing, np.stack([false, true], 1)),
        _members(membership_values, int((modes == _MEMBER).sum())),
        (_integers(leaf_targetids), _values(leaf_weights, dtype)),
        _integers(tree_roots),
        n_targets or max(leaf_targetids) + 1,
        dtype,
    )
    Y = _aggregate(F, forest, _leaves(F, forest, data), _AGGREGATES[aggregate_function])
    return post_transform_of(F, Y, _TRANSFORMS[post_transform]).to(X.dtype)


def _numbered_forest(
    nodes: tuple[Any, ...], members: list[list[float]], leaves: tuple[Any, Any], roots: Any, targets: int, dtype: str
) -> Forest:
    """Returns the forest of TreeEnsemble; `nodes`: features, splits, modes, missing, children, leaves behind nodes."""
    builder = _Builder()
    count, ends = len(nodes[0]), len(leaves[0])
    for feature, split, mode, missing, children in zip(*(item.tolist() for item in nodes), strict=True):
        builder.add(feature, split, mode, missing, tuple(children))
    for leaf in range(count, count + ends):
        builder.add(0, 0.0, _LEAF, 0, (leaf, leaf))
    sets = iter(members)
    for index in np.flatnonzero(nodes[2] == _MEMBER).tolist():
        first, *rest = next(sets) or [float("nan")]
        feature, children = builder.features[index], builder.children[index]
        builder.modes[index], builder.splits[index] = _EQ, first
        if rest:
            builder.children[index] = (len(builder.features), children[1])
            builder.add_members(feature, rest, builder.missing[index], children)
    return Forest(
        roots,
        np.asarray(builder.features, np.int64),
        np.asarray(builder.splits, dtype),
        np.asarray(builder.modes, np.int64),
        np.asarray(builder.missing, bool),
        np.asarray(builder.children, np.int64),
        (np.arange(count, count + ends), leaves[0], leaves[1]),
        targets,
    )
