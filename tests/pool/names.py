"""Numbers for names of topics and groups, which no other process of the run gives: the outside parts are shared."""

from __future__ import annotations

import itertools
import os
from typing import Final

# Set by the runner for each process that runs tests.
WORKER_VARIABLE: Final = "KAFKALITE_TEST_WORKER"
_NAMES_OF_A_WORKER: Final = 1_000_000


def own_numbers() -> itertools.count[int]:
    """Return a counter for a test file's names."""
    worker = os.environ.get(WORKER_VARIABLE) or os.environ.get("PYTEST_XDIST_WORKER", "0").removeprefix("gw")
    return itertools.count(int(worker) * _NAMES_OF_A_WORKER + 1)
