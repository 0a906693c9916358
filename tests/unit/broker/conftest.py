"""What tests of the broker begin with."""

from __future__ import annotations

import sys

import pytest

from spark_kafkalite.quiet_log import QuietLog


@pytest.fixture(autouse=True)
def quiet_logs_begin_again() -> None:
    """A module's QuietLog writes few lines of a kind in ten seconds. The tests before may have used them up."""
    for name, module in list(sys.modules.items()):
        if name.startswith("spark_kafkalite.broker.") and isinstance(quiet := vars(module).get("_quiet"), QuietLog):
            quiet._kinds.clear()
