"""Imports and calls in threads and processes, several writers of one file, folders that cannot be written, pipes."""

from __future__ import annotations

import ctypes
import gc
import io
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import onnx2nn
from onnx2nn.errors import ModelFileError

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
THREADS = 8

LOOP = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> graph (float[n] x, int64 count) => (float[n] y) { y = Loop<body = b'
    " (int64 i, bool k, float[n] s) => (bool l, float[n] r) { l = Identity(k) r = Add(s, x) }>(count, , x) }"
)


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Runs `work` in threads that begin together, and returns the results; an error of any of them is raised."""
    barrier, found, errors = threading.Barrier(count), [None] * count, []

    def run(number: int) -> None:
        try:
            barrier.wait()
            found[number] = work(number)
        except BaseException as error:  # raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def output_of(module: Any, x: torch.Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        result: np.ndarray[Any, Any] = module(x).numpy()
    return result


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.rand(2, 8, 8, 1, generator=torch.Generator().manual_seed(0)) * 16


@pytest.fixture(scope="module")
def expected(x: torch.Tensor) -> np.ndarray[Any, Any]:
    return output_of(onnx2nn.load(DIGITS), x)


def test_threads_load(x: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    for _ in range(3):
        modules = in_threads(lambda _: onnx2nn.load(DIGITS))
        assert all(np.array_equal(output_of(module, x), expected) for module in modules)
        assert len({tuple(module.state_dict()) for module in modules}) == 1
        assert len({type(module) for module in modules}) == 1
    assert gc.isenabled()


def test_threads_make_the_first_calls_of_one_module(expected: np.ndarray[Any, Any], x: torch.Tensor) -> None:
    """The program is generated at the first of them."""
    for _ in range(3):
        module = onnx2nn.load(DIGITS)
        found = in_threads(lambda number, module=module: [output_of(module, x + number) for _ in range(20)])
        for number, results in enumerate(found):
            assert all(np.array_equal(result, output_of(module, x + number)) for result in results)
        assert np.array_equal(found[0][0], expected)


def test_threads_run_a_loop_with_state() -> None:
    module = onnx2nn.load(LOOP)

    def work(number: int) -> bool:
        start = torch.full((3,), float(number))
        return all(torch.equal(module(start, torch.tensor(number)), start * (number + 1)) for _ in range(50))

    assert all(in_threads(work))


def test_threads_do_different_things(tmp_path: Path, x: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    module = onnx2nn.load(DIGITS)
    works: list[Callable[[], Any]] = [
        lambda: onnx2nn.load(DIGITS),
        lambda: onnx2nn.check(DIGITS),
        lambda: onnx2nn.verify(DIGITS, module).verdict,
        lambda: onnx2nn.save(module, tmp_path / "a.pth"),
        lambda: onnx2nn.to_python(module, tmp_path / "source"),
        lambda: module.code,
        lambda: str(module),
        lambda: output_of(module, x),
    ]
    found = in_threads(lambda number: works[number]())
    assert np.array_equal(output_of(found[0], x), expected)
    assert np.array_equal(found[7], expected)


def _send(module: Any, x: Any, queue: Any) -> None:
    queue.put(output_of(module, torch.from_numpy(x)))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch's threads of OpenMP do not survive a fork."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.parametrize("called", [False, True])
def test_processes(method: str, called: bool, x: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    """A module goes to another process, before and after its first call."""
    module = onnx2nn.load(DIGITS)
    if called:
        output_of(module, x)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of fork where there are threads
        process = context.Process(target=_send, args=(module, x.numpy(), queue))
        process.start()
    found = queue.get(timeout=120)
    process.join(60)
    assert process.exitcode == 0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # another number of threads may add otherwise


def test_writers_of_one_file(tmp_path: Path, x: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    """The file is always one of theirs, whole; none of their temporary files is left."""
    module, path, seen = onnx2nn.load(DIGITS), tmp_path / "m.pth", []

    def work(number: int) -> None:
        for _ in range(8):
            if number < 3:
                onnx2nn.save(module, path)
            elif path.exists():
                seen.append(output_of(torch.load(path, weights_only=False), x))

    onnx2nn.save(module, path)
    in_threads(work, 4)
    assert len(seen) == 8
    assert all(np.array_equal(result, expected) for result in seen)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.pth"]


_WRITERS = """
import os, sys, warnings
warnings.simplefilter("ignore")
import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError

folder = sys.argv[1]
assert not os.access(folder, os.W_OK)
module = onnx2nn.load(f"{folder}/m.onnx")
for write in (
    lambda: onnx2nn.save(module, f"{folder}/m.pth"),
    lambda: onnx2nn.to_python(module, f"{folder}/source"),
    lambda: onnx2nn.export_onnx(module, f"{folder}/e.onnx"),
):
    try:
        write()
    except InputError as error:
        print(error)
sys.exit(main(["convert", f"{folder}/m.onnx", f"{folder}/m.pth"]))
"""


def _obey_permissions() -> None:
    """Takes from a process that becomes another program what lets root pass permissions of files."""
    if os.geteuid() == 0:
        drop, override, search = 24, 1, 2  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of Linux
        for capability in (override, search):
            if ctypes.CDLL(None, use_errno=True).prctl(drop, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no such permissions")
@pytest.mark.skipif(
    sys.platform == "darwin" and os.geteuid() == 0,
    reason="no permission stops root, who has no capabilities to give up",
)
def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    """The model is read from one, with external data; a writer says so before long work."""
    model = onnx.load(DIGITS)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    for path in tmp_path.iterdir():
        path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        command = [sys.executable, "-c", _WRITERS, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, preexec_fn=_obey_permissions)
    finally:
        tmp_path.chmod(0o700)
    assert done.returncode == 2, done.stderr
    assert done.stdout.count("Cannot write") == 3
    assert len(done.stderr.splitlines()) == 1 and "Cannot write" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.data", "m.onnx"]


def test_pipes(x: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    """A model from a pipe or another stream without a file; one that ends too early; a text stream."""
    read, write = os.pipe()
    sender = threading.Thread(target=lambda: os.write(write, DIGITS.read_bytes()[:50_000]))
    with os.fdopen(read, "rb") as stream:
        script = f"import sys; sys.stdout.buffer.write(open({str(DIGITS)!r}, 'rb').read())"
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert np.array_equal(output_of(onnx2nn.load(process.stdout), x), expected)
        sender.start()
        sender.join()
        os.close(write)
        with pytest.raises(ModelFileError, match="no complete ONNX model"):
            onnx2nn.load(stream)
    assert np.array_equal(output_of(onnx2nn.load(io.BytesIO(DIGITS.read_bytes())), x), expected)


def test_a_reader_that_goes_away() -> None:
    """`onnx2nn ops | head`: no traceback."""
    command = f"{sys.executable} -m onnx2nn ops | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("domain")
    assert done.stderr == ""
