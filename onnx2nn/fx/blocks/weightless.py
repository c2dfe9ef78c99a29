"""Modules without weights: the file has no key of theirs, and a scope around their calls at most."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Set

from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.fx.blocks.activations import ADAPTIVE_POOLS, NO_ACTIVATIONS, Module, module_of
from onnx2nn.fx.blocks.block import BLOCK_ATTRIBUTES
from onnx2nn.fx.blocks.scopes import declared_class, is_size, path_of, step_name
from onnx2nn.fx.modules.graph_nodes import call_module_instead
from onnx2nn.fx.modules.module_tree import child_of, children_of, container, module_at, set_child
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.ground.naming import without_call_number
from onnx2nn.importing.regions import Path, around_of

FUNCTIONS = ("call_function", "call_method")
"""The kinds of nodes that call no module."""


def make_modules(
    root: fx.GraphModule, declared: Mapping[fx.Node, Path], noted: Set[Path], specs: Mapping[fx.Node, Spec]
) -> None:
    """Makes modules of the calls of functions in scopes of their own, which were modules of the author's.

    The tree of an import is that of the weights. What the author called as a module without weights, `nn.ReLU`, is in
    the file as a scope around one operator. Calls in one scope are calls of one module, and so are those in scopes
    that the older exporter numbered, `relu` and `relu_1`.

    Args:
        root: a flat program; its graph is changed in place.
        declared: the modules that an exporter of torch notes for calls.
        noted: the places of the modules that the newer exporter notes, see `scopes.complete_scopes`.
        specs: shapes of the values.
    """
    called = _Called(root, noted)
    scopes: dict[Path, list[fx.Node]] = {}
    there: set[Path] = set()
    for node, path in declared.items():
        if node.op in FUNCTIONS:
            scopes.setdefault(path, []).append(node)
        else:
            there.add(path if path_of(node.target) == path else called.of(path))
    groups: dict[Path, list[fx.Node]] = {}
    for path, nodes in scopes.items():
        groups.setdefault(called.of(path), []).extend(nodes)
    callers = around_of((*groups, *there))
    made: dict[Path, Module] = {}
    for path, nodes in groups.items():
        if path in callers or path in there:
            continue  # a module that calls others, or one that is there
        sizes = [node for node in nodes if is_size(node)]
        nodes = [node for node in nodes if not is_size(node)] or nodes
        first = _author_module(nodes[0], specs)
        if first is None or any(_author_module(other, specs) != first for other in nodes[1:]):
            continue
        place = _place(root, path)
        if not place:
            continue
        first_call = called.first(path)
        base = place if first_call == path else _place(root, first_call)
        if base != place and made.get(base) == first:
            place = base  # the second call of a module
        else:
            around, name = container(root, ".".join(place))
            if hasattr(around, name):
                continue
            kind, options = first
            set_child(around, name, kind(**options))
            made[place] = first
        for node in nodes:
            call_module_instead(node, ".".join(place))
        for node in sizes:
            if not node.users:
                root.graph.erase_node(node)


def _author_module(node: fx.Node, specs: Mapping[fx.Node, Spec]) -> Module | None:
    """Returns the module that a function's call in a scope of its own was, None where it was none of one tensor."""
    inputs = node.all_input_nodes
    if not inputs:
        return None
    others = inputs[1:]
    if node.target == "reshape" and all(map(is_size, others)):
        return _unflatten(node, specs)
    if others:
        return None
    if node.target == "mean":
        options = {**dict(zip(("dim", "keepdim"), node.args[1:], strict=False)), **node.kwargs}
        axes = options.pop("dim", None)
        for rank, kind in enumerate(ADAPTIVE_POOLS, 1):
            spatial = isinstance(axes, list) and sorted(axes) == [*range(2, 2 + rank)]  # type: ignore[type-var]  # torch takes ints
            if spatial and options == {"keepdim": True} and declared_class(node) == kind.__name__:
                return kind, {"output_size": 1}
    made = module_of(node) or _norm_of_channels(node, specs) or _unflatten(node, specs)
    noted = declared_class(node)
    if (
        made is not None
        and issubclass(made[0], (*NO_ACTIVATIONS, *_NORMS, nn.Unflatten))
        and noted
        and not hasattr(nn, noted)
    ):
        return None  # a class of the author's
    return made


def _norm_of_channels(node: fx.Node, specs: Mapping[fx.Node, Spec]) -> Module | None:
    """Returns a normalisation without weights whose module has the number of channels; None where that is not known."""
    spec = specs.get(node.all_input_nodes[0])
    if spec is None or spec.shape is None or len(spec.shape) < 2 or not isinstance(spec.shape[1], int):
        return None
    channels, rank = spec.shape[1], len(spec.shape) - 2
    options = {**dict(zip(_GROUP_NORM, node.args[1:], strict=False)), **node.kwargs}
    if node.target is F.group_norm and options.keys() <= {"num_groups", "eps"}:
        return nn.GroupNorm, {**options, "num_channels": channels, "affine": False}
    if node.target is F.instance_norm and options.keys() <= {"eps"} and 1 <= rank <= 3:
        return _NORMS[rank - 1], {**options, "num_features": channels}
    return None


_GROUP_NORM = ("num_groups", "weight", "bias", "eps")
_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm)


