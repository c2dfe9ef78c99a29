"""The garbage collector during an import: what exists before the program is not searched."""

from __future__ import annotations

import gc
import subprocess
import sys

from onnx2nn.ground import gc_pause


class _Cycle:
    def __init__(self, number: int):
        self.number, self.itself = number, self


def _young() -> set[int]:
    """Returns the numbers of the cycles that the next collection of young objects would search."""
    young = (item for generation in (0, 1) for item in gc.get_objects(generation))
    return {item.number for item in young if type(item) is _Cycle}


def test_objects_set_aside_are_not_searched_and_not_frozen() -> None:
    gc.collect()
    with gc_pause.paused():
        kept = [_Cycle(number) for number in range(10)]
        assert _young() == set(range(10))
        gc_pause.set_aside()
        assert _young() == set()
        kept.append(_Cycle(10))
        assert _young() == {10}
    assert gc.get_freeze_count() == 0


def test_set_aside_leaves_what_the_caller_has_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_pause.paused():
            gc_pause.set_aside()
        assert frozen > 0
        assert gc.get_freeze_count() >= frozen - 10  # some die by their last reference
    finally:
        gc.unfreeze()


def test_cycles_set_aside_are_freed_by_a_full_collection() -> None:
    with gc_pause.paused():
        cycles = [_Cycle(number) for number in range(10)]
        gc_pause.set_aside()
    del cycles
    gc.collect()
    assert not [item for item in gc.get_objects() if type(item) is _Cycle]


def test_what_is_imported_is_not_searched() -> None:
    """The first collection behind the imports of a fresh process finds none of their thousands of objects."""
    young = "sum(map(len, map(gc.get_objects, (0, 1))))"
    program = f"import gc, torch, onnx2nn; gc.collect(); onnx2nn.load; assert {young} < 99"
    subprocess.run([sys.executable, "-c", program], check=True)
