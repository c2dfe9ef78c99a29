"""The file `model.py`: imports, classes and `load_model`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnx2nn.control_flow import CONTROL_FLOW
from onnx2nn.layers import LAYERS
from onnx2nn.output.python_source.batches import batched
from onnx2nn.output.python_source.class_bodies import Kind
from onnx2nn.output.python_source.expressions import WIDTH, Collection, Text, lines, literal
from onnx2nn.output.python_source.inlining import Inlined
from onnx2nn.output.python_source.program import Program
from onnx2nn.output.python_source.render import class_names, render
from onnx2nn.searches import SEARCHES
from onnx2nn.unfreeze.vectorised import Arrangement

_OWN: tuple[Callable[..., Any], ...] = (*LAYERS, *CONTROL_FLOW, *SEARCHES)
"""Classes and functions whose text a file may hold, each behind the others that its text names."""

_LOAD = '''\
def load_model(path: str | Path = WEIGHTS) -> {name}:
    """Return the model with its weights, in eval mode."""
    model = {name}()
    weights = load_file(path)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(weights[name]){freeze}
    return model.eval()
'''


def document(
    program: Program, kinds: list[Kind], arrangement: Arrangement | None = None, weights: str = "weights.safetensors"
) -> str:
    """Returns the text of the file for the classes of a program, the model's own the last.

    Args:
        program: the program.
        kinds: the classes.
        arrangement: where the samples of a batch are, for a program of one sample that runs on each of them.
        weights: name of the file of the weights.
    """
    taken = [*program.inlined.names.values(), *program.inlined.functions.values()]
    names = class_names(kinds, dict(program.all_class_names()), taken)
    classes = [render(kind, names, kinds) for kind in kinds]
    inlined = [program.inlined.text()] if program.inlined.texts else []
    classes = [*inlined, *_own(classes), *classes]
    frozen = {id(p) for p in program.root.parameters() if not p.requires_grad}
    layers = [program.module(path) for path in program.layers]
    inside = {id(p) for layer in layers for p in layer.parameters()} & frozen
    if not inside:
        freeze = ""
    elif len(frozen) == len({id(p) for p in program.root.parameters()}):
        freeze = "\n    model.requires_grad_(False)"
    else:
        listed = [name for name, parameter in program.root.named_parameters() if id(parameter) in inside]
        freeze = "\n    for name in FROZEN:\n        model.get_parameter(name).requires_grad_(False)"
        names_of_frozen = Collection("()", tuple(Text(literal(name)) for name in listed))
        classes.insert(0, "\n".join(lines("FROZEN = ", names_of_frozen, "", 0)))
    name = names[-1]
    if arrangement is not None:
        classes.append(batched(name, arrangement))
        name = f"Batched{name}"
    text = "\n\n\n".join([*classes, _LOAD.format(name=name, freeze=freeze)])
    return f"{_head(name, text, program.inlined, weights)}\n\n\n{text}"


def _own(classes: Sequence[str]) -> list[str]:
    """Returns the texts of layers, control flow and searches that classes name, or that these name in turn."""
    found: list[str] = []
    for kind in reversed(_OWN):
        if any(re.search(rf"\b{kind.__name__}\(", text) for text in (*classes, *found)):
            found.insert(0, inspect.getsource(kind).rstrip())
    return found


def _head(name: str, text: str, inlined: Inlined, weights: str) -> str:
    imports = {
        *inlined.imports,
        ("torch", ""),
        ("safetensors.torch", "load_file"),
        ("pathlib", "Path"),
        ("torch", "nn"),
    }
    imports |= {(module, "") for module in ("math", "operator", "types") if re.search(rf"\b{module}\.", text)}
    imports |= {("collections", "OrderedDict")} if "OrderedDict(" in text else set()
    imports |= {("collections.abc", name) for name in ("Callable", "Sequence") if f"{name}[" in text}
    imports |= {("typing", "Any")} if re.search(r"\bAny\b", text) else set()
    imports |= {("torch", "Tensor")} if re.search(r"(?<!torch\.)\bTensor\b", text) else set()
    imports |= {("torch.nn", "functional as F")} if re.search(r"\bF\.", text.replace(inlined.text(), "")) else set()
    copied = any(f"class {kind.__name__}(" in text for kind in _OWN)  # from files with this import
    standard = {module for module, _ in imports if module.split(".")[0] in sys.stdlib_module_names}
    blocks = [[entry for entry in imports if (entry[0] in standard) is first] for first in (True, False)]
    return "\n".join(
        [
            f'"""{name}, from an ONNX model; its weights are in {weights}."""',
            *(["", "from __future__ import annotations"] if inlined.texts or copied else []),
            *(line for block in blocks for line in ["", *_imports(block)]),
            "",
            f'WEIGHTS = Path(__file__).with_name("{weights}")',
        ]
    )


def _imports(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Returns import statements in the order that ruff wants; an entry is a module and a name of it or `""`."""
    names: dict[str, list[str]] = {}
    for module, name in sorted(entries, key=lambda entry: (entry[0], entry[1].lower())):
        names.setdefault(module, []).extend([name] if name else [])
    whole = [f"import {module}" for module, name in sorted(entries) if not name]
    parts = [(module, sorted(found, key=_place)) for module, found in names.items() if found]
    return [*whole, *(line for module, found in parts for line in _import_from(module, found))]


def _place(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)


def _import_from(module: str, names: list[str]) -> list[str]:
    whole = f"from {module} import {', '.join(names)}"
    return [whole] if len(whole) <= WIDTH else [f"from {module} import (", *(f"    {name}," for name in names), ")"]
