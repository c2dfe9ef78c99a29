"""Versions of a state: what a module asks of the one that it loads.

A class whose parameters changed between releases counts `_version` up and converts a state of an older version as it
loads it: torchvision's MNASNet makes other layers for one of version 1. A state_dict notes the version of each module,
so one that the original is to load has those of the original's classes.
"""

from __future__ import annotations

import sys

import onnx_ir as ir
from torch import nn

from onnx2nn.provenance import exporter_metadata


def set_versions(module: nn.Module, graph: ir.Graph) -> None:
    """Gives the modules around layers the state versions of the author's classes, where this process knows these.

    Nothing is imported for it: the file names a class, which has been imported by who has the original.

    Args:
        module: what was made of `graph`; its layers have versions of their own.
        graph: as the exporter wrote it, with the classes of modules on the nodes.
    """
    found = exporter_metadata.modules(graph, lambda kind: _version(kind) != nn.Module._version)
    holders = dict(module.named_modules()) if found else {}
    for path, kind in found.items():
        holder = holders.get(path)
        if holder is not None and (holder is module or type(holder) is nn.Module):
            holder._version = _version(kind)


def _version(kind: str) -> int:
    module, _, name = kind.rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    version = None
    if isinstance(found, type) and issubclass(found, nn.Module) and not module.startswith("torch."):
        version = found._version
    return version if isinstance(version, int) else nn.Module._version
