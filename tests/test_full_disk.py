"""Writers whose disk is full, or that are interrupted: one line, a status, and nothing is left; an old file stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError
from onnx2nn.ground import atomic_files
from onnx2nn.ground.atomic_files import enduring, made_folder, replacing

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.onnx"
ENDINGS = ("pth", "safetensors", "pt2", "torchscript")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of the size of files")

WRITERS = f"""
import json, resource, sys, warnings
warnings.simplefilter("ignore")
import onnx2nn, torch
from onnx2nn.errors import Onnx2nnError

digits = {str(DIGITS)!r}
module = onnx2nn.load(digits, input_shapes={{"image": [1, 8, 8, 1]}})
example = [torch.rand(1, 8, 8, 1)]
nodes = onnx2nn.verify_nodes(digits, module, input_shapes={{"image": [1, 8, 8, 1]}})
writers = {{
    **{{ending: lambda ending=ending: onnx2nn.save(module, f"m.{{ending}}", example_inputs=example)
       for ending in {ENDINGS!r}}},
    "source": lambda: onnx2nn.to_python(module, "new/source"),
    "export": lambda: onnx2nn.export_onnx(module, "m.onnx"),
    "repro": lambda: nodes.write_repro("repro", nodes.nodes[1].output),
    "simplified": lambda: onnx2nn.simplify(digits).save("s.onnx"),
    "ncnn": lambda: onnx2nn.to_ncnn(module, "ncnn", name="m", example_inputs=example),
}}
found = {{}}
for name in sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))  # Python ignores the signal: EFBIG
    try:
        writers[name]()
        found[name] = "written"
    except Onnx2nnError as error:
        found[name] = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(found))
"""


def written(names: list[str], folder: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, *names], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_full_disk_under_every_writer(tmp_path: Path) -> None:
    """torch's writers in C++ end the process where a write fails, in an object's destructor."""
    (tmp_path / "m.pth").write_bytes(b"old")
    names = [*ENDINGS, "source", "export", "repro"]
    found = written(names, tmp_path)
    assert {name: text for name, text in found.items() if not text.startswith("Cannot write ")} == {}
    assert all("File too large" in text and "\n" not in text for text in found.values())
    assert [path.name for path in tmp_path.rglob("*")] == ["m.pth"]
    assert (tmp_path / "m.pth").read_bytes() == b"old"


@pytest.mark.parametrize(("name", "package"), [("simplified", "onnxsim"), ("ncnn", "pnnx")])
def test_a_full_disk_under_other_programs(name: str, package: str, tmp_path: Path) -> None:
    """The limit holds for their processes too: either of the two says that it could not write."""
    pytest.importorskip(package, reason="the extra is not installed")
    assert written([name], tmp_path)[name] != "written" or name == "simplified"
    assert [*tmp_path.rglob("*")] == []


def test_a_command_on_a_full_disk(tmp_path: Path) -> None:
    run = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    run += "from onnx2nn.commands.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", run, "convert", str(DIGITS), "m.torchscript", "--python", "source"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stderr == "onnx2nn: error: Cannot write m.torchscript: File too large\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interrupt_during_a_write(
    ending: str,
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The signal arrives inside a write, below torch's writer."""
    if ending == "safetensors":
        import safetensors.torch

        monkeypatch.setattr(safetensors.torch, "save_model", lambda *_: signal.raise_signal(number))
    write = atomic_files._EnduringFile.write_some

    def interrupted(self: Any, data: memoryview) -> int:
        if self.tell() + len(data) > 5000:
            signal.raise_signal(number)
        return write(self, data)

    monkeypatch.setattr(atomic_files._EnduringFile, "write_some", interrupted)
    target = tmp_path / f"m.{ending}"
    target.write_bytes(b"old")
    status = main(["convert", str(DIGITS), str(target)])
    assert status == (130 if number == signal.SIGINT else 2)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_what_a_write_meets_is_raised_at_the_end(error: BaseException, tmp_path: Path) -> None:
    def fail(*_: object) -> int:
        raise error

    with pytest.raises(type(error)), enduring(tmp_path / "file") as file:
        file.write(b"before")
        file.write_some = fail  # type: ignore[attr-defined]  # of the class behind it
        for _ in range(3):
            assert file.write(torch.zeros(10).numpy()) == 40
    assert (tmp_path / "file").read_bytes() == b"before"


def test_folders_that_a_writer_makes(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()

    def fail(path: Path) -> None:
        with made_folder(path), replacing(path / "file") as temporary:
            temporary.write_text("part")
            raise KeyboardInterrupt

    for path in ("there/a/b", "there", "new"):
        with pytest.raises(KeyboardInterrupt):
            fail(tmp_path / path)
        assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Cannot write"), made_folder(tmp_path / "file" / "folder"):
        pass


@pytest.mark.parametrize(
    "flags",
    [
        ["convert", "m.onnx", "--simplify_time_limit", "nan"],
        ["convert", "m.onnx", "--simplify_time_limit", "-5"],
        ["simplify", "m.onnx", "s.onnx", "--simplify_time_limit", "inf"],
        ["simplify", "m.onnx", "s.onnx", "--simplify_time_limit=0"],
        ["simplify", "m.onnx", "s.onnx", "--simplify_comparisons", "-1"],
        ["verify", "m.onnx", "--comparisons", "1.5"],
        ["verify", "m.onnx", "--comparisons", "0"],
        ["verify", "m.onnx", "--tolerance", "nan"],
        ["verify", "m.onnx", "--memory_limit", "-1"],
        ["verify", "m.onnx", "--seed", "9" * 5000],
        ["verify", "m.onnx", "--input_shape", "1,0"],
        ["ncnn", "m.onnx", "-o", "x", "--input_shape", "1,-3"],
    ],
)
def test_numbers_of_flags(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(flags)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "error: argument" in line


@pytest.mark.parametrize("options", [{"time_limit": float("nan")}, {"time_limit": -5}, {"comparisons": -1}])
def test_numbers_of_functions(options: dict[str, Any]) -> None:
    simplify: Callable[..., Any] = onnx2nn.simplify
    with pytest.raises(InputError, match=next(iter(options))):
        simplify(DIGITS, **options)


@pytest.mark.parametrize("runs", [0, -1])
def test_a_verification_compares(runs: int) -> None:
    with pytest.raises(InputError, match="Give 1 or more"):
        onnx2nn.verify(DIGITS, runs=runs)


_INTERRUPTED_IMPORT = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
from onnx2nn.commands import entry
sys.argv = ["onnx2nn", "check", {model!r}]
sys.exit(entry.onnx2nn())
"""


@pytest.mark.parametrize(
    "at", ["onnx2nn.commands.main", "numpy", "numpy.linalg", "onnx", "onnx_ir", "onnx2nn.loading", "torch", "torch.fx"]
)
def test_an_interrupt_while_libraries_load(at: str) -> None:
    """numpy and others turn an exception in some of their imports into an ImportError."""
    code = _INTERRUPTED_IMPORT.format(at=at, model=str(DIGITS))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr == "onnx2nn: error: interrupted\n"


def test_an_ignored_interrupt_stays_ignored() -> None:
    code = _INTERRUPTED_IMPORT.format(at="numpy", model=str(DIGITS))
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "interrupted" not in done.stderr, done.stderr
