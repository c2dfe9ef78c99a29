"""torchvision's `create_feature_extractor(model, [block])`."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torchvision.models.feature_extraction`"


def use(make: Make, subject: Subject) -> Any:
    """Returns the result of the block whose activations are looked at."""
    from torchvision.models.feature_extraction import create_feature_extractor

    return outputs_of(create_feature_extractor(make(), [subject.layer]), subject)
