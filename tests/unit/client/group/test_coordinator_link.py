"""Looking for a coordinator: what is said of one that cannot be found."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import CoordinatorNotAvailable
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorResponse


class NoCoordinator:
    """A cluster that has none for any group; time passes in its pauses only."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.config = SimpleNamespace(retry_backoff_ms=100, retry_backoff_max_ms=1_000, request_timeout_ms=30_000)

    def request_any(self, *_: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(error_code=CoordinatorNotAvailable.code, error_message="start more brokers")

    def pause(self, seconds: float) -> None:
        self.clock.advance(s=seconds)


@pytest.mark.parametrize(("timeout_ms", "told"), [(1_000, 0), (60_000, 1)])
def test_who_waits_long_for_a_coordinator_is_told_why_once(
    timeout_ms: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = NoCoordinator()
    link = CoordinatorLink(cast(ClusterClient, cluster), "readers")
    with caplog.at_level(logging.WARNING), pytest.raises(CoordinatorNotAvailable, match="start more brokers"):
        link.node(Deadline.after_ms(timeout_ms, cluster.clock))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == told
    assert all("'readers'" in each and "start more brokers" in each for each in said)