def _unflatten(node: fx.Node, specs: Mapping[fx.Node, Spec]) -> Module | None:
    """Returns the module of a reshape that splits one dimension of a known size, unless the author's was another."""
    before, after = (specs.get(value) for value in (node.all_input_nodes[0], node))
    if before is None or after is None or before.shape is None or after.shape is None:
        return None
    if declared_class(node) not in ("", None, nn.Unflatten.__name__):
        return None
    count = len(after.shape) - len(before.shape) + 1
    found = [
        (axis, after.shape[axis : axis + count])
        for axis, size in enumerate(before.shape)
        if isinstance(size, int) and size > 0 and count > 1
        if all(isinstance(part, int) for part in after.shape[axis : axis + count])
        if math.prod(after.shape[axis : axis + count]) == size
        if _equal(before.shape[:axis], after.shape[:axis])
        if _equal(before.shape[axis + 1 :], after.shape[axis + count :])
    ]
    return (nn.Unflatten, {"dim": found[0][0], "unflattened_size": found[0][1]}) if len(found) == 1 else None


def _equal(first: Shape, second: Shape) -> bool:
    """Returns whether two shapes are the same at all sizes."""
    return all(
        a is b or (isinstance(a, int) and isinstance(b, int) and a == b) for a, b in zip(first, second, strict=True)
    )


def add_scopes(root: fx.GraphModule, declared: Mapping[fx.Node, Path], noted: Set[Path]) -> list[Path]:
    """Adds a container for each scope of the author's that has calls and no weights, as a rotary embedding has.

    Args:
        root: a flat program.
        declared: the modules that an exporter of torch notes for calls.
        noted: the places of the modules that the newer exporter notes, see `scopes.complete_scopes`.

    Returns:
        The paths of the containers that were added, one before those in it.
    """
    called, added = _Called(root, noted), list[Path]()
    for path in dict.fromkeys(path for node, path in declared.items() if node.op in FUNCTIONS):
        if called.is_there(path):
            continue
        *place, _ = _place(root, (*called.of(path), "")) or [""]
        around: nn.Module = root
        for end, step in enumerate(place, 1):
            if step not in children_of(around):
                around.add_module(step, nn.Module())
                added.append(tuple(place[:end]))
            around = children_of(around)[step]
    return added


def remove_empty(root: fx.GraphModule, added: list[Path]) -> None:
    """Removes the containers of `add_scopes` that hold nothing."""
    for path in reversed(added):
        around = root.get_submodule(".".join(path[:-1]))
        module = getattr(around, path[-1], None)
        if type(module) is nn.Module and not [*module.children()]:
            delattr(around, path[-1])


class _Called:
    """The paths of the modules that scopes are calls of: torch's older exporter numbers the calls, `layer_1`.

    Args:
        root: the flat module.
        noted: the places of modules whose numbers are the author's.
    """

    def __init__(self, root: fx.GraphModule, noted: Set[Path]):
        self._root, self._noted = root, noted
        self._found: dict[Path, tuple[Path, nn.Module | None]] = {(): ((), root)}

    @functools.cached_property
    def _again(self) -> Set[str]:
        """The modules that are called more than once."""
        calls = Counter(str(node.target) for node in self._root.graph.find_nodes(op="call_module", sort=False))
        return {target for target, count in calls.items() if count > 1}

    def of(self, path: Path) -> Path:
        """Returns the path of the module of a scope."""
        return self._module(path)[0]

    def is_there(self, path: Path) -> bool:
        """Returns whether the tree holds the module of a scope."""
        return self._module(path)[1] is not None

    def first(self, path: Path) -> Path:
        """Returns the scope of the first call of the module that `path`, with a number, may be a further call of."""
        return path if path in self._noted else (*path[:-1], without_call_number(path[-1]))

    def _module(self, path: Path) -> tuple[Path, nn.Module | None]:
        """Returns the path of the module of a scope, and the module, if there is one."""
        if path not in self._found:
            (found, around), step = self._module(path[:-1]), path[-1]
            inner = child_of(around, step_name(step))
            base = self.first(path)[-1] if inner is None else step
            if base != step:
                first = child_of(around, base)
                if type(first) is nn.Module or (first is not None and ".".join((*found, base)) in self._again):
                    step, inner = base, first
            self._found[path] = (*found, step), inner
        return self._found[path]


def _place(root: nn.Module, path: Path) -> Path:
    """Returns the names of a scope in the tree; an empty path where a layer or anything else stands in its way."""
    found: list[str] = []
    around: nn.Module | None = root
    for step in path[:-1]:
        name = step if _has(around, step) else step_name(step)
        if _has(around, name):
            around = child_of(around, name)
            if type(around) is not nn.Module:
                return ()
        else:
            around = None
        found.append(name)
    last = path[-1]
    place = (*found, step_name(last) if last else "")
    if not BLOCK_ATTRIBUTES.isdisjoint(place) and not _is_there(root, place):
        return ()  # the container around it could not run
    return place


def _has(module: nn.Module | None, name: str) -> bool:
    """Returns whether a module has an attribute; in a fraction of the time where it is a module."""
    return child_of(module, name) is not None or (module is not None and hasattr(module, name))


def _is_there(root: nn.Module, place: Path) -> bool:
    """Returns whether the tree holds all containers of a place."""
    return module_at(root, place[:-1]) is not None and place[-1] not in BLOCK_ATTRIBUTES
