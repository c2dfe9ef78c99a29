"""Gives weights their keys of which the exporter computed the exponential, as CLIP's `self.logit_scale.exp()`."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.unsqueezed_weights import replace
from onnx2nn.provenance.weight_keys import WeightKeys, array_of

_EXPONENTIAL = re.compile(r"exp(_\d+)?")
"""Names of the results of Tensor.exp."""

_NEAR = 4
"""Units in the last place that a logarithm may be from the weight; numpy's exponentials are 3 units off at most."""


def restore_exponential(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that is the exponential of a weight by the weight and an Exp of it.

    The weight is the number next to the logarithm of which numpy, with which the exporter folds, gives this
    exponential. Where it is below about 2, its neighbours give it too: the author's is one of them.
    """
    noted = exporter_metadata.folded_from(folded)
    if not keys.unfold or len(noted) != 1 or not noted <= keys.absent or not _EXPONENTIAL.fullmatch(folded.name or ""):
        return
    (key,) = noted
    values = array_of(folded)
    if values.dtype != np.float32 or not keys.is_free(key) or not bool(np.all((values > 0) & (values < np.inf))):
        return
    nearest = np.log(values.astype(np.float64)).astype(np.float32)
    unit = np.maximum(np.spacing(np.abs(nearest)), np.spacing(values) / values)  # of the weight, of the exponential
    near = [nearest + unit * np.float32(steps) for steps in sorted(range(-_NEAR, _NEAR + 1), key=abs)]
    fits = np.stack([np.exp(exponents) == values for exponents in near])
    if np.all(fits.any(0)):
        how = f"the logarithm of what the exporter folded into {folded.name!r}"
        weight = np.choose(fits.argmax(0), near)
        around = [np.nextafter(weight, np.float32(end)) for end in (-np.inf, np.inf)]
        if any(bool(np.any(np.exp(other) == values)) for other in around):
            how += ", whose last digits several weights give"
        keys.add(key, weight, how)
        replace(keys, folded, [ir.Node("", "Exp", [keys.graph.initializers[key]])])
