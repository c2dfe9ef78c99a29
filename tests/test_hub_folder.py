"""A saved folder goes to Hugging Face's hub, played by a server on this machine, and is used from there."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import Hub, standing_in
from torch import nn

import onnx2nn

REPOSITORY = "org/digits"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with standing_in(monkeypatch, tmp_path / "cache") as hub:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage has a protocol of its own
        yield hub


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer too, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        self.norm.running_mean.copy_(torch.linspace(-1, 1, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(tokens)))


def saved(name: str, folder: Path) -> tuple[nn.Module, torch.Tensor]:
    """Returns an import whose folder was written, and an input."""
    torch.manual_seed(0)
    if name == "digits":
        module = onnx2nn.load(Path(__file__).resolve().parents[1] / "examples/digits/digits.onnx")
        example = 16 * torch.rand(2, 8, 8, 1)
    else:
        example = torch.arange(4)
        path = folder.parent / "tied.onnx"
        torch.onnx.export(Tied().eval(), (example,), path, dynamo=True, optimize=False, verbose=False)
        module = onnx2nn.load(path)
    onnx2nn.save(module, f"{folder}/", example_inputs=[example])
    return module, example


def pretrained_class(folder: Path) -> Any:
    """Returns what docs/remote.md shows: the class in a folder's source with the hub's methods."""
    from huggingface_hub import PyTorchModelHubMixin

    source = runpy.run_path(str(folder / "model.py"))
    return type("Pretrained", (source["Model"], PyTorchModelHubMixin), {})


@pytest.mark.parametrize("name", ["digits", "tied"])
def test_a_folder_goes_to_the_hub_and_comes_back(name: str, hub: Hub, tmp_path: Path) -> None:
    from huggingface_hub import HfApi, hf_hub_download

    folder = tmp_path / "folder"
    module, example = saved(name, folder)
    api = HfApi(token="hf_of_a_test")
    api.create_repo(REPOSITORY)
    commit = api.upload_folder(repo_id=REPOSITORY, folder_path=folder)
    assert commit.oid in commit.commit_url
    assert hub.names(REPOSITORY) == {"model.py", "model.safetensors", "config.json"}
    for path in hub.names(REPOSITORY):
        assert Path(hf_hub_download(REPOSITORY, path)).read_bytes() == (folder / path).read_bytes()
    again = pretrained_class(folder).from_pretrained(REPOSITORY)
    assert not again.training
    torch.testing.assert_close(again(example), module(example), rtol=0, atol=0)
    assert again._hub_mixin_config == json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", ["digits", "tied"])
def test_a_class_of_the_source_pushes_itself(name: str, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    module, example = saved(name, folder)
    kind = pretrained_class(folder)
    model = kind.from_pretrained(folder)
    with torch.no_grad():
        next(model.parameters()).add_(0.25)  # as a training does
    model.push_to_hub("org/tuned", token="hf_of_a_test")
    assert hub.names("org/tuned") == {"model.safetensors", "config.json", "README.md"}
    again = kind.from_pretrained("org/tuned")
    torch.testing.assert_close(again(example), model(example), rtol=0, atol=0)
    assert not torch.equal(again(example), module(example))
    config = (hub.files["org/tuned", hub.revisions["main"], "config.json"]).decode()
    assert json.loads(config) == json.loads((folder / "config.json").read_text())
