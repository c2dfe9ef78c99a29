"""No name in a file is code, wherever it stands: files of torch's exporters whose names are fragments of programs."""

from __future__ import annotations

import builtins
import contextlib
import copy
import importlib.util
import io
import pickle
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from google.protobuf.message import Message

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from tests.module_trees import BATCH, exported, inputs_of
from tests.random_modules import draw, draw_attending, draw_extended, original_of

CALL = "onnx2nn_ran()"
FRAGMENTS = [
    CALL,
    f'")or {CALL}or("',
    f"')or {CALL}or('",
    f'"+{CALL}+"',
    f"'+{CALL}+'",
    f'"""\n{CALL}\n"""',
    f"'''\n{CALL}\n'''",
    f"\n{CALL}\n",
    f"\r{CALL}\r",
    f"\n    {CALL}\n",
    f"\n        {CALL}#",
    f"x={CALL}",
    f"x={CALL},y",
    f"x;{CALL};y",
    f"x):\n  {CALL}\ndef f(y",
    f"[{CALL}]",
    f"{{{CALL}}}",
    f"\\';{CALL}#",
    f'\\";{CALL}#',
    f"a\\\n{CALL}",
    f"a: {CALL}",
    f"a#\x0c\n{CALL}",
    f"a if {CALL} else b",
    f"*{CALL}",
    f"**{CALL}",
    "\uff4fnnx2nn_ran()",  # which Python reads as CALL
    f"'''+{CALL}+'''",
    f"a, **{CALL}",
    f"a}}{{{CALL}",
]
"""Calls between what may end the text, the line, the argument or the block that a name is written into."""

WORD = re.compile(r"[A-Za-z_]\w*")
KEPT = {"op_type", "domain", "doc_string", "producer_name", "producer_version", "key", "overload"}
"""Fields whose text is no name that the file may choose: with other ones its importer takes another way."""

ATTRIBUTES = "onnx.AttributeProto"
"""Whose name an operator's schema chooses, and whose texts are its choices."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the calls of what the fragments call."""
    calls: list[str] = []
    monkeypatch.setattr(builtins, "onnx2nn_ran", lambda: calls.append("ran") or {}, raising=False)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return calls


def texts_of(message: Message) -> Iterator[tuple[Message, Any, int | None]]:
    """Yields the places of the names in a file: the message, the field, and the index in a repeated field."""
    if message.DESCRIPTOR.full_name == ATTRIBUTES:
        children = [part for part in (message.g, *message.graphs) if part.ByteSize()]
        for child in children:
            yield from texts_of(child)
        return
    for field, value in message.ListFields():
        repeated = not isinstance(value, (str, bytes, int, float, Message))
        for index, item in enumerate(value) if repeated else [(None, value)]:
            if isinstance(item, Message):
                yield from texts_of(item)
            elif isinstance(item, str) and field.name not in KEPT:
                yield message, field, index


def renamed(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Returns a file in which some words of its names are fragments, the same everywhere."""
    model = copy.deepcopy(model)
    places = list(texts_of(model))
    words = sorted(
        {
            word
            for message, field, index in places
            for text in [getattr(message, field.name)]
            for word in WORD.findall(text if index is None else text[index])
        }
    )
    chosen = {word: rng.choice(FRAGMENTS) for word in rng.sample(words, min(len(words), rng.randint(1, 8)))}
    if rng.random() < 0.5:  # two names that hold the same
        chosen = {word: rng.choice([*chosen.values()]) + str(number) for number, word in enumerate(chosen)}
    for message, field, index in places:
        text = getattr(message, field.name)
        text = text if index is None else text[index]
        text = WORD.sub(lambda found: chosen.get(found[0], found[0]), text)
        if index is None:
            setattr(message, field.name, text)
        else:
            getattr(message, field.name)[index] = text
    model.producer_name = rng.choice([model.producer_name, model.producer_name, "", "pytorch", "onnx2nn", "tf2onnx"])
    return model


def used(model: onnx.ModelProto, inputs: tuple[torch.Tensor, ...], expected: Any, folder: Path) -> None:
    """Loads a file and does with the module all that writes, reads and runs programs."""
    module = onnx2nn.load(model)

    def check(other: Any) -> None:
        with torch.no_grad():
            torch.testing.assert_close(other(*inputs), expected, rtol=1e-4, atol=1e-5)

    check(module)
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            assert part.code
    assert str(module)
    check(pickle.loads(pickle.dumps(module)))
    check(copy.deepcopy(module))
    onnx2nn.save(module, folder / "m.pth")
    check(torch.load(folder / "m.pth", weights_only=False))
    onnx2nn.to_python(module, folder / "source")
    spec = importlib.util.spec_from_file_location("written_names", folder / "source" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    check(written.load_model())
    onnx2nn.export_onnx(module, folder / "m.onnx")
    check(onnx2nn.load(folder / "m.onnx"))
    check(onnx2nn.optimize(module, "eager"))


def check_files(seed: int, drawn: Any, exporter: str, files: int, folder: Path, ran: list[str]) -> Counter[str]:
    """Renames the file of a drawn module several times; returns how often it was used, and which errors ended that."""
    original = original_of(drawn(seed))
    inputs = inputs_of(BATCH)
    with contextlib.redirect_stdout(io.StringIO()):
        exported(original, exporter, folder / "drawn.onnx")
    model = onnx.load(folder / "drawn.onnx")
    names = [value.name for value in model.graph.input]
    given = tuple(value for name, value in zip("xy", inputs, strict=True) if name in names)
    with torch.no_grad():
        expected = original(*inputs)
    ends: Counter[str] = Counter()
    for number in range(files):
        rng = random.Random(seed * 1000 + number)
        changed = renamed(model, rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                used(changed, given, expected, folder)
            ends["used"] += 1
        except Onnx2nnError as error:
            ends[str(error)[:100]] += 1
        assert not ran, (seed, exporter, number)
    return ends


DRAWN = {"plain": draw, "extended": draw_extended, "attending": draw_attending}


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("drawn", DRAWN)
def test_names_are_no_code(drawn: str, exporter: str, tmp_path: Path, ran: list[str]) -> None:
    ends = check_files(5, DRAWN[drawn], exporter, 4, tmp_path, ran)
    assert ends["used"] >= 3, ends


@pytest.mark.held
@pytest.mark.parametrize("part", range(8))
def test_many_names_are_no_code(part: int, tmp_path: Path, ran: list[str], request: pytest.FixtureRequest) -> None:
    ends: Counter[str] = Counter()
    first = (request.config.getoption("--seed") * 8 + part) * 5
    for seed in range(first, first + 5):
        for exporter in ("torchscript", "dynamo"):
            ends += check_files(seed, DRAWN[sorted(DRAWN)[seed % 3]], exporter, 10, tmp_path, ran)
    assert ends["used"] > 0.9 * ends.total(), ends
