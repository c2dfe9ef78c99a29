"""Environments, and the tests' three tiers.

* `nox`: lint, types and the fast tests, in the environment that nox is installed in.
* `nox -s full`: the slow tests too, and what needs TensorFlow, Paddle or OneFlow; a part of it by `-- --shard 1/4`.
* `nox -s held`: long fuzzers and measurements.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nox

nox.options.sessions = ["lint", "fast"]
nox.options.default_venv_backend = "virtualenv"

NOT_HELD = ("-m", "not held")

TOOLS = ("pytest", "pytest-xdist", "hypothesis", "ruff", "scikit-learn", "setuptools>=77")
OLDEST_TORCH = ("torch==2.11.0", "torchvision==0.26.0")
NEWEST_TORCH = ("torch==2.14.1", "torchvision==0.29.1")
LOWEST_EXTRAS = "all,ncnn,transformers,hub,fsspec,torchao"  # oneflow pins its versions, ray is for scripts
PEERS = (
    "onnx2torch",
    "onnx2pytorch",
    "onnx2fx",
)  # importers that benchmarks and convert_models.md measure beside this one
FLOWVISION = ("flowvision==0.2.2", "scipy")  # models for OneFlow; scipy is imported by it and not declared


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Format, lint and types, with the tools of the environment that nox runs in."""
    python = sys.executable
    session.run(python, "-m", "ruff", "format", "--check", ".")
    session.run(python, "-m", "ruff", "check", ".")
    session.run(python, "-m", "mypy")


@nox.session(venv_backend="none")
def fast(session: nox.Session) -> None:
    """The fast tests."""
    session.run(sys.executable, "-m", "pytest", "-n", "auto", *session.posargs)


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """The slow tests alone; those of the zoo need the files that the sessions zoo_tensorflow and zoo_paddle write."""
    session.run(sys.executable, "-m", "pytest", "-n", "auto", "-m", "slow", *session.posargs)


@nox.session(venv_backend="none")
def fast_and_slow(session: nox.Session) -> None:
    """The fast and the slow tests, see `slow`."""
    session.run(sys.executable, "-m", "pytest", "-n", "auto", *NOT_HELD, *session.posargs)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Mutated models, `-- --minutes 30 --seed 1`; see tests/fuzz/driver.py."""
    session.run(sys.executable, "-m", "tests.fuzz.driver", *session.posargs)


@nox.session(venv_backend="none")
def full(session: nox.Session) -> None:
    """Everything but the held tests, or with `-- --shard 1/4` a part of it."""
    session.notify("zoo_tensorflow", posargs=[])
    session.notify("zoo_paddle", posargs=[])
    session.notify("oneflow", posargs=session.posargs)
    session.notify("fast_and_slow", posargs=session.posargs)


@nox.session(venv_backend="none")
def held(session: nox.Session) -> None:
    """Long fuzzers and measurements, then the benchmarks."""
    session.notify("benchmark", posargs=[])
    session.run(sys.executable, "-m", "pytest", "-n", "auto", "-m", "held", *session.posargs)


@nox.session(venv_backend="none")
def browser(session: nox.Session) -> None:
    """The pages of reports in Chromium, which apt installs where the system has none and root runs this.

    `nox -s browser -- install` leaves the tests to the slow tier.
    """
    if not _has_chromium():
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            session.skip("there is no Chromium, and only root may install it: apt-get install chromium chromium-driver")
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "chromium-driver"]
        for command in (["apt-get", "update", "-q"], install):
            subprocess.run(command, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        if not _has_chromium():
            session.skip("apt-get could not install Chromium; its messages stand above")
    if session.posargs != ["install"]:
        session.run(sys.executable, "-m", "pytest", "-m", "slow", "tests/test_report_page.py", *session.posargs)


def _has_chromium() -> bool:
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


@nox.session
def ecosystem(session: nox.Session) -> None:
    """PyTorch's tools on imports, with those that CI has not; `nox -s ecosystem -- --write` stores what they do."""
    session.install("-c", "constraints.txt", "-e", ".[test,ecosystem]")
    if session.posargs:
        session.run("python", "-m", "tests.ecosystem", *session.posargs)
    else:
        session.run("pytest", "-n", "auto", "-m", "slow or held", "tests/ecosystem")


