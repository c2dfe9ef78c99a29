"""Saving: every ending reads back to the same numbers, and a file is complete or absent."""

import copy
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
import torch
from realmodels import export_dynamo, seeded
from saved_modules import names_of_ours
from torch import nn

import onnx2nn
from onnx2nn.errors import InputError, MissingDependencyError, VerificationError
from onnx2nn.ground.atomic_files import check_writable, replacing

ROOT = Path(__file__).resolve().parents[1]


class Shared(nn.Module):
    """Two layers with one weight, a buffer and an open batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("offset", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) + self.offset


class Flag(nn.Module):
    """Its outputs depend on its input in a way that tracing cannot see."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if float(x.sum()) > 0 else x - 1


@pytest.fixture
def module() -> Shared:
    torch.manual_seed(0)
    return Shared().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(1))


def _read_state(path: Path) -> nn.Module:
    from safetensors.torch import load_model

    fresh = Shared()
    load_model(fresh, path)
    return fresh


READERS: dict[str, Callable[[Path], nn.Module]] = {
    ".pth": lambda path: torch.load(path, weights_only=False),
    ".pt": lambda path: torch.load(path, weights_only=False),
    ".safetensors": _read_state,
    ".pt2": lambda path: torch.export.load(path).module(),
    ".torchscript": lambda path: torch.jit.load(path),
}


@pytest.mark.parametrize("ending", READERS)
def test_reads_back_equal(module: Shared, x: torch.Tensor, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{ending}"
    told = onnx2nn.save(module, path, example_inputs=[x])
    assert len(told.splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    torch.testing.assert_close(READERS[ending](path)(x), module(x), rtol=0, atol=0)


NMS = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[1, 5, 4] boxes, float[1, 1, 5] scores) => (int64[k, 3] y)
{ ["pick"] y = NonMaxSuppression(boxes, scores) }
"""
BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[3] x, bool flag) => (float[3] y)
{ y = If (flag) <then_branch = yes () => (float[3] a) { a = Neg(x) },
                 else_branch = no () => (float[3] b) { b = Exp(x) }> }
"""
GUARDED = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[n] x, float[n] z) => (float[m] y) { s = Shape(z) ["fit"] y = Reshape(x, s) }
"""
DOTTED = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[3] x_1) => (float[3] y) { y = Relu(x_1) }
"""


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        (NMS, {"NonMaxSuppression ('pick')"}),
        (BRANCHES, {"If"}),
        (GUARDED, {"onnx2nn::Require"}),
        (DOTTED, set()),
        (DOTTED.replace("x_1", '"x.1"'), {"RenameInputs"}),
    ],
)
def test_a_pickle_that_needs_onnx2nn_says_why(text: str, listed: set[str], tmp_path: Path) -> None:
    """What the pickle names of ours is what is listed."""
    path = tmp_path / "model.pth"
    told = onnx2nn.save(onnx2nn.load(onnx.parser.parse_model(text)), path)
    assert len(told.splitlines()) == 1
    found = told.partition("torch has no ")[2]
    assert set(filter(None, found.split(", "))) == listed
    functions = {name.split(" ")[0].replace("::", "__") for name in listed}
    assert {name.split(" ")[1] for name in names_of_ours(path)} == functions


