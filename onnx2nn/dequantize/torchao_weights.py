"""torchao's tensors in place of the float weights of layers, with the integers of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx2nn.dequantize.grouped_weights import GroupedWeight
from onnx2nn.ground.extras import require

_KEY_COLUMNS = 64
"""So many elements of a row are looked up; the whole weight is compared afterwards."""


def put_torchao_weights(
    module: nn.Module, forms: Mapping[str, Sequence[Callable[[], GroupedWeight]]]
) -> dict[str, Any]:
    """Replaces weights of linear layers and embeddings, in place.

    Weights are found by their values: on their way to the layers they were renamed, transposed and split.

    Args:
        module: with float weights.
        forms: weight → functions that return its integers.

    Returns:
        `weights`: the keys of the replaced weights. `floats`: weight of the file → why it is no tensor of torchao.

    Raises:
        MissingDependencyError: torchao is not installed.
    """
    require("torchao", extra="torchao", purpose="quantized='torchao'")
    rows = _Rows(forms)
    keys, done = [], {}
    for name, layer in module.named_modules(remove_duplicate=False):
        if not isinstance(layer, (nn.Linear, nn.Embedding)):
            continue
        weight = layer.weight
        if id(weight) not in done:
            done[id(weight)] = (weight, rows.find(weight.detach()))
        found = done[id(weight)][1]
        if found is not None:
            layer.weight = found
            keys.append(f"{name}.weight")
    return {"weights": keys, "floats": rows.unused}


class _Rows:
    """The rows of all weights, by their first elements.

    Attributes:
        unused: weight → the reason why no layer has it as a tensor of torchao.
    """

    def __init__(self, forms: Mapping[str, Sequence[Callable[[], GroupedWeight]]]) -> None:
        self._places: dict[tuple[int, bytes], list[tuple[str, Any, int]]] = {}
        self.unused: dict[str, str] = {}
        for name, ways in forms.items():
            self.unused[name] = "its integers are no matrix with scales along the rows"
            for weight in (way() for way in ways):
                if weight.numbers.shape[1] % weight.group:
                    self.unused[name] = (
                        f"rows of {weight.numbers.shape[1]} do not consist of groups of {weight.group}, "
                        "which torchao needs"
                    )
                    continue
                self.unused[name] = "no nn.Linear and no nn.Embedding has it as its weight"
                tensor = _tensor(weight)
                for row, key in enumerate(_keys(tensor.dequantize())):
                    self._places.setdefault(key, []).append((name, tensor, row))

    def find(self, weight: torch.Tensor) -> nn.Parameter | None:
        """Returns a parameter with the values of a float weight, None where no weight of the file has them."""
        first = next(_keys(weight[:1]), None)
        for name, tensor, row in self._places.get(first, ()) if first is not None else ():
            part = tensor[row : row + weight.shape[0]]
            if part.shape == weight.shape and torch.equal(part.dequantize(), weight.cpu()):
                self.unused.pop(name, None)
                return nn.Parameter(part.to(weight.device), requires_grad=False)
        return None


def _keys(weight: torch.Tensor) -> Iterator[tuple[int, bytes]]:
    heads = weight[:, :_KEY_COLUMNS].cpu().float().numpy()
    return ((weight.shape[1], head.tobytes()) for head in heads)


def _tensor(weight: GroupedWeight) -> Any:
    from torchao.quantization import IntxUnpackedToInt8Tensor

    zeros = weight.zero_points
    return IntxUnpackedToInt8Tensor(
        qdata=weight.numbers.contiguous(),
        scale=weight.scales.contiguous(),
        zero_point=torch.zeros_like(weight.scales, dtype=torch.int8) if zeros is None else zeros.contiguous(),
        target_dtype=getattr(torch, f"int{weight.bits}"),
        block_size=(1, weight.group),
        dtype=weight.scales.dtype,
        activation_quantization=None,
    )
