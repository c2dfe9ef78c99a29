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