@nox.session
def docs(session: nox.Session) -> None:
    """The site in build/site, with warnings as errors; `nox -s docs -- serve` shows it while it is written."""
    session.install("-c", "constraints.txt", "-e", ".[docs]")
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]))


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """The fast tests with the lowest versions that pyproject.toml allows of what a user may install, torch aside."""
    session.install("-c", "constraints-lowest.txt", "-e", f".[{LOWEST_EXTRAS}]", "torchvision", *TOOLS)
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session(python="3.11")
def torch_oldest(session: nox.Session) -> None:
    """The fast tests with the oldest PyTorch that pyproject.toml allows: `nox -s torch_oldest -- tests/test_module.py`.

    PyTorch's wheels for Linux may bring gigabytes of GPU libraries; the variable TORCH_INDEX_URL names an index that
    has builds for the CPU.
    """
    _test_with(session, OLDEST_TORCH)


@nox.session(python="3.11")
def torch_newest(session: nox.Session) -> None:
    """The fast tests with the newest PyTorch that they passed with, as `torch_oldest`."""
    _test_with(session, NEWEST_TORCH)


def _test_with(session: nox.Session, versions: Sequence[str]) -> None:
    index = os.environ.get("TORCH_INDEX_URL")
    session.install(*versions, *(["--index-url", index] if index else []))
    session.install("-c", _constraints_without_torch(session), *versions, "-e", ".[all,ncnn]", *TOOLS)
    session.run("pytest", "-n", "auto", *session.posargs)


def _constraints_without_torch(session: nox.Session) -> str:
    """Writes constraints.txt without its lines on torch and torchvision, and returns where."""
    lines = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    path = Path(session.create_tmp()) / "constraints.txt"
    path.write_text("\n".join(line for line in lines if not line.startswith("torch")) + "\n", encoding="utf-8")
    return str(path)


@nox.session
def build(session: nox.Session) -> None:
    """The wheel and the source distribution in build/dist, built twice with the time of the commit: the same bytes."""
    session.install("build")
    time = session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)
    sums = []
    for name in ("dist", "dist-again"):
        folder = Path("build", name)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as source:  # without what lies in the tree beside the commit's files
            archive = Path(source, "sources.tar")
            session.run("git", "archive", "-o", str(archive), "HEAD", external=True)
            shutil.unpack_archive(archive, Path(source, "tree"))
            session.run(
                "python",
                "-m",
                "build",
                "-o",
                str(folder),
                str(Path(source, "tree")),
                env={"SOURCE_DATE_EPOCH": str(time).strip()},
            )
        sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())})
    if sums[0] != sums[1]:
        session.error(f"the second build differs: {sums}")
    session.log("\n".join(f"{digest}  {name}" for name, digest in sums[0].items()))


WHEEL_TESTS = ("tests/test_digits.py", "tests/test_reader.py", "tests/test_remote.py")
"""What `wheel` runs: an import with its comparison, the reader, and models at URLs."""


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def wheel(session: nox.Session) -> None:
    """The wheel of `nox -s build` in a fresh environment: the README's example, then `WHEEL_TESTS` or those given.

    The tests run in a folder of their own, so that it is the wheel that they import.
    """
    (path,) = Path("build", "dist").glob("*.whl")
    session.install("-c", "constraints.txt", f"{path.resolve()}[all,hub,fsspec]", *TOOLS)
    folder = Path(session.create_tmp())
    for name in ("tests", "examples", "scripts", "docs"):
        shutil.copytree(name, folder / name, dirs_exist_ok=True)
    for name in ("pyproject.toml", "constraints.txt", "README.md", "CONTRIBUTING.md"):
        shutil.copy(name, folder)
    chosen = session.posargs or WHEEL_TESTS
    with session.chdir(folder):
        where = "import onnx2nn; assert 'site-packages' in onnx2nn.__file__, onnx2nn.__file__"
        session.run("python", "-c", where)
        example = ["--onnx_path", "examples/digits/digits.onnx", "--pytorch_path", "digits.pth"]
        session.run("onnx2pytorch", *example)
        session.run("pytest", "-q", *chosen, env={"PYTHONPATH": ""})


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """The fast tests under one Python: `nox -s tests-3.13 -- tests/test_cli.py`."""
    session.install("-c", "constraints.txt", "-e", ".[test]")
    session.run("pytest", "-n", "auto", *session.posargs)


def _install_flowvision(session: nox.Session) -> None:
    """It comes as source, and its setup.py imports pkg_resources, which setuptools has no more."""
    session.install("setuptools<81", "wheel")
    session.install("--no-build-isolation", *FLOWVISION)


@nox.session(python="3.10")
def oneflow(session: nox.Session) -> None:
    """All tests of the OneFlow side, under the one Python that OneFlow has; there is no torch in this environment."""
    session.install("-e", ".[oneflow,text]", "pytest", "pytest-xdist", "hypothesis")
    _install_flowvision(session)
    session.run("pytest", "-n", "auto", *NOT_HELD, "tests/oneflow", *session.posargs)


