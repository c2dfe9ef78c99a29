"""`onnx2nn doctor`: versions, and what each command lacks."""

from __future__ import annotations

import pytest

from onnx2nn.commands import doctor
from onnx2nn.commands.main import main


def test_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in ("onnx2nn: ", "Python: ", "C++ compiler: ", "onnx-ir", "torch on the processor: "):
        assert part in text
    for command in doctor.EXAMINED:
        assert f"onnx2nn {command.__name__.rpartition('.')[2]}: " in text
    assert text.endswith("OK\n")


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    versions = {"onnxsim": None, "ncnn": None}
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, real(name)))
    assert main(["doctor"]) == 0, "a missing extra is no fault"
    text = capsys.readouterr().out
    assert "onnx2nn simplify: needs onnxsim: pip install 'onnx2nn[simplify]'" in text
    assert "onnx2nn ncnn: needs" in text and "pip install 'onnx2nn[ncnn]'" in text
    assert "onnx2nn check: ready" in text


@pytest.mark.parametrize(("name", "version"), [("torch", "1.13.1"), ("numpy", None)])
def test_what_is_wrong(
    name: str, version: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda other: version if other == name else real(other))
    assert main(["doctor"]) == 1
    assert f"NEEDED: {name}>=" in capsys.readouterr().out


def test_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.compiler() is None
