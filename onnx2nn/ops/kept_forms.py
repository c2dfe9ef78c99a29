"""Forms of weights that operators keep from call to call, as long as the weights live and are not written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from onnx2nn.optable.row import has_values

T = TypeVar("T")

_MOST = 4
"""The number of settings for which forms of one weight are kept."""


@dataclass(frozen=True)
class _Form(Generic[T]):
    """What a weight was made into.

    Attributes:
        others: the tensors that the form depends on too.
        versions: of the weight and of them, which change when they are written.
        form: None where it was made for one call.
    """

    others: tuple[Any, ...]
    versions: list[int | None]
    form: T | None


class KeptForms(Generic[T]):
    """Keeps one kind of form of weights. A form must not hold the weight itself, which would live as long as it."""

    def __init__(self) -> None:
        self._forms: Any = None

    def form(
        self,
        F: Any,
        weight: Any,
        others: Sequence[Any],
        settings: Hashable,
        make: Callable[[], T],
        once: Callable[[], T] | None = None,
    ) -> T:
        """Returns the form of a weight. It is made in each call where a tensor has no values, or no version.

        Args:
            F: torch, or another namespace.
            weight: a tensor.
            others: tensors that the form depends on too, or None.
            settings: what else it depends on.
            make: makes the form.
            once: makes it for the first call, as what comes once may be no weight.
        """
        tensors = (weight, *(other for other in others if other is not None))
        if not hasattr(F, "_int_mm") or not has_values(F, *tensors) or any(tensor.is_inference() for tensor in tensors):
            return (once or make)()
        versions = [None if tensor is None else tensor._version for tensor in (weight, *others)]
        forms = self._of(weight)
        known = forms.pop(settings, None)
        if known is not None and (
            known.versions != versions or any(a is not b for a, b in zip(known.others, others, strict=True))
        ):
            known = None
        if known is not None and known.form is not None:
            forms[settings] = known  # the last used stands last
            return known.form
        kept = once is None or known is not None
        made = make() if kept else once()  # type: ignore[misc]  # `once` is given where nothing is kept
        forms[settings] = _Form(tuple(others), versions, made if kept else None)
        for oldest in [*forms][:-_MOST]:
            forms.pop(oldest, None)
        return made

    def _of(self, weight: Any) -> dict[Hashable, _Form[T]]:
        if self._forms is None:
            from torch.utils.weak import WeakTensorKeyDictionary

            self._forms = WeakTensorKeyDictionary()
        return self._forms.setdefault(weight, {})  # type: ignore[no-any-return]  # a dictionary of its own

    def __len__(self) -> int:
        """The number of weights that have forms."""
        return 0 if self._forms is None else len(self._forms)