@nox.session(python="3.10")
def oneflow_zoo(session: nox.Session) -> None:
    """Exports and compares flowvision's models, about an hour; without names it writes docs/oneflow_zoo.md."""
    session.install("-e", ".[oneflow]")
    _install_flowvision(session)
    session.run("python", "scripts/oneflow_zoo.py", *session.posargs)


@nox.session
def benchmark(session: nox.Session) -> None:
    """The benchmarks beside the other importers: `nox -s benchmark -- run.py resnet18`."""
    session.install("-c", "constraints.txt", "-e", ".[test]", *PEERS)
    for script, *arguments in [session.posargs] if session.posargs else [["load.py"], ["run.py"], ["tree.py"]]:
        session.run("python", f"benchmarks/{script}", *arguments)


@nox.session(python="3.11")
def convert_models(session: nox.Session) -> None:
    """Measures rows of convert_models.md: `nox -s convert_models -- --run timm --workers 4`, then `-- --write`."""
    session.install("-c", "constraints.txt", "-e", ".[test,ray]", "timm", *PEERS)
    session.run("python", "scripts/convert_models.py", *(session.posargs or ["--write"]))


def _cached(session: nox.Session, family: str, name: str) -> bool:
    """Whether nothing else is asked for than a file that the cache holds as today's scripts would write it."""
    command = [sys.executable, "scripts/zoo/fingerprint.py", family, name]
    return not session.posargs and subprocess.run(command, check=False).returncode == 0


@nox.session
def zoo_tensorflow(session: nox.Session) -> None:
    """Keras files for tests/test_zoo.py: one model, or all models and operators by `nox -s zoo_tensorflow -- --all`."""
    name = "keras_mobilenet_v2"
    if _cached(session, "tensorflow", name):
        session.skip("the cache holds the file")
    session.install("-c", "scripts/zoo/constraints-tensorflow.txt", "tensorflow-cpu", "tf2onnx", "onnxruntime", "rich")
    session.run("python", "scripts/zoo/tensorflow_models.py", *(session.posargs or ["--only", name]))


@nox.session
def zoo_paddle(session: nox.Session) -> None:
    """Paddle files for tests/test_zoo.py: one model, or all models and operators by `nox -s zoo_paddle -- --all`."""
    name = "paddle_resnet18"
    if _cached(session, "paddle", name):
        session.skip("the cache holds the file")
    constraints = "scripts/zoo/constraints-paddle.txt"
    exporter = ["paddlepaddle", "paddle2onnx", "onnx_graphsurgeon", "onnxruntime", "rich"]
    definitions = ["requests", "tqdm", "pyyaml", "scipy", "six"]  # what the files of paddleclas that are used import
    session.install("-c", constraints, *exporter, *definitions)
    session.install("-c", constraints, "--no-deps", "paddleclas")
    session.run("python", "scripts/zoo/paddle_models.py", *(session.posargs or ["--only", name]))


@nox.session
def zoo_jax(session: nox.Session) -> None:
    """The files of jax2onnx in tests/data: `nox -s zoo_jax -- --out tests/data`."""
    session.install("-c", "scripts/zoo/constraints-jax.txt", "jax2onnx", "flax", "equinox", "onnxruntime", "rich")
    session.run("python", "scripts/zoo/jax_models.py", *session.posargs)


@nox.session(python="3.10")
def zoo_oneflow(session: nox.Session) -> None:
    """The files of `oneflow_bridge.export` in tests/data: `nox -s zoo_oneflow -- --out tests/data`."""
    session.install("-e", ".[oneflow]", "rich", "scipy")  # flowvision's GoogLeNet imports scipy
    _install_flowvision(session)
    session.run("python", "scripts/zoo/oneflow_models.py", *session.posargs)


@nox.session
def zoo_torch(session: nox.Session) -> None:
    """PyTorch files that the tests do not write, for scripts/oneflow_import.py: `nox -s zoo_torch -- --only NAME`."""
    session.install("-c", "constraints.txt", "-e", ".[test]", "rich")
    session.run("python", "scripts/zoo/torch_models.py", *session.posargs)


@nox.session
def train_digits(session: nox.Session) -> None:
    """Trains the digits classifier again and exports it: the files in examples/digits."""
    packages = ["tensorflow-cpu", "tf2onnx", "scikit-learn"]
    session.install("-c", "scripts/zoo/constraints-tensorflow.txt", *packages)
    session.run("python", "examples/digits/train.py", *session.posargs)
