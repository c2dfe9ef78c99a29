"""torch's own FlopCounterMode, by module."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`FlopCounterMode`"


def use(make: Make, subject: Subject) -> Any:
    """Returns the counts by operator of the model, and of its blocks."""
    module = make()
    with FlopCounterMode(display=False) as counter:
        outputs_of(module, subject)
    counts = counter.get_flop_counts()
    (root,) = {name.partition(".")[0] for name in counts} - {"Global"}
    found = {path: counts.get(f"{root}.{path}") for path in subject.blocks}
    return {path: _plain(by) for path, by in {"model": counts["Global"], **found}.items()}


def _plain(counts: dict[Any, int] | None) -> dict[str, int]:
    return {str(operator): count for operator, count in (counts or {}).items()}
