"""The choice of an imported module's trainable weights, in any framework."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from onnx2nn.errors import InputError

ROLES = ("weight", "bias", "norm", "embedding", "other")

_NORMS = (
    *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"),
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"),
    *("LayerNorm", "GroupNorm", "RMSNorm"),
)
_EMBEDDINGS = ("Embedding", "EmbeddingBag")


def role_of(module: Any, name: str, parameter: Any, nn: Any) -> str:
    """Returns the role of a parameter.

    Args:
        module: the module that holds it.
        name: its name there.
        parameter: the parameter.
        nn: the framework's layers, `torch.nn` or OneFlow's.

    Returns:
        `"norm"` for scale and shift of a normalisation, `"embedding"` for a table of an `nn.Embedding`, `"bias"`,
        `"weight"` for matrices and kernels, `"other"` for the rest: factors of a layer scale, slopes of a PReLU.
    """
    if isinstance(module, _layers(nn, _NORMS)):
        return "norm"
    if isinstance(module, _layers(nn, _EMBEDDINGS)):
        return "embedding"
    if "bias" in name.lower().split("_") or name.lower().endswith("bias"):
        return "bias"
    return "weight" if parameter.ndim > 1 else "other"


def _layers(nn: Any, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(getattr(nn, name) for name in names if hasattr(nn, name))


def choose_trainable(holders: Iterable[tuple[str, Any]], trainable: bool | Collection[str], nn: Any) -> None:
    """Sets the parameters of a module that get gradients; the others are frozen.

    Args:
        holders: path and module of all modules in it and of itself, one with several paths under each of them.
        trainable: True for all, False for none, or a list of roles (see `role_of`) and patterns of keys in the
            state_dict (`"classifier.*"`). A weight with several keys is trained if one of them fits.
        nn: the framework's layers.

    Raises:
        InputError: an entry is no role and fits no key.
    """
    given = () if isinstance(trainable, bool) else (trainable,) if isinstance(trainable, str) else trainable
    entries = dict.fromkeys(given, False)
    chosen: set[int] = set()
    parameters: dict[int, Any] = {}
    for path, holder in holders:
        for name, parameter in holder.named_parameters(recurse=False):
            parameters[id(parameter)] = parameter
            key = f"{path}.{name}" if path else name
            role = role_of(holder, name, parameter, nn)
            fitting = [entry for entry in entries if entry == role or fnmatchcase(key, entry)]
            entries |= dict.fromkeys(fitting, True)
            if fitting or trainable is True:
                chosen.add(id(parameter))
    wrong = [entry for entry, used in entries.items() if not used and entry not in ROLES]
    if wrong:
        listed = ", ".join(map(repr, wrong))
        raise InputError(
            f"trainable: no weight fits {listed}. Give True, False, or roles ({', '.join(ROLES)}) and patterns of keys."
        )
    for place, parameter in parameters.items():
        parameter.requires_grad_(place in chosen)