class Positions(nn.Module):
    """Buffers in no state_dict: one of a block's, one of the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("steps", torch.linspace(0.1, 1, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.steps)


class Around(nn.Module):
    """A block and a buffer around it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Positions()
        self.register_buffer("scale", torch.linspace(1, 2, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) / self.scale


def _pickled(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [_pickled, copy.deepcopy, copy.copy, lambda m: copy.deepcopy(_pickled(m)), lambda m: _pickled(copy.deepcopy(m))],
    ids=["pickle", "deepcopy", "copy", "deepcopy of a pickle", "pickle of a deepcopy"],
)
@pytest.mark.parametrize("path", ["", "block"])
def test_a_copy_has_the_same_state(copied: Callable[[nn.Module], nn.Module], path: str) -> None:
    """torch makes all buffers of a GraphModule persistent."""
    module = onnx2nn.load(export_dynamo("state-of-copies", seeded(Around), (torch.randn(2, 4),)))
    assert {"block.steps", "scale"} == {name for name, _ in module.named_buffers()}
    module = module.get_submodule(path)
    again = copied(module)
    assert list(again.state_dict()) == list(module.state_dict())
    assert not {name for name, _ in again.named_buffers()} & again.state_dict().keys()
    assert [name for name, _ in again.named_buffers()] == [name for name, _ in module.named_buffers()]
    x = torch.randn(2, 4)
    torch.testing.assert_close(again(x), module(x), rtol=0, atol=0)


def test_weight_used_twice_is_stored_once(module: Shared, tmp_path: Path) -> None:
    onnx2nn.save(module, tmp_path / "model.safetensors")
    numbers = sum(p.numel() for p in module.parameters()) + 4
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * numbers + 1000
    fresh = _read_state(tmp_path / "model.safetensors")
    assert fresh.first.weight is fresh.second.weight


def test_program_keeps_the_batch_open(module: Shared, x: torch.Tensor, tmp_path: Path) -> None:
    told = onnx2nn.save(module, tmp_path / "open.pt2", example_inputs=[x], dynamic_axes=[{0: "batch"}])
    assert "dynamic: batch (axis 0 of x)" in told
    larger = torch.randn(7, 4)
    torch.testing.assert_close(torch.export.load(tmp_path / "open.pt2").module()(larger), module(larger))


def test_program_of_an_import_has_the_dynamic_dimensions_of_its_file(tmp_path: Path) -> None:
    """An LSTM's too, of which torch.export alone repeats the example's steps."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[steps, n, 3] x, float[1, m, 2] h) => (float[steps, 1, n, 2] y)
        { y = LSTM <hidden_size = 2> (x, w, r, , , h) }
    """)
    random = np.random.default_rng(0)
    for name, shape in (("w", (1, 8, 3)), ("r", (1, 8, 2))):
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    module, path = onnx2nn.load(model), tmp_path / "lstm.pt2"
    told = onnx2nn.save(module, path, example_inputs=[torch.randn(5, 3, 3), torch.randn(1, 3, 2)])
    assert "dynamic: steps (axis 0 of x), n (axis 1 of x)" in told and "fixed" not in told
    program = torch.export.load(path).module()
    for steps, batch in ((5, 3), (9, 2), (1, 4)):
        given = torch.randn(steps, batch, 3), torch.randn(1, batch, 2)
        torch.testing.assert_close(program(*given), module(*given))
    told = onnx2nn.save(module, path, example_inputs=given, dynamic_axes=[{}, {}])
    assert "dynamic: nothing" in told


def test_program_says_what_it_had_to_fix(x: torch.Tensor, tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 2, 2)

    told = onnx2nn.save(Fixed(), tmp_path / "fixed.pt2", example_inputs=[x], dynamic_axes=[{0: "batch"}])
    assert "fixed although dynamic in the file: batch (axis 0 of x)" in told


class Halves(nn.Module):
    """Takes the first half of a padded input, so that torch asks whether a slice is the whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(x, (0, 1))[:, ::2][:, : (x.size(1) + 1) // 2] + 1


@pytest.mark.parametrize("length", [8, 9])
def test_program_of_a_slice_takes_all_sizes(length: int, tmp_path: Path) -> None:
    path, sizes = tmp_path / "halves.pt2", [{0: "batch", 1: "length"}]
    told = onnx2nn.save(Halves(), path, example_inputs=[torch.randn(2, length)], dynamic_axes=sizes)
    assert "refuses" not in told
    program = torch.export.load(path).module()
    for shape in itertools.product((1, 2, 5), (1, 2, 3, 8, 9, 100)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), Halves()(x), rtol=0, atol=0)


def test_program_says_which_sizes_it_refuses(tmp_path: Path) -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([row.cumsum(0) for row in x[: x.shape[0] - x.shape[0] % 4].reshape(-1, 4).unbind(0)])

    path = tmp_path / "rows.pt2"
    told = onnx2nn.save(Rows(), path, example_inputs=[torch.randn(13)], dynamic_axes=[{0: "length"}])
    program = torch.export.load(path).module()
    refused = told.partition("it refuses sizes without ")[2]
    assert refused
    for length in (8, 17):
        with pytest.raises(AssertionError) as caught:
            program(torch.randn(length))
        assert str(caught.value).removeprefix("Guard failed: ") in refused


@pytest.mark.parametrize("ending", [".pt2", ".torchscript"])
def test_tracing_needs_examples(module: Shared, ending: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs example inputs"):
        onnx2nn.save(module, tmp_path / f"model{ending}")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_said(x: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"torch\.export cannot export"):
        onnx2nn.save(Flag(), tmp_path / "model.pt2", example_inputs=[x])
    assert not list(tmp_path.iterdir())


def test_traced_module_that_computes_something_else_is_not_written(tmp_path: Path) -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Counting.calls += 1
            return x + Counting.calls

    with pytest.raises(VerificationError, match="differs from the module"):
        onnx2nn.save(Counting(), tmp_path / "model.torchscript", example_inputs=[torch.zeros(2)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.onnx", "model", "model.pth.gz"])
def test_unknown_ending(module: Shared, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"its ending is none of \.pth, \.pt, "):
        onnx2nn.save(module, tmp_path / name)


def test_a_folder_loads_without_onnx2nn(tmp_path: Path) -> None:
    """A fresh process, to which onnx2nn is not installed, gets the outputs bit by bit."""
    folder = tmp_path / "made" / "hub"
    module = onnx2nn.load(ROOT / "examples/digits/digits.onnx")
    image = torch.rand(3, 8, 8, 1, generator=torch.Generator().manual_seed(0)) * 16
    line = onnx2nn.save(module, f"{folder}/", example_inputs=[image])
    assert str(folder) in line and "\n" not in line
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.py", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text())
    assert config["inputs"] == [{"name": "image", "dtype": "FLOAT", "shape": ["batch", 8, 8, 1]}]
    assert config["outputs"] == ["probability"]
    torch.save((image, module(image).detach()), tmp_path / "expected.pt")
    code = (
        "import sys; sys.modules['onnx2nn'] = None\n"
        "import torch; from model import load_model\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"  # more threads add in another order
        f"x, y = torch.load({str(tmp_path / 'expected.pt')!r})\n"
        "assert torch.equal(load_model()(x), y)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no record of its ONNX file"):
        onnx2nn.save(nn.Linear(2, 2), f"{tmp_path}/new/")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("target", ["m.pth", "m.safetensors", "m.pt2", "m.torchscript", "m/"])
def test_others_may_read_what_is_saved(target: str, tmp_path: Path) -> None:
    """Files have the permissions of any new file; safetensors' own writer makes them for the user alone."""
    module = onnx2nn.load(ROOT / "examples/digits/digits.onnx")
    onnx2nn.save(module, f"{tmp_path}/{target}", example_inputs=[torch.zeros(2, 8, 8, 1)])
    (tmp_path / "plain").touch()
    modes = {path.name: path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()}
    assert len(modes) > 1 and set(modes.values()) == {modes["plain"]}, modes


