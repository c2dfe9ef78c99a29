"""Which container each call belongs to: the one that the file names, else the smallest one that is closed around it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set

import torch
from torch import fx

from onnx2nn.control_flow import CONTROL_FLOW
from onnx2nn.fx.blocks.activations import activated
from onnx2nn.fx.blocks.outside_calls import separate_outside
from onnx2nn.fx.blocks.repeats import module_path, separate
from onnx2nn.fx.blocks.scopes import Scoped, around_chain, path_of, plain_values
from onnx2nn.fx.blocks.scripted import place_scripted
from onnx2nn.fx.modules.module_tree import put_module, remove
from onnx2nn.ground.naming import identifier, is_attribute, without_call_number
from onnx2nn.importing.regions import Path, common

_FAR = 4096
"""The most steps of a search around one call; what is farther away is in no block with it."""

SUMS = (operator.add, torch.add, "add")


def place(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> None:
    """Gives every call its container.

    A layer stands where its weights do, and another call where the file says. Without a name in the file

    1. the only call that uses a weight belongs to the weight's container, if no call is named to be in it; one that
       uses a nameless weight before any of these to the outermost, and one that computes with a weight and values of
       the weight's container alone to the container;
    2. a call between two calls of a container belongs to the container, and what a scripted function computes to the
       module that goes on with it (`scripted`);
    3. a residual connection belongs to the container of all layers and weights that it goes around, a sum to the
       numbered container around these, and so does an activation of the sum; a call of no layer that gives several
       values belongs to the container of all calls that use these;
    4. an activation in a container of numbered modules, which has no forward of its own, belongs to the last of them.

    The second and later calls of a container have paths of their own (`repeats`), and so have calls in it by others
    (`outside_calls`).

    Args:
        program: its `scope` is filled.
        declared: the scope that the file names for a call, None where it names none.
    """
    owners = _Owners(program, declared)
    owners.known()
    owners.use_weights()
    owners.begin()
    _use_own(owners)
    owners.meet()
    place_scripted(program, owners.unknown.keys())
    owners.enclose_joins()
    owners.take_apart()
    owners.end_lists()
    owners.move_layers()
    separate_outside(program, declared)
    separate(program)
    owners.read_weights()


class _Owners:
    """The state of `place`."""

    def __init__(self, program: Scoped, declared: Mapping[fx.Node, Path | None]):
        self.program, self.scope, self.declared = program, program.scope, declared
        self.unknown: dict[fx.Node, None] = {}
        self.nameless: dict[fx.Node, None] = {}
        self.named: set[Path] = set()
        self.lists = program.numbered - program.called

    def clip(self, path: Path) -> Path:
        """Returns the innermost container at or above `path`.

        The tree may hold a step as an identifier, and torch's older exporter numbers the calls of a module: `layer_1`.
        """
        if path in self.program.containers:
            return path
        found: Path = ()
        for end, step in enumerate(path, 1):
            inner = self._inside(found, step, step if path[:end] in self.program.noted else without_call_number(step))
            if inner is None:
                break
            found = inner
        return found

    def _inside(self, around: Path, step: str, called: str) -> Path | None:
        """Returns the container of a step in another container; `called` is the name without the number of a call."""
        for name in (step, identifier(step), called):
            if (*around, name) in self.program.containers:
                return (*around, name)
        return None

    def known(self) -> None:
        """Places the layers, and the calls whose scopes the file names."""
        for node in self.program.graph.nodes:
            if node.op in ("placeholder", "output"):
                self.scope[node] = ()
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            scope = self.declared.get(node)
            if node.op == "call_module":
                if self._is_named(str(node.target), scope):
                    self.scope[node] = self.clip(path_of(node.target)[:-1])
                    continue
                self.nameless[node] = None
            if scope is None:
                self.unknown[node] = None
                continue
            place = self.scope[node] = self.clip(scope)
            if place not in self.named:
                self.named |= {place[:end] for end in range(1, len(place) + 1)}

    def _is_named(self, target: str, scope: Path | None) -> bool:
        """Returns whether a layer's path says where it is called; the name of an If or a Loop may have no scope."""
        if target in self.program.nameless:
            return False
        return scope is not None or not isinstance(self.program.root.get_submodule(target), CONTROL_FLOW)

    def weights(self) -> Iterator[tuple[fx.Node, Path]]:
        """Yields the reads of weights with the containers that hold the weights."""
        for node in self.program.graph.nodes:
            if node.op == "get_attr" and not self.program.is_movable(node):
                yield node, self.clip(path_of(node.target)[:-1])

    def use_weights(self) -> None:
        """Places calls in the containers of their weights."""
        holders: dict[fx.Node, list[Path]] = {}
        for node, holder in self.weights():
            if len(node.users) == 1 and holder not in self.named:
                holders.setdefault(next(iter(node.users)), []).append(holder)
        for user, paths in holders.items():
            path, now = common(paths), self.scope.get(user, ())
            moves = user.op in ("call_function", "call_method") or user in self.nameless
            if moves and len(path) > len(now) and path[: len(now)] == now:
                self.scope[user] = path
                self.unknown.pop(user, None)

    def begin(self) -> None:
        """Places what computes with nameless weights before any call of a container in the outermost module.

        It is a module that has lost its name, such as a quantised LSTM in front of a layer that has one.
        """
        behind: set[fx.Node] = set()
        for node in self.program.graph.nodes:
            if not node.op.startswith("call_"):
                continue
            if node not in self.unknown or not behind.isdisjoint(node.all_input_nodes):
                behind.add(node)
            elif any(map(self.program.is_nameless, node.all_input_nodes)):
                self.scope[node] = ()
                del self.unknown[node]

    def meet(self) -> None:
        """Places every other call in the common container of its neighbours."""
        following = self._next_scopes()
        for node in self.unknown:
            inputs = (arg for arg in node.all_input_nodes if arg.op not in ("get_attr", "placeholder"))
            before, after = dict.fromkeys(map(self.scope.__getitem__, inputs)), following[node]
            if before == after:  # or there are neither
                self.scope[node] = max(before, key=len, default=())
                continue
            meetings = [common((one, other)) for one in before or after for other in after or before]
            self.scope[node] = max(meetings, key=len)

    def _next_scopes(self) -> dict[fx.Node, dict[Path, None]]:
        """Returns the scopes of the nearest users that have one, for each call that has none."""
        found: dict[fx.Node, dict[Path, None]] = {}
        for node in reversed(self.unknown):
            scopes = found[node] = {}
            for user in node.users:
                scopes |= {self.scope[user]: None} if user in self.scope else found[user]
        return found

    def enclose_joins(self) -> None:
        """Places residual connections, and the activations of their sums."""
        joining = [node for node in self.unknown if len(node.all_input_nodes) > 1]
        plain = plain_values(self.program.graph) if joining else set()
        if not any(len(_tensors(node, plain)) > 1 for node in joining):
            return  # nothing joins two values
        anchors = self._anchors()
        total = Counter(path[:end] for path in anchors.values() for end in range(1, len(path) + 1))
        forks = _Forks(self.program.graph, plain)
        joins: dict[fx.Node, Path] = {}
        for node in self.unknown:
            between = forks.between(node)
            if between is None:
                continue
            inside = [anchors[other] for other in between if other in anchors]
            path = self._owner(inside, total) if inside else ()
            if node.target in SUMS:
                path = self._repeated(path)
            if self._lower(node, path):
                joins[node] = path
            for other in between if path else ():
                self._lower(other, path)
        for node in self.unknown:
            producer = activated(node)
            if producer in joins and len(producer.users) == 1 and self._lower(node, joins[producer]):
                joins[node] = joins[producer]

    def take_apart(self) -> None:
        """Places calls that give several values beside the calls that use these: modules are given one value.

        Not layers: their keys would depend on what becomes of the values, which differs where sizes are freed.
        """
        for node in self.unknown:
            if node.op == "call_module":
                continue
            parts = [part for part in node.users if part.target is operator.getitem and isinstance(part.args[1], int)]
            users = [user for part in parts for user in part.users]
            if users and len(parts) == len(node.users):
                path = common([self.scope[user] for user in users])
                for call in (node, *parts):
                    self._lower(call, path)

    def _lower(self, node: fx.Node, path: Path) -> bool:
        """Places a call without a name in `path`, if that is inside of its container; returns whether it is."""
        now = self.scope[node]
        if node not in self.unknown or len(path) <= len(now) or path[: len(now)] != now:
            return False
        self.scope[node] = path
        return True

    def _anchors(self) -> dict[fx.Node, Path]:
        """Returns the calls whose container is known: layers, uses of weights, calls that the file names."""
        calls = [node for node in self.program.graph.nodes if node.op.startswith("call_") and node not in self.unknown]
        return {node: self.scope[node] for node in calls if self.scope[node]}

    def _owner(self, inside: list[Path], total: Counter[Path]) -> Path:
        """Returns the outermost container that holds the calls at `inside` alone, the root if the innermost has more.

        A container of numbered modules has no forward of its own; the one around it owns what happens in it.
        """
        path = common(inside)
        count = Counter(one[:end] for one in inside for end in range(1, len(one) + 1))
        while path:
            around = path[:-1]
            if path not in self.lists and not (around and around not in self.lists and count[around] == total[around]):
                break
            path = around
        return path

    def _repeated(self, path: Path) -> Path:
        """Returns the numbered container at or around `path`, `path` itself where there is none.

        A residual sum is what repeats a block: the author of `layers.0.attention` adds in `layers.0`.
        """
        ends = range(len(path), 0, -1)
        return next((path[:end] for end in ends if not is_attribute(path[end - 1])), path)

    def end_lists(self) -> None:
        """Places the activations that stand in containers of numbered modules."""
        for node in self.unknown:
            producer = activated(node)
            if producer is None or self.scope[node] not in self.lists or len(producer.users) > 1:
                continue
            path = self.scope.get(producer, ())
            if path in self.lists:
                self._lower(node, path)

    def move_layers(self) -> None:
        """Moves the layers for which the file has no name to the containers in which they are called.

        One that several containers call is called by the one around them: a module reaches no other's parts.
        """
        root = self.program.root
        places: dict[str, list[fx.Node]] = {}
        for node in self.nameless:
            places.setdefault(str(node.target), []).append(node)
        for name, nodes in places.items():
            path = common([self.scope[node] for node in nodes])
            while path and path in self.lists:  # a list holds numbered modules alone
                path = path[:-1]
            self.scope |= dict.fromkeys(nodes, path)
            if path == path_of(name)[:-1]:
                continue
            target = ".".join((*path, name.rpartition(".")[2]))
            while hasattr(self.program.module(path), target.rpartition(".")[2]):
                target += "_"
            put_module(root, target, root.get_submodule(name))
            remove(root, name)
            for node in nodes:
                node.target = target
        if places:
            self.program.find_containers()
            for node, path in self.scope.items():  # a container that held such a layer alone is none now
                self.scope[node] = self.clip(path)

    def read_weights(self) -> None:
        """Places the reads of weights and constants, one for each container, and call of it, that uses them."""
        program, scope = self.program, self.scope
        for node in [node for node in program.graph.nodes if node.op == "get_attr"]:
            if program.is_movable(node):
                holder = around_chain(program, node, common([module_path(scope[user]) for user in node.users]))
            else:
                holder = self.clip(path_of(node.target)[:-1])

            def meeting(user: fx.Node, holder: Path = holder) -> Path:
                return scope[user][: len(common((module_path(scope[user]), holder)))]

            copy_for_users(program, node, meeting)


