"""cloudpickle, as Ray, Dask and Spark send modules to their workers."""

from __future__ import annotations

import pickle
from typing import Any

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "cloudpickle"
PACKAGES = ("cloudpickle",)


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of a copy, and of a function that holds the module."""
    import cloudpickle

    module = make()
    copy = pickle.loads(cloudpickle.dumps(module))
    function = pickle.loads(cloudpickle.dumps(lambda *inputs: module(*inputs)))
    return outputs_of(copy, subject) + outputs_of(function, subject)
