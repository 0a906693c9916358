"""Which versions of the inner wire two brokers need to speak to each other, and the line in the log where they do not.

A broker speaks its own version and the one before, so the newer of two brokers goes by the older one's. Each says its
version in its registration, and with the proof of who it is. Any other pair refuses to talk, on both sides: what one
would say means something else to the other.
"""

from __future__ import annotations

import logging

from spark_kafkalite.errors import InnerWireUnsupported
from spark_kafkalite.registry.znodes import INNER_WIRE_VERSION

logger = logging.getLogger(__name__)


def version_problem(broker_id: int, version: int, other_id: int, other_version: int) -> str:
    """Return why two brokers cannot speak to each other, and what to do; "" when they can."""
    if abs(version - other_version) <= 1:
        return ""
    older, newer = sorted((version, other_version))
    step = f"to version {older + 1}" if newer - older == 2 else f"to version {older + 1}, then to the next,"
    return (
        f"broker {broker_id} has version {version} of the inner wire, broker {other_id} has version {other_version}: "
        "they do not speak to each other, because a broker speaks its own version and the one before; upgrade step by "
        f"step: all brokers {step} before any has version {newer}"
    )


class WireVersions:
    """What this broker speaks, and with whom it does not; each of these is told once in the log."""

    def __init__(self, broker_id: int, version: int = INNER_WIRE_VERSION) -> None:
        self.version = version
        self._broker_id = broker_id
        # The version of each broker that was told of.
        self._told: dict[int, int] = {}

    def check(self, other_id: int, other_version: int) -> None:
        """Raise InnerWireUnsupported for a broker that this one does not speak to."""
        problem = version_problem(self._broker_id, self.version, other_id, other_version)
        if not problem:
            self._told.pop(other_id, None)
            return
        self._tell(other_id, other_version, problem)
        raise InnerWireUnsupported(problem)

    def refused_by(self, other_id: int, why: str) -> InnerWireUnsupported:
        """Return the error for a broker that refuses this one's version, and ``why`` by its words."""
        if other_id not in self._told:
            self._tell(other_id, -1, why)
        return InnerWireUnsupported(why)

    def _tell(self, other_id: int, other_version: int, problem: str) -> None:
        if self._told.get(other_id) != other_version:
            self._told[other_id] = other_version
            logger.error("%s", problem)
