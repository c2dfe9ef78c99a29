"""The commands as a shell starts them: closed and full streams, wrong options, folders that cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onnx2nn.commands import onnx2pytorch
from onnx2nn.commands.main import main
from onnx2nn.errors import MissingDependencyError
from onnx2nn.ground.extras import require_extras

ROOT = Path(__file__).resolve().parents[1]
DIGITS = str(ROOT / "examples/digits/digits.onnx")


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = f"PYTHONPATH='{ROOT}' '{sys.executable}' -m onnx2nn {command}"
    return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_fault(closed: str, tmp_path: Path) -> None:
    done = shell(f"check '{DIGITS}' {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("27 nodes" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize(
    ("command", "status"), [("check missing.onnx 2>/dev/full", 2), (f"check '{DIGITS}' >/dev/full", 2)]
)
def test_a_full_stream_leaves_the_status(command: str, status: int, tmp_path: Path) -> None:
    done = shell(command, tmp_path)
    assert done.returncode == status and "Traceback" not in done.stderr


def test_a_wrong_option_is_told_with_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["convert", "--inputshape", "3", "m.onnx"])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error == (
        "onnx2nn convert: error: unrecognized arguments: --inputshape; is it --input_shape? "
        "(see onnx2nn convert --help)\n"
    )
    with pytest.raises(SystemExit):
        onnx2pytorch.onnx2pytorch(["--onnx_path", "m.onnx", "--bogus\x1b[2J"])
    error = capsys.readouterr().err
    assert error.startswith("onnx2pytorch: error: unrecognized arguments: --bogus") and "\x1b" not in error


@pytest.mark.parametrize(
    "options", [["m.onnx/"], ["/proc/here/"], ["--python", "m.onnx"], ["--python", "/proc/here"], ["m.onnx/in/it/"]]
)
def test_a_folder_is_tried_before_the_work(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(Path(DIGITS).read_bytes())
    assert main(["convert", "m.onnx", *options]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("onnx2nn: error: Cannot write ")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "command", ["convert m.pth m.pth", "convert m.pth ./m.pth", "convert link.pth m.pth", "report m.pth -o m.pth"]
)
def test_the_model_itself_is_not_written_over(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Path(DIGITS).read_bytes()
    (tmp_path / "m.pth").write_bytes(model)
    (tmp_path / "link.pth").symlink_to("m.pth")
    assert main(command.split()) == 2
    assert "it is the model that the command reads. Name another file." in capsys.readouterr().err
    assert (tmp_path / "m.pth").read_bytes() == model


def test_everything_that_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "ncnn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r'needs onnxruntime and ncnn, .*"onnx2nn\[verify,ncnn\]"'):
        require_extras("This", torch="torch", verify="onnxruntime", ncnn="ncnn")
    with pytest.raises(MissingDependencyError, match=r'needs ncnn, .*"onnx2nn\[ncnn\]"'):
        require_extras("This", torch="torch", ncnn="ncnn")
