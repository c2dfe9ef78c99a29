"""The commands, as a person uses them: exit status, what stands on stdout and stderr, which files are left."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.commands.onnx2pytorch import onnx2pytorch
from onnx2nn.ground.progress import listening, tracked

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
SCRIPT = ROOT / "scripts" / "onnx2pytorch.py"

SCALE = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[{batch}, 3] x) => (float[{batch}, 3] y) <float[3] w = {{1.0, -2.0, 3.0}}> {{ m = Mul(x, w) y = Relu(m) }}
"""
TWO_INPUTS = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[n, 3] a, float[n, 3] b) => (float[n, 3] y, float[n, 3] z) { y = Add(a, b) z = Sub(a, b) }
"""
UNSUPPORTED = """
<ir_version: 8, opset_import: ["" : 17, "nobody" : 1]>
graph (float[2] x) => (float[2] y) { a = nobody.Sharpen(x) b = nobody.Blur(a) y = nobody.Blur(b) }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a fixed, an open and a two-input model, one with a colon in its input's name, and bad files."""
    fixed = onnx.parser.parse_model(SCALE.format(batch=2))
    colon = onnx.parser.parse_model(SCALE.format(batch="n"))
    colon.graph.input[0].name = colon.graph.node[0].input[0] = "data:0"
    colon2 = onnx.parser.parse_model(SCALE.format(batch=2))
    colon2.graph.input[0].name = colon2.graph.node[0].input[0] = "data:0"
    sizes = onnx.parser.parse_model(TWO_INPUTS.replace("n, 3", "n, m"))
    models = {
        "fixed": fixed,
        "open": onnx.parser.parse_model(SCALE.format(batch="n")),
        "colon": colon,
        "colon2": colon2,
        "two": onnx.parser.parse_model(TWO_INPUTS),
        "sizes": sizes,
        "unsupported": onnx.parser.parse_model(UNSUPPORTED),
    }
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "truncated.onnx").write_bytes(DIGITS.read_bytes()[:5000])
    (tmp_path / "text.onnx").write_text("This is no model.\n" * 50)
    (tmp_path / "empty.onnx").write_bytes(b"")
    return tmp_path


