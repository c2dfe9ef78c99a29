"""The file `model.py`: imports, classes and `load_model`."""

from __future__ import annotations

import inspect
import re

from onnx2nn.control_flow import CONTROL_FLOW
from onnx2nn.python_source.expressions import Collection, Text, lines, literal
from onnx2nn.python_source.kinds import Kind
from onnx2nn.python_source.program import Program
from onnx2nn.python_source.render import class_names, render

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


def document(program: Program, kinds: list[Kind]) -> str:
    """Returns the text of the file for the classes of a program, the model's own the last."""
    names = class_names(kinds, dict(program.all_class_names()))
    classes = [render(kind, names, kinds) for kind in kinds]
    used = [kind for kind in CONTROL_FLOW if any(re.search(rf"\b{kind.__name__}\(", text) for text in classes)]
    classes = [*(inspect.getsource(kind).rstrip() for kind in used), *classes]
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
    text = "\n\n\n".join([*classes, _LOAD.format(name=names[-1], freeze=freeze)])
    return f"{_head(names[-1], text)}\n\n\n{text}"


def _head(name: str, text: str) -> str:
    standard = [f"import {module}" for module in ("math", "operator") if re.search(rf"\b{module}\.", text)]
    standard += ["from collections import OrderedDict"] if "OrderedDict(" in text else []
    abstract = [name for name in ("Callable", "Sequence") if f"{name}[" in text]
    standard += [f"from collections.abc import {', '.join(abstract)}"] if abstract else []
    standard.append("from pathlib import Path")
    standard += ["from typing import Any"] if re.search(r"\bAny\b", text) else []
    torch = ["import torch", "from safetensors.torch import load_file"]
    torch.append(
        "from torch import Tensor, nn" if re.search(r"(?<!torch\.)\bTensor\b", text) else "from torch import nn"
    )
    torch += ["from torch.nn import functional as F"] if re.search(r"\bF\.", text) else []
    return "\n".join(
        [
            f'"""{name}, from an ONNX model; its weights are in weights.safetensors."""',
            "",
            *standard,
            "",
            *torch,
            "",
            'WEIGHTS = Path(__file__).with_name("weights.safetensors")',
        ]
    )
