"""Reports which keys of the author's state_dict a module has, and why others are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from onnx2nn.errors import InputError, shown_name
from onnx2nn.provenance.author import Author

_COMPUTED = "the exporter computed it from weights that the file does not hold any more"


def naming_of(author: Author | None, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `NamingReport` for a module with these state_dict keys, as plain Python values."""
    if author is None:
        return {"listed": False, "missing": {}, "unnamed": {}, "restored": {}, "extra": {}}
    missing = {
        key: author.unnamed.get(key) or _why_missing(author, key)
        for key, state in author.states.items()
        if state.persistent and key not in keys
    }
    stranger = _COMPUTED if author.computed else "no name of the author's is known for it"
    extra = {key: stranger for key in keys if author.listed and key not in author.states}
    unnamed = {name: why for name, why in author.unnamed.items() if name not in missing}
    if not author.listed:
        modules = {name.rpartition(".")[0] for name in author.names}
        unnamed |= {
            key: "the exporter numbered it, or computed it from weights"
            for key in keys
            if key not in author.names and key.rpartition(".")[0] not in modules
        }
    return {
        "listed": author.listed,
        "missing": missing,
        "unnamed": unnamed,
        "restored": {key: how for key, how in author.restored.items() if key in keys},
        "extra": extra,
    }


def _why_missing(author: Author, key: str) -> str:
    if author.computed is None:
        return "no node of the file uses it: the exporter left it out, or folded it into others"
    made = [name for name, keys in author.computed.items() if key in keys]
    if not made:
        return "no node of the file uses it: what was exported does not need it"
    others = f" and {len(made) - 1} more" if len(made) > 1 else ""
    return (
        f"the exporter computed {made[0]!r}{others} from it and left it out; torch.onnx.export(optimize=False) keeps it"
    )


class NamingReport(NamedTuple):
    """Which keys of the author's state_dict a module has, and where they were found.

    Attributes:
        listed: whether the file lists the author's parameters and buffers; if not, `missing` and `extra` are unknown
            and empty.
        missing: keys that the module lacks → why.
        extra: keys that only the module has → why.
        unnamed: other weights of the file without the author's name → why.
        restored: keys whose weights the file holds under another name, in another layout or folded → how they were
            found.
    """

    listed: bool
    missing: dict[str, str]
    extra: dict[str, str]
    unnamed: dict[str, str]
    restored: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether the author's module is known to load this module's state_dict strictly."""
        return self.listed and not self.missing and not self.extra

    def __str__(self) -> str:
        if self.ok:
            head = "state_dict has the author's keys, all of them and no other"
        elif self.listed:
            head = f"state_dict lacks {len(self.missing)} of the author's keys and has {len(self.extra)} others"
        else:
            head = "the file does not list the author's keys"
        parts = {"missing": self.missing, "not the author's": self.extra, "without a name": self.unnamed}
        lines = [
            f"  {title}: {shown_name(key)}: {shown_name(why)}"
            for title, found in parts.items()
            for key, why in found.items()
        ]
        restored = [f"  {len(self.restored)} keys were restored, see `restored`"] if self.restored else []
        return "\n".join([head, *lines, *restored])


def naming_report(module: Any) -> NamingReport:
    """Returns which keys of the author's state_dict a module that `load` gave has, and why others are missing.

    Args:
        module: an imported PyTorch module, also after copying or pickling.

    Raises:
        InputError: `load` did not make the module.
    """
    found = getattr(module, "meta", {}).get("onnx2nn", {}).get("naming")
    if found is None:
        raise InputError("The module is none that onnx2nn.load gave for PyTorch. It has no report on its names.")
    parts = {name: dict(found[name]) for name in ("missing", "extra", "unnamed", "restored")}
    return NamingReport(listed=bool(found["listed"]), **parts)
