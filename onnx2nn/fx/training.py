"""The choice of an imported module's trainable weights."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from torch import nn

from onnx2nn.errors import InputError

ROLES = ("weight", "bias", "norm", "embedding", "other")

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
)


def role_of(module: nn.Module, name: str, parameter: nn.Parameter) -> str:
    """Returns the role of a parameter.

    Args:
        module: the module that holds it.
        name: its name there.
        parameter: the parameter.

    Returns:
        `"norm"` for scale and shift of a normalisation, `"embedding"` for a table of an `nn.Embedding`, `"bias"`,
        `"weight"` for matrices and kernels, `"other"` for the rest: factors of a layer scale, slopes of a PReLU.
    """
    if isinstance(module, _NORMS):
        return "norm"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if "bias" in name.lower().split("_") or name.lower().endswith("bias"):
        return "bias"
    return "weight" if parameter.ndim > 1 else "other"


def choose_trainable(module: nn.Module, trainable: bool | Collection[str]) -> None:
    """Sets the parameters of `module` that get gradients; the others are frozen.

    Args:
        module: the module.
        trainable: True for all, False for none, or a list of roles (see `role_of`) and patterns of keys in the
            state_dict (`"classifier.*"`). A weight with several keys is trained if one of them fits.

    Raises:
        InputError: an entry is no role and fits no key.
    """
    given = () if isinstance(trainable, bool) else (trainable,) if isinstance(trainable, str) else trainable
    entries = dict.fromkeys(given, False)
    chosen: set[int] = set()
    for path, holder in module.named_modules(remove_duplicate=False):
        for name, parameter in holder.named_parameters(recurse=False):
            key = f"{path}.{name}" if path else name
            role = role_of(holder, name, parameter)
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
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in chosen)
