"""Times forms of a layer against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

_ROUNDS, _LEAST_ROUNDS = 30, 4
"""Measurements of each form, of which the fastest counts."""

_OTHERS = 1 << 20
"""Numbers that are read between the calls: about twice what the second cache of a processor holds."""

Form = TypeVar("Form", bound=Callable[..., Any])


def fastest(forms: Sequence[Form], seconds: float, *args: Any) -> dict[Form, float]:
    """Returns the seconds of each form's fastest call; of this thread where it computes alone: other programs run.

    Between the calls other memory is read, so that weights are where they are in a network: not in the nearest caches.

    Args:
        forms: what is called.
        seconds: after them, the least number of measurements is enough.
        args: the arguments.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    found = dict.fromkeys(forms, float("inf"))
    others = torch.ones(_OTHERS, dtype=torch.float32, device="cpu")
    end = clock() + seconds
    for round_ in range(_ROUNDS):
        if round_ >= _LEAST_ROUNDS and clock() > end:
            break
        for form in forms:
            others.sum()
            start = clock()
            form(*args)
            found[form] = min(found[form], clock() - start)
    return found
