"""Which versions of the inner wire two brokers need to communicate, and the log line about brokers that cannot.

The inner wire is the protocol between brokers. A broker speaks its own version and the one before, so the newer of two
brokers uses the older one's version. A broker publishes its version in its registration, and sends it when it
authenticates. Two brokers whose versions differ by more than one refuse to communicate, on both sides, because the same
message could have a different meaning in the other version.
"""

from __future__ import annotations

import logging

from spark_kafkalite.errors import InnerWireUnsupported
from spark_kafkalite.registry.znodes import INNER_WIRE_VERSION

logger = logging.getLogger(__name__)


def version_problem(broker_id: int, version: int, other_id: int, other_version: int) -> str:
    """Return why two brokers cannot communicate, and the remedy; "" if they can."""
    if abs(version - other_version) <= 1:
        return ""
    older, newer = sorted((version, other_version))
    step = f"to version {older + 1}" if newer - older == 2 else f"to version {older + 1}, then to the next,"
    return (
        f"broker {broker_id} has version {version} of the inner wire, broker {other_id} has version {other_version}: "
        "they do not speak to each other, because a broker speaks its own version and the one before. Upgrade step by "
        f"step: all brokers {step} before any has version {newer}"
    )


class WireVersions:
    """The version that this broker speaks, and the brokers to which it does not. Each of these is logged once."""

    def __init__(self, broker_id: int, version: int = INNER_WIRE_VERSION) -> None:
        self.version = version
        self._broker_id = broker_id
        # The version of each broker that was logged; -1 for a broker that refuses this one.
        self._told: dict[int, int] = {}

    def check(self, other_id: int, other_version: int) -> None:
        """Raise InnerWireUnsupported for a broker with which this one cannot communicate."""
        problem = version_problem(self._broker_id, self.version, other_id, other_version)
        if not problem:
            self._told.pop(other_id, None)
            return
        self._tell(other_id, other_version, problem)
        raise InnerWireUnsupported(problem)

    def refused_by(self, other_id: int, why: str) -> InnerWireUnsupported:
        """Return the error for a broker that refuses this one's version; ``why`` is that broker's text."""
        if other_id not in self._told:
            self._tell(other_id, -1, why)
        return InnerWireUnsupported(why)

    def _tell(self, other_id: int, other_version: int, problem: str) -> None:
        if self._told.get(other_id) != other_version:
            self._told[other_id] = other_version
            logger.error("%s", problem)
