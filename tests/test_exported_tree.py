"""`export_onnx` writes the tree of modules into the file: the next import has the same one."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import hypothesis.strategies as st
import onnx
import pytest
import torch
from hypothesis import example, given
from realmodels import EXPORTERS, Tensors, check_same, require_transformers, run, seeded
from tiers import mostly_slow
from torch import nn

import onnx2nn
from onnx2nn.fx.blocks.scopes import parsed_list
from onnx2nn.provenance.exporter_metadata import CLASSES, SCOPES


class Scale(nn.Module):
    """A module without weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x.mean(1, keepdim=True)) + 1


class Residual(nn.Module):
    """A block with two arguments that calls one activation twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(8, 16), nn.ReLU6(), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.act(x + self.second(self.act(self.first(x))) * scale)


class Nested(nn.Module):
    """A list of blocks, a module without weights, a Sequential in a Sequential, and functions of no module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.blocks = nn.ModuleList(Residual() for _ in range(2))
        self.head = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.Hardswish(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.scale(x)
        for block in self.blocks:
            x = block(x, scale)
        return torch.sigmoid(self.head(x)) - 0.5


def _inputs(batch: int) -> Tensors:
    return (torch.randn(batch, 8, generator=torch.Generator().manual_seed(batch)),)


def _path(exporter: str) -> Path:
    return EXPORTERS[exporter]("exported-tree", seeded(Nested), _inputs(2), _inputs(3))


def tree(module: nn.Module) -> list[tuple[str, str]]:
    """Returns the paths of all modules with their classes, whose homes are left out where they are made up."""
    homes = {
        name: "torch.nn" if type(m).__module__.startswith("torch.nn") else "" for name, m in module.named_modules()
    }
    return [(name, f"{homes[name]} {type(m).__name__}") for name, m in module.named_modules()]


def _check_again(module: nn.Module, path: Path, inputs: Tensors) -> nn.Module:
    again = onnx2nn.load(path)
    assert tree(again) == tree(module)
    assert list(again.state_dict()) == list(module.state_dict())
    check_same(run(again, inputs), run(module, inputs), "imported again")
    return again


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_the_next_import_has_the_same_tree(exporter: str, tmp_path: Path) -> None:
    """The first time, and the second; blocks have the same programs."""
    module = first = onnx2nn.load(_path(exporter))
    for count in range(2):
        path = tmp_path / f"{count}.onnx"
        onnx2nn.export_onnx(module, path)
        module = _check_again(module, path, _inputs(5))
    assert [type(m) for m in module.modules()] == [type(m) for m in first.modules()]
    assert {"blocks.0", "head", "head.0", "scale"} <= module.meta["onnx2nn"]["tree"]["blocks"].keys()


def test_an_unpickled_module_has_its_tree(tmp_path: Path) -> None:
    """A pickle has no names of nodes, but the tree."""
    module = onnx2nn.load(_path("dynamo"))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    onnx2nn.export_onnx(read, tmp_path / "again.onnx", example_inputs=_inputs(2))
    _check_again(module, tmp_path / "again.onnx", _inputs(5))


def test_the_metadata_is_that_of_torchs_exporter(tmp_path: Path) -> None:
    """The nodes that read a weight have the scopes and classes that torch's exporter wrote, apart from the root's."""
    file = _path("dynamo")
    onnx2nn.export_onnx(onnx2nn.load(file), tmp_path / "again.onnx")
    theirs, ours = (_notes(onnx.load(path)) for path in (file, tmp_path / "again.onnx"))
    assert ours == theirs
    assert (
        "['', 'blocks.0', 'blocks.0.first']",
        f"'{Residual.__module__}.Residual', 'torch.nn.modules.linear.Linear'",
    ) in [*ours.values()]


def _notes(model: onnx.ModelProto) -> dict[str, tuple[str, str]]:
    """Returns the modules around the nodes that read weights, by weight, and their classes without that of the root."""
    found = {}
    for node in model.graph.node:
        props = {prop.key: prop.value for prop in node.metadata_props}
        if SCOPES in props and CLASSES in props:
            scopes, classes = (props[key][1:-1].split(", ") for key in (SCOPES, CLASSES))
            for name in node.input:
                if name.endswith("bias"):
                    found[name] = f"[{', '.join(scopes[:-1])}]", ", ".join(classes[1:-1])
    return found


MODELS = ["resnet18", "mobilenet_v2", "vit", "unet", "lstm", "bert", "llama", "gpt2"]
PAIRS = [(name, exporter) for name in MODELS for exporter in sorted(EXPORTERS)]


@pytest.mark.parametrize(("name", "exporter"), mostly_slow(PAIRS, []))
def test_models(name: str, exporter: str, tmp_path: Path) -> None:
    """Every kind of network, whose operators the exporter decomposes."""
    if name in ("bert", "llama", "gpt2"):
        require_transformers()
    from tests.ecosystem.subjects.subject import SUBJECTS  # its torchvision is not everywhere

    module = SUBJECTS[name].imported(exporter)
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    _check_again(module, tmp_path / "again.onnx", SUBJECTS[name].inputs(2))


_TEXTS = st.lists(st.text(alphabet=st.characters() | st.sampled_from("',\"\\[] .\n\0"))).map(repr)
_ANYTHING = st.text(alphabet=st.sampled_from("[]',\" ab1\\\n\0"))


@given(_TEXTS | _ANYTHING)
@example("['', 'layer1', 'layer1.0', 'linear']")
@example("['']")
@example("[']")
@example("[1, None]")
def test_lists_of_exporters_are_read_as_python_reads_them(text: str) -> None:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = ()
    assert parsed_list(text) == (tuple(map(str, found)) if isinstance(found, list) else ())
