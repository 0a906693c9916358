"""The phases of a consumer from open to closed, and what its calls do in each.

    OPEN      everything is served
    CLOSING   close() was called: polls and iterations end with ClosedError, other calls are served
    LEAVING   one thread that closes has the consumer to itself: it commits if that is automatic, calls on_revoked,
              which may commit, and leaves the group; its own close() from there returns at once
    LEFT      that is done, and is not done again
    CLOSED    every call but close() raises ClosedError

A consumer without a group goes from CLOSING to CLOSED, and so does one whose polling thread did not let go in time. A
``close()`` without time left does not wait for another thread that is LEAVING.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from spark_kafkalite.client.lifecycle import Lifecycle


class ConsumerPhase(Enum):
    """See the module's text."""

    OPEN = auto()
    CLOSING = auto()
    LEAVING = auto()
    LEFT = auto()
    CLOSED = auto()


FOLLOWING: Final = {
    ConsumerPhase.OPEN: {ConsumerPhase.CLOSING},
    ConsumerPhase.CLOSING: {ConsumerPhase.LEAVING, ConsumerPhase.CLOSED},
    ConsumerPhase.LEAVING: {ConsumerPhase.LEFT, ConsumerPhase.CLOSED},
    ConsumerPhase.LEFT: {ConsumerPhase.CLOSED},
    ConsumerPhase.CLOSED: frozenset[ConsumerPhase](),
}


def consumer_lifecycle() -> Lifecycle[ConsumerPhase]:
    """Return the life of a new consumer."""
    return Lifecycle(ConsumerPhase.OPEN, FOLLOWING)
