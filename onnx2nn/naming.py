"""Module tree and parameter names: paths of identifiers, made from the names that an ONNX file holds."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Sequence

_SEPARATORS = re.compile(r"[./]|::")
_ILLEGAL = re.compile(r"\W", re.ASCII)


def identifier(name: str) -> str:
    """Returns `name` with every character that Python does not take replaced, never empty and never a keyword."""
    name = _ILLEGAL.sub("_", name)
    if not name or name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _segment(name: str) -> str:
    """Returns one step of a module path; digits alone stay, as in `layer1.0.conv1`."""
    return name if name.isdecimal() and name.isascii() else identifier(name)


def split_path(name: str) -> list[str]:
    """Returns the steps of the module path that a name from the file stands for.

    `layer1.0.conv1.weight` and `layer1/0/conv1/weight` both give four steps. A step that only repeats its parent's
    path, as torch.onnx writes them (`/layer1/layer1.0/conv1/Conv`), is reduced to what it adds (`0`).
    """
    if "/" in name:
        steps: list[str] = []
        for scope in filter(None, name.split("/")):
            prefix = f"{steps[-1]}." if steps else None
            if prefix and scope.startswith(prefix) and len(scope) > len(prefix):
                steps += [part for part in scope[len(prefix) :].split(".") if part]
            elif scope.endswith(":0"):
                steps.append(scope[:-2])
            else:
                steps += [part for part in scope.split(".") if part]
    else:
        steps = [part for part in _SEPARATORS.split(name) if part]
    return [_segment(step) for step in steps] or ["_"]


class Names:
    """Gives out dotted paths in one module tree; no path is given twice, and none runs through another's leaf.

    Args:
        taken: names that every module has already, such as `training` and `forward`; a step never gets one.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = frozenset(taken)
        self._leaves: set[str] = set()
        self._containers: set[str] = set()

    def claim(self, steps: Sequence[str]) -> str:
        """Returns the path `steps` joined by dots, its last step numbered where it is taken, and marks it as a leaf."""
        steps = [f"{step}_" if step in self._taken else step for step in steps]
        for end in range(1, len(steps)):
            while ".".join(steps[:end]) in self._leaves:
                steps[end - 1] += "_"
            self._containers.add(".".join(steps[:end]))
        path = wanted = ".".join(steps)
        number = 0
        while path in self._leaves or path in self._containers:
            number += 1
            path = f"{wanted}_{number}"
        self._leaves.add(path)
        return path
