"""What the table says of a tool, a model and an exporter."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import logging
import pkgutil
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tests.ecosystem import tools
from tests.ecosystem.observing import difference, outputs_of
from tests.ecosystem.stored import DIFFERS, FAILS, ORIGINAL_FAILS, SAME, Cell, Tool
from tests.ecosystem.subjects.subject import SUBJECTS
from tests.realmodels import EXPORTERS


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes fresh modules, in other processes too.

    Attributes:
        subject: name of the model.
        exporter: of the file that is imported, `""` for the original.
    """

    subject: str
    exporter: str = ""

    def __call__(self) -> nn.Module:
        """Returns the original or an import."""
        subject = SUBJECTS[self.subject]
        return subject.imported(self.exporter) if self.exporter else subject.original()


def tool_names() -> list[str]:
    """Returns the names of all tools, which are modules of `tests.ecosystem.tools`."""
    return sorted(module.name for module in pkgutil.iter_modules(tools.__path__))


@functools.cache
def tool(name: str) -> ModuleType:
    """Returns the module of a tool."""
    return importlib.import_module(f"{tools.__name__}.{name}")


def described(name: str) -> Tool:
    """Returns what a tool's module says of it, the sentence being the first line of its docstring."""
    module = tool(name)
    text = (module.__doc__ or "").strip().splitlines()[0]
    return Tool(module.TITLE, text, getattr(module, "PACKAGES", ()), getattr(module, "HELD", False))


def pairs() -> list[tuple[str, str]]:
    """Returns the names of every tool and of the models that it is used on."""
    found = []
    for name in tool_names():
        applies = getattr(tool(name), "applies", lambda _: True)
        found += [(name, subject.name) for subject in SUBJECTS.values() if applies(subject)]
    return found


def cells(name: str, model: str) -> dict[str, Cell]:
    """Uses a tool on a model and on its imports.

    Args:
        name: of the tool.
        model: name of the subject.

    Returns:
        A cell by exporter.
    """
    try:
        expected = _use(name, Maker(model))
    except Exception as error:  # whatever a tool raises on the original is what the cell says
        return dict.fromkeys(EXPORTERS, Cell(ORIGINAL_FAILS, _in_words(error)))
    found = {}
    for exporter in EXPORTERS:
        SUBJECTS[model].file(exporter)  # an export that fails is no answer
        try:
            seen = _use(name, Maker(model, exporter))
        except Exception as error:  # likewise on the import
            found[exporter] = Cell(FAILS, _in_words(error))
        else:
            reason = difference(expected, seen)
            found[exporter] = Cell(DIFFERS, reason.strip(": ")) if reason else Cell(SAME)
    return found


def modules(model: str) -> dict[str, tuple[int, int]]:
    """Returns by exporter how many modules of the original run in the import, and how many run in the original."""
    expected = _running(Maker(model))
    return {exporter: (len(expected & _running(Maker(model, exporter))), len(expected)) for exporter in EXPORTERS}


def calls(model: str) -> dict[str, tuple[int, int, int]]:
    """Counts the calls of torch in one forward, with all modules that it calls, and the lines of programs.

    Returns:
        By exporter: how many calls with tensors as results the original makes and the import makes, and how many lines
        the longest program of a module in the import has.
    """
    original = _count(model, Maker(model)())
    found = {}
    for exporter in EXPORTERS:
        module = Maker(model, exporter)()
        programs = [inner.code for inner in module.modules() if isinstance(inner, fx.GraphModule)]
        lines = max(len(program.strip().splitlines()) for program in programs)
        found[exporter] = (original, _count(model, module), lines)
    return found


def _count(model: str, module: nn.Module) -> int:
    with _quiet(), torch.no_grad():
        inputs = SUBJECTS[model].inputs(2)
        module(*inputs)  # whose first call may prepare something
        with _Counting() as counting:
            module(*inputs)
    return counting.count


class _Counting(TorchFunctionMode):
    """Counts calls with tensors as results; the size, the type and the device of a tensor are none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result))
        return result


def _running(make: Maker) -> set[str]:
    found: set[str] = set()
    module = make()
    for name, inner in module.named_modules(remove_duplicate=False):
        inner.register_forward_hook(lambda *_, name=name: found.add(name))
    with _quiet():
        outputs_of(module, SUBJECTS[make.subject])
    return found


def _use(name: str, make: Maker) -> Any:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.compiler.reset()
    with _quiet():
        return tool(name).use(make, SUBJECTS[make.subject])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tools print tables and warn; what they say is in what `use` returns."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _in_words(error: Exception) -> str:
    """Returns the type and the first line of an error, without paths of this machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {lines[0]}")
    return text.replace(str(Path(__file__).parents[2]), "…")[:160]
