"""What the simulator's tests share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Brokers that fail log a million lines, which help no reader."""
    logger = logging.getLogger("spark_kafkalite")
    logger.propagate = False
    yield
    logger.propagate = True
