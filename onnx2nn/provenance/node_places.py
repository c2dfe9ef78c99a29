"""The module in which each node stands, with the outer modules that older exporters leave out of node names."""

from __future__ import annotations

import functools

import onnx_ir as ir

from onnx2nn.ground.naming import without_call_number
from onnx2nn.ground.shared_scopes import SharedScope, numbered
from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.exporter_metadata import Place
from onnx2nn.provenance.weight_keys import WeightKeys


class NodePlaces:
    """Finds the module of a node from the node's metadata or name and from the keys of the weights around it."""

    def __init__(self, keys: WeightKeys):
        self._keys = keys
        self._positions: dict[ir.Node, int] = {}
        self._scopes: dict[str, SharedScope[str]] = {}

    def __call__(self, node: ir.Node) -> Place | None:
        """Returns the module in which `node` stands, under its full path; None where the file does not say."""
        place = exporter_metadata.place_of(node)
        if place is None or not self._full_paths:
            return place
        outer, inner = place.path, ""
        while outer and not self._full_paths.get(outer):
            if inner and outer in self._scopes and node in self._positions:
                name, number = numbered(inner)
                if (module := self._scopes[outer].module_of(self._positions[node], number)) is not None:
                    return place._replace(path=f"{module}{name}")
            outer, _, last = outer.rpartition(".")
            inner = f".{last}{inner}"
        return place._replace(path=f"{self._full_paths[outer]}{inner}") if outer else place

    @functools.cached_property
    def _full_paths(self) -> dict[str, str]:
        """Scopes that lack a module: the path in node names → the path of the module.

        torch's older exporter writes only the modules that were called. Where a model calls `self.model.decoder(x)`,
        the nodes stand in `decoder`; the keys of the weights there have the full path. A scope for which two weights
        imply different modules has the path `""`, as one has that is the path of a module, and a key in a dictionary.
        """
        keys = self._keys
        found: dict[str, str] = {}
        for position, node in enumerate(keys.graph if not keys.author.listed else ()):
            self._positions[node] = position
            for value in node.inputs:
                key = value.name if value is not None and value.is_initializer() else None
                if key is None or key not in keys.author.names or not (node.name or "").startswith("/"):
                    continue
                place = exporter_metadata.place_of(node)
                if place is None:
                    continue
                for scope, module in _shortened(place.path, key.rpartition(".")[0]):
                    found[scope] = module if found.get(scope, module) == module else ""
                    self._scopes.setdefault(scope, SharedScope()).add(position, module, numbered(place.path)[1])
        return found


def _shortened(scope: str, module: str) -> list[tuple[str, str]]:
    """Returns the prefixes of a node's scope that lack steps of its module's path, each with the full path.

    `("model.decoder.norm", "model.model.decoder.norm")` gives `("model.decoder", "model.model.decoder")` and the pair
    itself. A scope that lacks no steps gives its prefixes, each as its own path; others give an empty list.
    """
    short, long = scope.split("."), module.split(".")
    start = next((i for i, (one, other) in enumerate(zip(short, long, strict=False)) if one != other), len(short))
    more = len(long) - len(short)
    if more < 0:
        return []
    pairs = zip(short[start:], long[start + more :], strict=True)
    if any(other not in (one, without_call_number(one)) for one, other in pairs):
        return []
    if not more:
        return [(path, path) for end in range(1, start + 1) if (path := ".".join(short[:end]))]
    ends = range(start + 1, len(short) + 1)
    return [(".".join(short[:end]), ".".join(long[: end + more])) for end in ends]