def test_types_that_safetensors_lack_are_named(tmp_path: Path) -> None:
    module = onnx2nn.load(ROOT / "examples/digits/digits.onnx")
    module.register_buffer("w", torch.ones(2, dtype=torch.complex128))
    with pytest.raises(InputError, match=r"cannot hold these types[^\n]*\n  w: torch\.complex128"):
        onnx2nn.save(module, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_unwritable_targets(module: Shared, tmp_path: Path) -> None:
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(InputError, match="it is a folder"):
        onnx2nn.save(module, tmp_path / "folder.pth")
    with pytest.raises(InputError, match="there is no folder"):
        onnx2nn.save(module, tmp_path / "missing" / "model.pth")
    with pytest.raises(InputError, match="Cannot write"):
        check_writable("/proc/model.pth")


class Turned(nn.Module):
    """Two weights in one memory, of which the second has it in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.turned = nn.Parameter(self.plain.data.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.plain @ self.turned


def test_weights_in_other_layouts(tmp_path: Path) -> None:
    """A layout is no part of safetensors; it is refused where another weight has the memory in its own."""
    from safetensors.torch import load_file

    images = onnx2nn.load(ROOT / "examples/digits/digits.onnx").to(memory_format=torch.channels_last)
    assert not all(value.is_contiguous() for value in images.state_dict().values())
    onnx2nn.save(images, tmp_path / "images.safetensors")
    fresh = load_file(tmp_path / "images.safetensors")
    for key, value in images.state_dict().items():
        torch.testing.assert_close(fresh[key], value, rtol=0, atol=0)
    with pytest.raises(VerificationError, match="the memory of another one in another layout: 'turned'"):
        onnx2nn.save(Turned(), tmp_path / "turned.safetensors")


def test_missing_safetensors_is_named(module: Shared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "onnx2nn\[torch\]"'):
        onnx2nn.save(module, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_failure_leaves_the_old_file(error: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_text("old")
    with pytest.raises(error), replacing(target) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_success_replaces_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_text("old")
    with replacing(target) as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".bin"
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link.bin", tmp_path / "folder" / "file.bin"
    link.symlink_to(target)
    check_writable(link)
    for text in ("old", "new"):
        with replacing(link) as temporary:
            temporary.write_text(text)
        assert link.is_symlink() and target.read_text() == text
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "folder", target, link]


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="no regular file"):
        check_writable(pipe)
    with pytest.raises(InputError, match="no regular file"), replacing(pipe) as temporary:
        temporary.write_text("text")
    assert pipe.is_fifo()


def test_full_disk_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="No space left on device"),
        replacing(tmp_path / "file.bin"),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"x")
    assert not list(tmp_path.iterdir())
