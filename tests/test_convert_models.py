"""The rows of convert_models.md: stored without loss, measured within limits, and the same when measured again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from scripts.conversions import directions, exported, measuring, page
from scripts.conversions.limits import Limits, in_process
from scripts.conversions.rows import EXPORT, Facts, File, Row
from scripts.conversions.sources import other_frameworks
from scripts.conversions.store import Lines, Parquet, Store
from scripts.zoo import fingerprint

ROOT = Path(__file__).parents[1]
FILE = File("definitions", "super_resolution", "torchscript")


def _rows() -> list[Row]:
    facts: Facts = {"nodes": 3, "open": ["batch"], "difference": 1e-7}
    return [Row(FILE, EXPORT, {}), Row(FILE, "PyTorch", facts), Row(FILE, "NCNN", {"problem": "a | b\n"})]


@pytest.mark.parametrize("kind", [Lines, Parquet])
def test_a_store_gives_back_what_it_was_given(kind: type[Lines] | type[Parquet], tmp_path: Path) -> None:
    if kind is Parquet:
        pytest.importorskip("pyarrow", reason="a package of the extra ray")
    store: Store = kind(tmp_path)
    for row in _rows():
        store.add(row)
    assert list(kind(tmp_path).rows().values()) == sorted(_rows(), key=list(store.rows().values()).index)
    changed = Row(FILE, "PyTorch", {"nodes": 4})
    store.add(changed)
    assert store.rows()[changed.name] == changed and len(store.rows()) == 3


def test_the_size_counts_every_file_of_the_weights(tmp_path: Path) -> None:
    graph = onnx.parser.parse_graph("g (float[64] x) => (float[64] y) { y = Sum(x, a, b) }")
    weights = np.ones(64, np.float32)
    graph.initializer.extend(onnx.numpy_helper.from_array(weights, name) for name in "ab")
    model = onnx.helper.make_model(graph)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    (tmp_path / "model.onnx.log").write_bytes(bytes(10_000))
    assert directions.graph_facts(exported.Exported(path, [weights], None, {}))["mb"] == pytest.approx(7e-4, rel=0.1)


def test_sorted_lines_are_the_same_rows(tmp_path: Path) -> None:
    store = Lines(tmp_path)
    for row in [*_rows(), *_rows()]:
        store.add(row)
    before = store.rows()
    store.sort()
    assert store.rows() == before
    assert len((tmp_path / "definitions.jsonl").read_text().splitlines()) == 3


def test_what_is_missing() -> None:
    other = File("definitions", "senet", "dynamo")
    known = {row.name: row for row in [*_rows(), Row(other, EXPORT, {"problem": "refused"})]}
    assert measuring.missing([FILE, other], ["PyTorch", "ONNX"], known) == {FILE: ["ONNX"]}
    assert measuring.missing([FILE], ["PyTorch"], known) == {}
    new = File("definitions", "senet", "torchscript")
    assert list(measuring.missing([FILE, new], ["PyTorch", "ONNX"], known)) == [new, FILE]


def test_difference_is_relative_and_of_equal_kinds() -> None:
    x = np.array([1.0, -4.0, np.inf], np.float32)
    assert exported.difference([x], [x]) == 0
    assert exported.difference([np.array([1.0, -3.0])], [np.array([1.0, -4.0])]) == 0.25
    for other in (x.astype(np.float64), x[:2], np.nan_to_num(x)):
        with pytest.raises(ValueError, match=r"instead of|other places"):
            exported.difference([other], [x])


def test_a_reason_names_what_an_error_came_from() -> None:
    """As torch's exporters raise them: advice behind the first line, and the cause."""
    try:
        try:
            raise KeyError("aten.unfold")
        except KeyError as cause:
            raise ValueError("cannot  export\nNext steps:\n- look") from cause
    except ValueError as error:
        assert exported.reason(error) == "ValueError: cannot export From KeyError: 'aten.unfold'"
    assert exported.reason(ValueError("one\n\ntwo")) == "ValueError: one two"


def test_a_row_that_failed_stays_on_the_page() -> None:
    text = page.document([Row(FILE, EXPORT, {"torch": "9"}), Row(FILE, "PyTorch", {"problem": "first | second"})])
    assert "torch 9" in text and "No: first \\| second" in text and "| 0 of 1 |" in text
    text = page.document([Row(FILE, EXPORT, {"problem": "no \x1b[96msuch\x1b[0m layer"})])
    assert "| `definitions/super_resolution/torchscript` | no such layer |" in text and "0 of 1 |" not in text


def _fill(gigabytes: float) -> Facts:
    block = np.ones(int(gigabytes * 1e9), np.uint8)
    time.sleep(60)
    return {"sum": int(block.sum())}


def _end() -> Facts:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _start(path: Path, size: int) -> Facts:
    """Starts a process that writes its number, takes memory and stays."""
    code = f"import os, time; open({str(path)!r}, 'w').write(str(os.getpid())); x = b'x' * {size}; time.sleep(60)"
    subprocess.run([sys.executable, "-c", code], check=True)
    return {}


