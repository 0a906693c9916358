"""The phases of a producer from open to closed, and what its calls do in each.

    OPEN      everything is served
    CLOSING   close() was called: send() raises ClosedError, also where it waits for memory; what was sent before goes
              on its way, open batches at once
    ABORTING  no time is left, or the thread has failed: nothing more is sent
    ENDED     the thread is through: what had no outcome has failed with ClosedError, and callbacks have been called

``flush()``, ``close()`` and the handles work in every state. A state changes under the accumulator's lock when records
could be added otherwise (:func:`.sender.Sender.refuse_records`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from spark_kafkalite.client.lifecycle import Lifecycle


class ProducerPhase(Enum):
    """See the module's text."""

    OPEN = auto()
    CLOSING = auto()
    ABORTING = auto()
    ENDED = auto()


FOLLOWING: Final = {
    ProducerPhase.OPEN: {ProducerPhase.CLOSING, ProducerPhase.ABORTING},
    ProducerPhase.CLOSING: {ProducerPhase.ABORTING},
    ProducerPhase.ABORTING: {ProducerPhase.ENDED},
    ProducerPhase.ENDED: frozenset[ProducerPhase](),
}


def producer_lifecycle() -> Lifecycle[ProducerPhase]:
    """Return the life of a new producer."""
    return Lifecycle(ProducerPhase.OPEN, FOLLOWING)
