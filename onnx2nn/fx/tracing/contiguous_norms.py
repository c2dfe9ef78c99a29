"""Permuted tensors that reach a group normalisation are made contiguous, as their authors have them.

No file says how memory is ordered. torch's kernel for `channels_last` takes the variance as the mean of the squares
less the square of the mean, which loses all digits where a group's mean is large beside its deviation, and transforms
of `torch.func` take contiguous tensors alone.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, MutableMapping

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.fx.values.spec import Spec

_PERMUTATIONS = ("permute", "transpose", "movedim", "t")
_PRODUCTS = (F.linear, torch.matmul, operator.matmul, torch.bmm, F.scaled_dot_product_attention)
"""Functions whose results have memory of their own, in the order of their dimensions; so have those of `nn.Linear`."""


def normalise_contiguous(graph: fx.Graph, root: nn.Module, specs: MutableMapping[fx.Node, Spec]) -> None:
    """Makes what was permuted before a group normalisation contiguous where it was permuted.

    Args:
        graph: a recorded program.
        root: the module that holds its layers.
        specs: of its nodes; those of new nodes are added.
    """
    norms = [
        node for node in graph.nodes if node.target is F.group_norm or isinstance(_layer(node, root), nn.GroupNorm)
    ]
    permuted = dict.fromkeys(found for norm in norms for found in _permuted(norm, root, specs))
    for node in permuted:
        with graph.inserting_after(node):
            contiguous = graph.call_method("contiguous")
        node.replace_all_uses_with(contiguous)
        contiguous.args = (node,)
        contiguous.meta, specs[contiguous] = dict(node.meta), specs[node]
        node.meta.pop("onnx_outputs", None)  # the file's value is the last node that has it


def _layer(node: fx.Node, root: nn.Module) -> nn.Module | None:
    return root.get_submodule(str(node.target)) if node.op == "call_module" else None


def _permuted(norm: fx.Node, root: nn.Module, specs: Mapping[fx.Node, Spec]) -> Iterator[fx.Node]:
    """Yields the permutations whose order of memory reaches a normalisation.

    Calls on tensors of as many dimensions pass it on, and reshapes that split dimensions, which are views.
    """
    waiting, seen = norm.all_input_nodes[:1], set(norm.all_input_nodes[:1])
    while waiting:
        node = waiting.pop()
        if node.op == "call_method" and node.target in _PERMUTATIONS:
            yield node
        elif node.target not in _PRODUCTS and not isinstance(_layer(node, root), nn.Linear):
            before = [given for given in node.all_input_nodes if given not in seen and _passes(given, node, specs)]
            waiting += before
            seen.update(before)


def _passes(given: fx.Node, node: fx.Node, specs: Mapping[fx.Node, Spec]) -> bool:
    rank, result = _rank(specs.get(given)), _rank(specs.get(node))
    return 2 < rank <= result and (rank == result or node.op == "call_method")


def _rank(spec: Spec | None) -> int:
    return 0 if spec is None or spec.shape is None else len(spec.shape)
