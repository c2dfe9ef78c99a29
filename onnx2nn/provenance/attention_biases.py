"""Gives the biases of queries and values their keys, which the exporter joined (BEiT, EVA, Swin Transformer V2).

One product computes queries, keys and values. Its bias is `torch.cat((self.q_bias, zeros, self.v_bias))`, as one of
keys has no effect on the attention. The zeros may be a buffer `k_bias`.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.unsqueezed_weights import replace
from onnx2nn.provenance.weight_keys import WeightKeys, array_of

_JOINED = re.compile(r"cat(_\d+)?")
"""Names of the results of torch.cat."""

_PARTS = ("q_bias", "k_bias", "v_bias")


def restore_joined_biases(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that is the biases of queries, keys and values, in this order, by a Concat of these.

    Those of keys, the third in the middle, are zeros.
    """
    found = exporter_metadata.folded_from(folded) & keys.absent
    path = next(iter(found)).rpartition(".")[0] if found and _JOINED.fullmatch(folded.name or "") else None
    names = [f"{path}.{part}" if path else part for part in _PARTS]
    if path is None or not keys.unfold or not {names[0], names[2]} <= found <= {*names}:
        return
    values = array_of(folded)
    parts = np.split(values, 3) if values.ndim == 1 and len(values) % 3 == 0 else []
    if not parts or parts[1].any() or not all(map(keys.is_free, found)):
        return
    for key in found:
        keys.add(key, parts[names.index(key)], f"a third of what the exporter folded into {folded.name!r}")
    zeros = ir.Node("", "Constant", [], {"value": ir.AttrTensor("value", ir.Tensor(parts[1]))})
    given = [keys.graph.initializers.get(key, zeros.outputs[0]) for key in names]
    made = [ir.Node("", "Concat", given, {"axis": ir.AttrInt64("axis", 0)})]
    replace(keys, folded, made if names[1] in found else [zeros, *made])
