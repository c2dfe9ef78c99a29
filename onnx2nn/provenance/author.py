"""The record of the author's state_dict: its keys, the initializers that have them, and how each key was found."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from onnx2nn.ground.naming import is_writable
from onnx2nn.provenance.exporter_metadata import State


@dataclass
class Author:
    """Everything that a file still tells about the state_dict of the module that it was exported from.

    Attributes:
        listed: whether the file lists the author's parameters and buffers.
        states: the author's parameters and buffers, by key.
        names: initializers whose name is their key.
        declared: keys in the order of the author's state_dict, as far as the file tells it: one order, or one of
            parameters and one of buffers.
        moved: key → how the exporter rearranged the weight (`"transposed"` or `"unsqueezed"`), for weights whose shape
            in the file is not the author's.
        quantised: keys of weights of which the file holds integers that it dequantises.
        ties: key → initializer that is the same weight, for weights that have several keys.
        restored: key → how it was found, for keys that name no initializer of the file as it was read.
        unnamed: weights for which no key was found → why.
        computed: initializers that the exporter computed → the keys that they were computed from and that the file
            holds no weight for any more; None for files that do not note such computations.
    """

    listed: bool
    states: dict[str, State] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    declared: tuple[tuple[str, ...], ...] = ()
    moved: dict[str, str] = field(default_factory=dict)
    quantised: set[str] = field(default_factory=set)
    ties: dict[str, str] = field(default_factory=dict)
    restored: dict[str, str] = field(default_factory=dict)
    unnamed: dict[str, str] = field(default_factory=dict)
    computed: dict[str, set[str]] | None = None

    @functools.cached_property
    def complete(self) -> bool:
        """Whether every listed parameter was found, so that any other constant is no weight."""
        return self.listed and all(
            key in self.names or key in self.restored for key, state in self.states.items() if state.parameter
        )

    def with_writable_keys(self) -> Author:
        """Returns the record of the keys that programs may hold as they are; others are no keys of the author's."""
        return replace(
            self,
            states={key: state for key, state in self.states.items() if is_writable(key)},
            names=set(filter(is_writable, self.names)),
            declared=tuple(tuple(filter(is_writable, order)) for order in self.declared),
            ties={key: other for key, other in self.ties.items() if is_writable(key) and is_writable(other)},
        )

    def may_train(self, name: str) -> bool:
        """Returns whether an initializer without a key may be a weight: the exporter computed it from parameters."""
        if self.complete:
            return False
        return self.computed is None or any(self.states[key].parameter for key in self.computed.get(name, ()))

    def tied_keys(self, held: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yields the keys of tied weights that no node uses, each with a key of the same weight that is known by then.

        Args:
            held: the keys of the module.
        """
        known = set(held)
        ties = [*self.ties.items(), *((other, key) for key, other in self.ties.items())]
        while lacking := [(key, other) for key, other in ties if key not in known and other in known]:
            yield from lacking
            known.update(key for key, _ in lacking)

    @functools.cached_property
    def outer(self) -> frozenset[str]:
        """Paths of modules that hold other modules with weights, so that they are no layers."""
        modules = {name.rpartition(".")[0] for name in self.names}
        return frozenset(path[:end] for path in modules for end, letter in enumerate(path) if letter == ".")

    def holds(self, key: str) -> bool:
        """Returns whether `key` is in the author's state_dict."""
        return self.states[key].persistent if key in self.states else not self.listed and key in self.names

    def trains(self, key: str) -> bool:
        """Returns whether `key` is a parameter; without a list in the file, any buffer but statistics counts as one."""
        return self.states[key].parameter if key in self.states else key.rpartition(".")[2] not in _STATISTICS


_STATISTICS = ("running_mean", "running_var")
"""Buffers of batch normalisations, through which torch has no gradient."""