def _runs(process: int) -> bool:
    path = Path(f"/proc/{process}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits, problem", [(Limits(8), "more than 8 s"), (Limits(60, 2e9), "more than 2 GB of memory")]
)
def test_what_a_measurement_starts_is_counted_and_ends_with_it(limits: Limits, problem: str, tmp_path: Path) -> None:
    size = 0 if "s" in problem.split() else 2 * 10**9
    assert in_process(limits, _start, tmp_path / "process", size) == {"problem": problem}
    process = int((tmp_path / "process").read_text())
    deadline = time.monotonic() + 5
    while _runs(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(process)


@pytest.mark.slow
def test_limits_and_ends_are_facts() -> None:
    assert in_process(Limits(), divmod, 7, 2) == (3, 1)
    assert in_process(Limits(), divmod, 7, 0)["problem"].startswith("ZeroDivisionError")
    assert in_process(Limits(seconds=1), time.sleep, 60) == {"problem": "more than 1 s"}
    assert in_process(Limits(memory=2e9), _fill, 2.5) == {"problem": "more than 2 GB of memory"}
    assert in_process(Limits(), _end) == {"problem": "the process ended with code -9"}


AGAIN = [FILE, File("definitions", "word_language_model", "dynamo"), File("files", "keras_images", "tensorflow")]
SAME = ("nodes", "inputs", "in_blocks", "guards", "keys", "restored")
"""Facts that no machine changes."""


@pytest.mark.slow
@pytest.mark.parametrize("file", AGAIN, ids=str)
def test_a_row_measured_again_is_the_stored_one(file: File) -> None:
    stored = Lines().rows()[f"{file}/PyTorch"]
    *_, row = measuring.rows_of(file, ["PyTorch"], Limits())
    assert row.problem == stored.problem == ""
    assert {key: row.facts.get(key) for key in SAME} == {key: stored.facts.get(key) for key in SAME}
    assert row.facts["difference"] <= directions.TOLERANCE


def _descendants(process: int) -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended
            continue
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _task(process: int) -> int | None:
    """Returns a worker of Ray that runs a task, among the descendants of a process."""
    for one in _descendants(process):
        try:
            if b"ray::task" in Path(f"/proc/{one}/cmdline").read_bytes():
                return one
        except OSError:  # as above
            continue
    return None


@pytest.mark.held
def test_nothing_is_lost_where_a_worker_of_ray_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray")
    command = [sys.executable, "scripts/convert_models.py", "--run", "definitions", "--files", "*dcgan*"]
    options = ["--directions", "PyTorch", "ONNX", "--workers", "2", "--ray", "--results", str(tmp_path / "rows")]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + 300
        while not list((tmp_path / "rows").glob("*.parquet")) and time.monotonic() < deadline:
            assert running.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.2)
        killed = _task(running.pid)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert running.wait(500) == 0, (tmp_path / "log").read_text()
    rows = Parquet(tmp_path / "rows").rows()
    assert len(rows) == 12 and not [row.name for row in rows.values() if row.problem]


class _Elsewhere(other_frameworks.Models):
    """A source whose environment is this one, with a script of the test."""

    def __init__(self, folder: Path):
        super().__init__("family", "writer", "script.py", "session", ("numpy",))
        self.environment = folder / "environment"
        (self.environment / "bin").mkdir(parents=True)
        (self.environment / "bin" / "python").symlink_to(sys.executable)


SCRIPT = """
import pathlib, shutil, sys
if sys.argv[1:] == ["--list"]:
    print("images\\nrefused")
else:
    _, name, _, out = sys.argv[1:]
    if name == "refused":
        sys.exit(print("[1/1] refused: FAILED ValueError: no such layer (log: somewhere)"))
    folder = pathlib.Path(out) / "family"
    folder.mkdir()
    for suffix in (".onnx", ".npz"):
        shutil.copyfile({path!r} + suffix, folder / (name + suffix))
"""


def test_files_of_other_frameworks_come_from_their_scripts_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ROOT / "tests" / "data" / "tensorflow" / "keras_images"
    (tmp_path / "scripts" / "zoo").mkdir(parents=True)
    (tmp_path / "scripts" / "zoo" / "script.py").write_text(SCRIPT.format(path=str(stored)))
    monkeypatch.setattr(other_frameworks, "ROOT", tmp_path)
    monkeypatch.setattr(fingerprint, "CACHE", tmp_path / "cache")
    source = _Elsewhere(tmp_path)
    images, refused = source.files()
    assert images == File("family", "images", "writer")
    with pytest.raises(exported.NotExported, match=r"^ValueError: no such layer$"):
        source.export(refused, tmp_path / "refused.onnx")
    (tmp_path / "first").mkdir()
    file = source.export(images, tmp_path / "first" / "model.onnx")
    assert file.path.read_bytes() == stored.with_suffix(".onnx").read_bytes()
    assert file.outputs is not None and len(file.inputs) == 1

    (tmp_path / "cache").mkdir()
    shutil.copytree(tmp_path / "first" / "family", tmp_path / "cache" / "family")
    with np.load(stored.with_suffix(".npz")) as arrays:
        np.savez(tmp_path / "cache" / "family" / "images.npz", **{**arrays, "recipe": fingerprint.digest("family")})
    (tmp_path / "scripts" / "zoo" / "script.py").write_text("raise SystemExit('it is not run')")
    (tmp_path / "second").mkdir()
    assert source.export(images, tmp_path / "second" / "model.onnx").path.exists()
    source.export(images, tmp_path / "third.onnx").write()
    assert fingerprint.is_current(tmp_path / "cache" / "family" / "images.onnx", fingerprint.digest("family"))
