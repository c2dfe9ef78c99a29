"""The scripts in examples/ run, and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import onnx
import pytest

from scripts import torchvision_schemas

torchvision_schemas.predefine()  # transformers, which PEFT imports, imports torchvision

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def ran(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the `main` of an example returns, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    try:
        names = runpy.run_path(str(EXAMPLES / f"{request.param}.py"))
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("onnx2nn"):
            raise
        pytest.skip(f"{error.name} is not installed")
    found: dict[str, Any] = names["main"]()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ran", ["fine_tune_keras"], indirect=True)
def test_a_network_of_keras_learns(ran: dict[str, Any]) -> None:
    assert ran["before"] < 0.5 and ran["after"] > 0.9
    assert ran["last_loss"] < 0.2 * ran["first_loss"]
    onnx.checker.check_model("dark_digits.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("ran", ["lora_int4"], indirect=True)
def test_adapters_of_int4_weights_learn_a_text(ran: dict[str, Any]) -> None:
    assert ran["after"] < 0.75 * ran["before"]


@pytest.mark.slow
@pytest.mark.parametrize("ran", ["explain_and_prune"], indirect=True)
def test_channels_that_say_little_go(ran: dict[str, Any]) -> None:
    assert ran["fewer"] < 0.85 * ran["weights"]
    assert ran["after"] > ran["opposite"] + 0.05, "channels that explain more are not worth more"
    assert ran["tuned"] > 0.97
    onnx.checker.check_model("pruned_digits.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("ran", ["sounds"], indirect=True)
def test_sounds_are_told_apart(ran: dict[str, Any]) -> None:
    assert ran["before"] < 0.5 and ran["after"] > 0.9
    onnx.checker.check_model("listener.onnx")
