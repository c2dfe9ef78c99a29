"""PEFT's DoRA on the layers of LoRA: their weights' magnitudes are trained too; then merged."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject
from tests.ecosystem.tools.lora import adapted

TITLE = "DoRA (PEFT)"
PACKAGES = ("peft",)


def use(make: Make, subject: Subject) -> Any:
    """Returns which layers are adapted, and the outputs with the adapters, before and after they are merged."""
    return adapted(make(), subject, use_dora=True)
