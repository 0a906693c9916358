"""What state the broker is in, for probes and metrics: Kafka's states with Kafka's numbers.

Whether a broker is ready depends on nothing but itself: were it to wait for other brokers, a cluster whose hosts start
one after the other would never come up under an orchestrator. Source: org.apache.kafka.metadata.BrokerState (numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum


class BrokerState(IntEnum):
    """The states that this broker can be in while its process runs."""

    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


_WHY_NOT_READY = {
    BrokerState.STARTING: "the broker starts",
    BrokerState.RECOVERY: "the broker loads its logs",
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: "the broker stops: it hands its partitions over",
    BrokerState.SHUTTING_DOWN: "the broker stops",
}


class BrokerHealth:
    """The state, set by the start and the stop, and the connection to the registry."""

    def __init__(self) -> None:
        self.state = BrokerState.STARTING
        # Whether the broker has a registry session and a connection at present; asked when it runs.
        self.is_registered: Callable[[], bool] = lambda: True

    def enter(self, state: BrokerState) -> None:
        """Be in another state."""
        self.state = state

    def why_not_ready(self) -> list[str]:
        """Return the reasons for which clients should not be sent here; none when the broker is ready."""
        if self.state is not BrokerState.RUNNING:
            return [_WHY_NOT_READY[self.state]]
        return [] if self.is_registered() else ["the broker has no session with the registry"]
