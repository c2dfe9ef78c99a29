"""These tests need OneFlow, hence Python 3.10: `nox -s oneflow` runs them in an environment of their own."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

# Not by find_spec: this folder has the same name.
AVAILABLE = any(importlib.metadata.distributions(name="oneflow"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if not AVAILABLE and collection_path.name.startswith("test_") else None


def pytest_report_header() -> str | None:
    return None if AVAILABLE else "tests/oneflow: left out, for OneFlow is not installed (nox -s oneflow runs them)"