def _use_own(owners: _Owners) -> None:
    """Places what computes with a weight and values of its container alone.

    Torch's older exporter makes one node without a scope of a product in a module and a sum in its caller.
    """
    program, scope = owners.program, owners.scope
    holders = dict(owners.weights())
    for node in program.graph.nodes:
        given = node.all_input_nodes if node.op in ("call_function", "call_method") else []
        if given and holders.keys() >= set(given):
            holders[node] = common([holders[arg] for arg in given])
        elif node in owners.unknown and not holders.keys().isdisjoint(given):
            path = max((holders[arg] for arg in given if arg in holders), key=len)
            if path and all(holders.get(arg, scope.get(arg, ()))[: len(path)] == path for arg in given):
                scope[node] = path
                del owners.unknown[node]


class _Forks:
    """Finds the calls between a join of two values and the value from which both come.

    Args:
        graph: the program.
        plain: its `plain_values`.
    """

    def __init__(self, graph: fx.Graph, plain: Set[fx.Node]):
        self._plain = plain
        self._data = {node: _tensors(node, plain) for node in graph.nodes}
        self._fork: dict[fx.Node, fx.Node | None] = {}
        self._depth: dict[fx.Node, int] = {}
        for node, inputs in self._data.items():
            fork = self._nearest(inputs) if inputs else None
            self._fork[node], self._depth[node] = fork, 0 if fork is None else self._depth[fork] + 1

    def _nearest(self, inputs: list[fx.Node]) -> fx.Node | None:
        """Returns the last value on which all `inputs` depend: the nearest common ancestor in the tree of forks."""
        one = inputs[0]
        for other in inputs[1:]:
            for _ in range(_FAR):
                if one is other:
                    break
                deeper = one if self._depth[one] >= self._depth[other] else other
                above = self._fork[deeper]
                if above is None:
                    return None
                one, other = (above, other) if deeper is one else (one, above)
            else:
                return None
        return one

    def between(self, join: fx.Node) -> list[fx.Node] | None:
        """Returns the calls between the fork before a call of several values and the call, itself among them.

        None where it is no join, or where another call uses one of them.
        """
        fork = self._fork[join]
        if fork is None or len(self._data[join]) < 2:
            return None
        found, pending = {join: None}, [join]
        while pending:
            for node in self._data[pending.pop()]:
                if node is not fork and node not in found:
                    found[node] = None
                    pending.append(node)
            if len(found) > _FAR:
                return None
        inner = (user for node in found if node is not join for user in node.users)
        return list(found) if all(user in found or user in self._plain for user in inner) else None


def _tensors(node: fx.Node, plain: Set[fx.Node]) -> list[fx.Node]:
    """Returns the tensors that a call computes with, without weights and the `plain_values`."""
    return [used for used in node.all_input_nodes if used.op != "get_attr" and used not in plain]


def copy_for_users(program: Scoped, node: fx.Node, scope_for: Callable[[fx.Node], Path]) -> None:
    """Replaces `node` by a copy in each scope that `scope_for` gives for its users, before the first of these."""
    groups: dict[Path, list[fx.Node]] = {}
    for user in node.users:
        groups.setdefault(scope_for(user), []).append(user)
    for number, (scope, users) in enumerate(groups.items()):
        copied = node
        if number:
            with program.graph.inserting_before(min(users)):
                copied = program.copied(node, scope)
            for user in users:
                user.replace_input_with(node, copied)
        elif program.scope.get(node) != scope:
            min(users).prepend(node)
        program.scope[copied] = scope
    program.scope.setdefault(node, ())
