"""Versions of modules in a state_dict.

A class whose parameters changed between releases increases `_version`, and converts a state of an older version when it
loads one: torchvision's MNASNet builds other layers for version 1. A state_dict notes the version of each module. For
the original model to load an import's state_dict, it must note the versions of the original's classes.
"""

from __future__ import annotations

import sys

import onnx_ir as ir
from torch import nn

from onnx2nn.provenance import exporter_metadata


def set_versions(module: nn.Module, graph: ir.Graph) -> None:
    """Gives the modules around layers the state versions of the author's classes, where these are imported.

    This imports no class: a process with the original model has imported its classes already.

    Args:
        module: the import of `graph`; its layers have versions of their own.
        graph: the graph as exported, with the classes of modules in the nodes' metadata.
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
