"""Environments. `nox` runs the default sessions; the suite itself is `pytest`, in the environment nox is installed in."""

from __future__ import annotations

import sys

import nox

nox.options.sessions = ["lint"]
nox.options.default_venv_backend = "virtualenv"


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Format, lint and types, with the tools of the environment that nox runs in."""
    python = sys.executable
    session.run(python, "-m", "ruff", "format", "--check", ".")
    session.run(python, "-m", "ruff", "check", ".")
    session.run(python, "-m", "mypy")


@nox.session(python=["3.10", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """The suite under the other Pythons: `nox -s tests-3.13 -- tests/test_cli.py`."""
    session.install("-c", "constraints.txt", "-e", ".[test]")
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session
def benchmark(session: nox.Session) -> None:
    """The benchmarks beside the other importers: `nox -s benchmark -- run.py resnet18`."""
    session.install("-c", "constraints.txt", "-e", ".[test]", "onnx2torch==1.5.15", "onnx2pytorch==0.6.0")
    for script, *arguments in [session.posargs] if session.posargs else [["load.py"], ["run.py"]]:
        session.run("python", f"benchmarks/{script}", *arguments)
