"""Module tree and parameter names: paths of identifiers, made from the names that an ONNX file holds."""

from __future__ import annotations

import functools
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

_SEPARATORS = re.compile(r"[./]|::")
_NUMBER_DOT = re.compile(r"(?<=\d)\.(?=\d+[^\W\d])")
"""The dot of a number in a name, as in `mobilenetv2_0.35_96`; a dot as in `layer1.0` separates two steps."""

DEEPEST = 64
"""The most steps of a path; torch and Python walk a tree of modules by functions that call themselves."""

_ILLEGAL = re.compile(r"\W", re.ASCII)


_FUSIONS = re.compile(r"(?<=[^/])(/\w+Fusion/)+$")
"""What ONNX Runtime adds to the name of a node that it fuses with others, as in `/layer/MatMul/MatMulScaleFusion/`."""

_CALL_NUMBER = re.compile(r"_[1-9]\d*$")


def identifier(name: str) -> str:
    """Returns `name` as an identifier: illegal characters replaced, never empty and never a keyword."""
    if not (name.isascii() and name.isidentifier()):
        name = _ILLEGAL.sub("_", name)
        if not name or name[0].isdigit():
            name = f"_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


@functools.lru_cache(1 << 12)
def is_plain(path: str) -> bool:
    """Returns whether torch may write the steps of a dotted path into code, which it does without escapes.

    `"` would end the text of `getattr(self, "...")`, so that the rest of a name would run; Python normalises
    identifiers that are not ASCII.
    """
    if not path.isprintable() or '"' in path or "\\" in path:
        return False
    return path.isascii() or not any(
        step.isidentifier() and unicodedata.normalize("NFKC", step) != step for step in path.split(".")
    )


def is_writable(path: str) -> bool:
    """Returns whether programs may hold a dotted path as it is: it is plain, and has at most `DEEPEST` steps."""
    return path.count(".") < DEEPEST and is_plain(path)


@functools.lru_cache(1 << 12)
def is_attribute(name: str) -> bool:
    """Returns whether a name can be written after a dot, or for a parameter; Python normalises what is not ASCII."""
    if not name.isidentifier() or keyword.iskeyword(name):
        return False
    return name.isascii() or unicodedata.normalize("NFKC", name) == name


def without_call_number(path: str) -> str:
    """Returns the path of a module, or its name, which torch's older exporter numbers in its calls after the first.

    `layer_1` and `layer_2` are calls of `layer`; `layer_0` is a name.
    """
    return _CALL_NUMBER.sub("", path)


def _segment(name: str) -> str:
    """Returns one step of a module path; a step of digits alone stays, as in `layer1.0.conv1`."""
    return name if name.isdecimal() and name.isascii() else identifier(name)


def split_scopes(name: str) -> list[str]:
    """Returns the steps of the module path in a slashed name, as they are written there.

    Scopes of torch.onnx repeat the scope before them (`/layer1/layer1.0/layer1.0.conv/Conv`); only the added steps
    (`0`, `conv`) are returned.
    """
    steps: list[str] = []
    name = _FUSIONS.sub("", name)
    before, of_torch = "", name.startswith("/")  # whose names have dots between steps alone: `layers0.0_1`
    for scope in filter(None, name.split("/")):
        if before and scope.startswith(f"{before}.") and len(scope) > len(before) + 1:
            added = scope[len(before) + 1 :]
        else:
            added = scope.removesuffix(":0")
        if not of_torch:
            added = _NUMBER_DOT.sub("_", added)
        steps += added.strip(".").split(".")
        before = scope
    return _bounded([step for step in steps if step])


def _bounded(steps: list[str]) -> list[str]:
    """Returns a path whose last steps are one, where it has too many."""
    return steps if len(steps) <= DEEPEST else [*steps[: DEEPEST - 1], "_".join(steps[DEEPEST - 1 :])]


_COPY = re.compile(r"^auto\.cast\.(?=\D)")
"""What paddle2onnx puts before the name of a weight of which it writes a cast."""


def split_path(name: str) -> list[str]:
    """Returns the steps of the module path in a name of the file.

    `layer1.0.conv1.weight` and `layer1/0/conv1/weight` both give four steps; see `split_scopes` for the latter.
    """
    if name.isidentifier():
        return [identifier(name)]
    name = _COPY.sub("", name)
    steps = split_scopes(name) if "/" in name else [part for part in _SEPARATORS.split(name) if part]
    return [_segment(step) for step in _bounded(steps)] or ["_"]


_GENERATED = re.compile(
    r"$|\d+$|val_|Constant|const_|scalar_tensor|constant(_\d+)?$|(auto\.cast|helper\.constant|p2o\..*)\.\d+$"
)


def is_generated(name: str) -> bool:
    """Returns whether an exporter generated an initializer's name, so that the author has no weight of that name."""
    return "::" in name or _GENERATED.match(name.rsplit("/", 1)[-1]) is not None


class Names:
    """Gives out dotted paths in one module tree: each path once, and none below another's last step.

    Args:
        taken: names of members of every module, such as `training` and `forward`; no step gets such a name.
        outer: names of further members of the outermost module.
    """

    def __init__(self, taken: Collection[str] = (), outer: Collection[str] = ()) -> None:
        self._taken = frozenset((*taken, *keyword.kwlist))  # torch.fx writes `self.in` for the path `in`
        self._outer = frozenset(outer)
        self._leaves: set[str] = set()
        self._reserved: set[str] = set()
        self._containers: set[str] = set()

    def _possible(self, steps: Sequence[str]) -> list[str]:
        """Returns `steps` with an underscore after the names of members and the keywords of Python."""
        if self._taken.isdisjoint(steps) and self._outer.isdisjoint(steps[:1]):
            return list(steps)
        first = [f"{step}_" if step in self._outer else step for step in steps[:1]]
        return [f"{step}_" if step in self._taken else step for step in (*first, *steps[1:])]

    def reserve(self, paths: Iterable[str]) -> None:
        """Keeps dotted paths for a claim with `own`."""
        for path in paths:
            self._reserved.add(path)
            while "." in path:
                path = path.rpartition(".")[0]
                self._containers.add(path)

    def claim(self, steps: Sequence[str], *, own: bool = False, module: bool = False) -> str:
        """Returns the path `steps` joined by dots, numbered where it is taken, and takes it.

        Args:
            steps: the steps.
            own: whether the path is reserved, or belongs to a module whose weights have reserved paths.
            module: whether the path belongs to such a module.
        """
        path = ".".join(steps)
        others = self._reserved if module else self._containers  # a file may have both `a` and `a.b`
        if own and path not in self._leaves and path not in others and steps == self._possible(steps):
            self._leaves.add(path)
            return path
        steps = self._possible(steps)
        end = 1
        while end < len(steps):
            if ".".join(steps[:end]) in self._leaves:  # beside a layer of this name, as a container would be no layer's
                steps[end - 1 : end + 1] = [identifier(f"{steps[end - 1]}_{steps[end]}")]
            else:
                self._containers.add(".".join(steps[:end]))
                end += 1
        path = wanted = ".".join(steps)
        number = 0
        while path in self._leaves or path in self._containers or path in self._reserved:
            number += 1
            path = f"{wanted}_{number}"
        self._leaves.add(path)
        return path