def _script(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def _onnx2pytorch(*arguments: object) -> int:
    return onnx2pytorch([str(argument) for argument in arguments])


def _main(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_example_from_anywhere_in_a_pipe(tmp_path: Path) -> None:
    done = _script("--onnx_path", DIGITS, "--simplify_path", "s.onnx", "--pytorch_path", "digits.pth", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "OK mse < 1e-7"
    assert "  probability: shape [1, 10], mse " in lines[-3] and ", max abs difference " in lines[-3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.pth", "s.onnx"]
    onnx.checker.check_model(onnx.load(tmp_path / "s.onnx"))
    x = torch.rand(4, 8, 8, 1) * 16
    loaded = torch.load(tmp_path / "digits.pth", weights_only=False)
    torch.testing.assert_close(loaded(x), onnx2nn.load(DIGITS)(x), rtol=1e-4, atol=1e-5)


def test_progress_on_a_terminal(folder: Path) -> None:
    pytest.importorskip("rich", reason="without rich the plain lines are used on a terminal too")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--onnx_path", str(folder / "fixed.onnx"), "--skip_simplify"],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": ""},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(60) == 0
    assert b"\x1b[" in shown, "no spinner was drawn"
    assert b"importing" in shown and b"OK mse < 1e-7" in shown


def test_a_step_tells_how_far_it_is() -> None:
    """The outermost loop over nodes is heard, loops inside it are not, and an error leaves nobody listening."""
    told: list[tuple[int, int]] = []

    def work() -> None:
        for _ in tracked("ab"):
            for _ in tracked("xyz"):
                pass

    with listening(lambda done, total: told.append((done, total))):
        work()
        with pytest.raises(ZeroDivisionError):
            for number in tracked([1, 0]):
                print(1 / number)
        work()
    assert told == [(0, 2), (1, 2), (2, 2), (0, 2), (1, 2), (0, 2), (1, 2), (2, 2)]
    work()
    assert len(told) == 8


def test_an_import_and_a_comparison_tell_how_far_they_are(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    with listening(lambda done, total: told.append((done, total))):
        module = onnx2nn.load(DIGITS)
        imported = len(told)
        onnx2nn.verify_nodes(DIGITS, module)
    assert imported > 2 and len(told) > imported
    assert told[imported - 1][0] == told[imported - 1][1]
    assert told[-1][0] == told[-1][1] - 1  # the output, which no oracle gives, ends the comparison


@pytest.mark.parametrize("ending", [".pth", ".pt", ".safetensors", ".pt2", ".torchscript"])
def test_every_ending(folder: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"model{ending}"
    assert _onnx2pytorch("--onnx_path", folder / "open.onnx", "--pytorch_path", path) == 0
    assert f"saved {path}: " in capsys.readouterr().out
    x = torch.tensor([[1.0, -1.0, 0.5]] * 5)
    expected = torch.relu(x * torch.tensor([1.0, -2.0, 3.0]))
    if ending in (".pth", ".pt"):
        module = torch.load(path, weights_only=False)
    elif ending == ".pt2":
        module = torch.export.load(path).module()
    elif ending == ".torchscript":
        module = torch.jit.load(path)
    else:
        from safetensors.torch import load_model

        module = onnx2nn.load(onnx2nn.simplify(folder / "open.onnx").model)
        load_model(module, path)
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(
    ("model", "shapes", "shown"),
    [
        ("fixed", [], "[2, 3]"),
        ("fixed", ["x:2,3"], "[2, 3]"),
        ("open", ["4,3"], "[4, 3]"),
        ("open", ["x:5,3"], "[5, 3]"),
        ("colon", ["data:0:6,3"], "[6, 3]"),
        ("two", ["a:3,3", "b:3,3"], "[3, 3]"),
        ("two", ["a:3,3"], "[3, 3]"),
        ("sizes", ["b:4,7"], "[4, 7]"),
    ],
)
def test_input_shapes(
    folder: Path, model: str, shapes: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [word for shape in shapes for word in ("--input_shape", shape)]
    assert _onnx2pytorch("--onnx_path", folder / f"{model}.onnx", *flags) == 0
    assert f"shape {shown}, mse 0, max abs difference 0" in capsys.readouterr().out


def test_shapes_stay_open_when_asked(folder: Path) -> None:
    path = folder / "model.pt2"
    flags = ["--input_shape", "x:1,3", "--dynamic_input_shape", "--simplify_path", folder / "s.onnx"]
    assert _onnx2pytorch("--onnx_path", folder / "open.onnx", "--pytorch_path", path, *flags) == 0
    assert torch.export.load(path).module()(torch.ones(9, 3)).shape == (9, 3)
    dimension = onnx.load(folder / "s.onnx").graph.input[0].type.tensor_type.shape.dim[0]
    assert dimension.dim_param == "n"


@pytest.mark.parametrize("command", ["onnx2pytorch", "onnx2nn"])
def test_dimensions_of_the_file_are_freed(folder: Path, command: str) -> None:
    path = folder / "model.pt2"
    if command == "onnx2nn":
        status = _main("convert", folder / "colon2.onnx", path, "--dynamic", "data:0:0=n")
    else:
        status = _onnx2pytorch("--onnx_path", folder / "fixed.onnx", "--pytorch_path", path, "--dynamic", "x:0=n")
    assert status == 0
    assert torch.export.load(path).module()(torch.ones(9, 3)).shape == (9, 3)


def test_shapes_are_fixed_by_default(folder: Path) -> None:
    flags = ["--input_shape", "x:4,3", "--simplify_path", folder / "s.onnx"]
    assert _onnx2pytorch("--onnx_path", folder / "open.onnx", *flags) == 0
    assert onnx.load(folder / "s.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4


BAD = [
    (["missing.onnx"], "missing.onnx"),
    (["empty.onnx"], "empty"),
    (["text.onnx"], "text.onnx"),
    (["truncated.onnx"], "truncated.onnx"),
    (["."], ""),
    (["unsupported.onnx"], "nobody::Blur (2), nobody::Sharpen (1)"),
    (["fixed.onnx", "--input_shape", "z:2,3"], "no input 'z'. Its inputs are x: float [2, 3]."),
    (["fixed.onnx", "--input_shape", "x:2,3,4"], "Input 'x' has 2 dimensions, but 3 were given"),
    (["fixed.onnx", "--input_shape", "x:5,3"], "Dimension 0 of input 'x' is fixed at 2 in the file"),
    (["two.onnx", "--input_shape", "2,3"], "the model has 2 inputs (a, b). Write NAME:2,3."),
    (["fixed.onnx", "--input_shape", "2,3", "--input_shape", "x:2,3"], "gives input 'x' twice"),
    (["sizes.onnx"], "Input a: float [n, m] has dynamic dimensions. Give all sizes: a:N,N."),
    (["fixed.onnx", "--input_shape", "x:2,three"], "'x:2,three' is not NAME:DIMS"),
    (["fixed.onnx", "--input_shape", "x:0,3"], "positive sizes"),
    (["fixed.onnx", "--dynamic", "x:batch"], "'x:batch' is not NAME:AXIS=DIM, such as input:0=batch"),
    (["fixed.onnx", "--dynamic", "z:0=n"], "dynamic names 'z'. The model's inputs are 'x'."),
    (["fixed.onnx", "--dynamic", "x:0=n", "--dynamic", "x:0=m"], "calls axis 0 of 'x' both 'n' and 'm'"),
    (["fixed.onnx", "--dynamic", "x:1=n"], "'n' (3 in the file) cannot be dynamic: node "),
    (["fixed.onnx", "--pytorch_path", "missing/model.pth"], "there is no folder missing"),
    (["fixed.onnx", "--pytorch_path", "/proc/model.pth"], "Cannot write /proc/model.pth"),
    (["fixed.onnx", "--pytorch_path", "model.h5"], "its ending is none of .pth"),
    (["fixed.onnx", "--simplify_path", "missing/model.onnx"], "there is no folder missing"),
    (["fixed.onnx", "--no_such_flag"], "--no_such_flag"),
    (["fixed.onnx", "--simplify_comparisons", "-1"], "--simplify_comparisons"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_bad_input_is_one_line_and_leaves_nothing(
    folder: Path,
    arguments: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    if "--pytorch_path" not in arguments:
        arguments = [*arguments, "--pytorch_path", "model.pth"]
    try:
        status = _onnx2pytorch("--onnx_path", *arguments)
    except SystemExit as error:  # argparse's way
        status = error.code
    out, err = capfd.readouterr()
    assert status == 2
    assert len(err.splitlines()) == 1 and err.startswith("onnx2pytorch: error: "), err
    assert reason in err
    assert "Traceback" not in out
    assert sorted(folder.rglob("*")) == before


def test_no_arguments_names_the_required_flag(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        _onnx2pytorch()
    assert stop.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "--onnx_path" in line


def test_script_ends_with_status_2() -> None:
    done = _script("--onnx_path", "missing.onnx")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_all_unsupported_operators_are_listed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _onnx2pytorch("--onnx_path", folder / "unsupported.onnx", "--skip_simplify") == 2
    out = capfd.readouterr().out
    assert "nobody::Blur" in out and "nobody::Sharpen" in out


def test_debug_shows_the_traceback(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _onnx2pytorch("--onnx_path", folder / "missing.onnx", "--debug") == 2
    err = capfd.readouterr().err
    assert "Traceback" in err and err.splitlines()[-1].startswith("onnx2pytorch: error: ")


def test_our_own_fault_is_said_to_be_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def load(*_: object, **__: object) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr(onnx2nn, "load", load)
    assert _onnx2pytorch("--onnx_path", folder / "fixed.onnx", "--skip_simplify") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "please report it: ZeroDivisionError: first line second line" in line


def test_mismatch(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    monkeypatch.setattr(onnx2nn, "load", lambda *_, **__: Wrong())
    assert _onnx2pytorch("--onnx_path", folder / "fixed.onnx") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "MISMATCH in 1 of 1 outputs: y"


def test_import_goes_on_without_a_simplifier(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    assert _onnx2pytorch("--onnx_path", folder / "fixed.onnx") == 0
    assert 'pip install "onnx2nn[simplify]"' in capfd.readouterr().out
    assert _onnx2pytorch("--onnx_path", folder / "fixed.onnx", "--simplify_path", folder / "s.onnx") == 2
    assert 'pip install "onnx2nn[simplify]"' in capfd.readouterr().err


def test_options_of_the_simplifier_that_change_nothing_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--skip_simplify", "--skip_optimization", "--simplify_time_limit", "20"]
    assert _onnx2pytorch("--onnx_path", folder / "fixed.onnx", *options) == 0
    expected = "not simplified: --skip_optimization, --simplify_time_limit change nothing"
    assert expected in capsys.readouterr().out.splitlines()
    assert _onnx2pytorch("--onnx_path", folder / "fixed.onnx", "--skip_simplify") == 0
    assert "not simplified" not in capsys.readouterr().out


def test_import_goes_on_when_simplifying_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "fake").mkdir()
    (folder / "fake" / "onnxsim.py").write_text("raise SystemExit('no idea')")
    monkeypatch.setenv("PYTHONPATH", str(folder / "fake"))
    flags = ["--simplify_path", folder / "s.onnx"]
    assert _onnx2pytorch("--onnx_path", folder / "fixed.onnx", *flags) == 0
    out, err = capfd.readouterr()
    assert "not simplified, going on with the model as it was: onnxsim failed: no idea" in out
    assert out.splitlines()[-1] == "OK mse < 1e-7" and err == ""
    assert not (folder / "s.onnx").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 2)])
def test_interrupt_ends_the_simplifier_and_leaves_nothing(folder: Path, number: int, status: int) -> None:
    (folder / "fake").mkdir()
    (folder / "fake" / "onnxsim.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(folder / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    flags = ["--onnx_path", "fixed.onnx", "--simplify_path", "s.onnx", "--pytorch_path", "model.pth"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "fake")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell ignores it in the background
    )
    _wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text() != "")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert len(err.splitlines()) == 1 and "Traceback" not in err
    assert not {path.name for path in folder.iterdir()} & {"s.onnx", "model.pth"}
    assert not [path for path in folder.iterdir() if ".tmp" in path.name]
    _wait_for(lambda: not Path(f"/proc/{(folder / 'pid').read_text()}").exists())


def _wait_for(condition, seconds: float = 60) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_help_explains_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        _onnx2pytorch("--help")
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for flag in ("--onnx_path", "--simplify_path", "--pytorch_path", "--input_shape", "--debug"):
        assert f"\n  {flag}" in shown
    assert "exit status" in shown
    page = (ROOT / "docs" / "command_line.md").read_text()
    flags = {word.strip("[],") for word in shown.split() if word.strip("[],").startswith("--")} - {"--help"}
    assert {flag for flag in flags if flag not in page} == set()


def test_the_page_of_the_command_line_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/command_line.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("onnx2nn ver", {"verify"}),
        ("onnx2nn verify --in", {"--input_shape", "--inputs"}),
        ("onnx2nn verify m.onnx --blocks ", {"named", "repeated"}),
    ],
)
def test_a_shell_completes(line: str, expected: set[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete", reason="onnx2nn[cli] brings it")
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "_ARGCOMPLETE_IFS": "\n",
    }
    environment = {**os.environ, **asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "from onnx2nn.commands.entry import onnx2nn; onnx2nn()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert {word.strip() for word in answer.read_text().split("\n")} == expected


@pytest.mark.parametrize("command", ["convert", "check", "verify", "simplify", "ops"])
def test_subcommands_explain_themselves(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        _main(command, "--help")
    assert stop.value.code == 0 and f"usage: onnx2nn {command}" in capsys.readouterr().out


def test_convert(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("convert", folder / "open.onnx", folder / "model.pth") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "OK mse < 1e-7" and "simplif" not in out
    assert (folder / "model.pth").exists()


def test_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("check", folder / "open.onnx") == 0
    assert _main("check", folder / "unsupported.onnx") == 1
    assert "nobody::Blur" in capsys.readouterr().out


def test_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("verify", folder / "two.onnx", "--comparisons", 4) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("  y: shape [1, 3]" in line for line in lines) == 4
    assert sum("  z: shape [2, 3]" in line for line in lines) == 1


def test_simplify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("simplify", folder / "fixed.onnx", folder / "s.onnx") == 0
    assert (folder / "s.onnx").exists()


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("ops") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines}
    assert rows["ai.onnx", "Conv"][:5] == ["1", "11", "22", "float", "layer"]
    exported, imported = (list(map(int, cell.split("/"))) for cell in rows["ai.onnx", "Conv"][5:7])
    assert exported[0] == exported[1] > 30 and imported[0] == imported[1] > 30
    assert int(rows["ai.onnx", "Conv"][7]) > 1
    assert rows["ai.onnx", "NonZero"][-4] == "opaque" and rows["ai.onnx", "If"][-4] == "subgraph"
    assert rows["com.microsoft", "FusedConv"][1:3] == ["float", "layer"]
    assert lines[-1] == f"{len(lines) - 4} operators"


def test_module_runs(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onnx2nn", "--version"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.startswith("onnx2nn ")


def test_seed_decides_the_inputs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[np.ndarray] = []

    class Recording(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.numpy().copy())
            return x

    monkeypatch.setattr(onnx2nn, "load", lambda *_, **__: Recording())
    for seed in (1, 1, 2):
        _onnx2pytorch("--onnx_path", folder / "fixed.onnx", "--skip_simplify", "--seed", seed)
    assert np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[0], seen[2])


def test_output_that_nobody_reads_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "onnx2nn", "ops"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=300
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
