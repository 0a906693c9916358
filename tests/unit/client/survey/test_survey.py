"""What a survey makes of a coordinator that is not ready to list its groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.survey.survey import ListedGroup, MonitoredCluster
from spark_kafkalite.errors import ClusterAuthorizationFailed, CoordinatorLoadInProgress
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.messages.list_groups import ListedGroup as Listed
from spark_kafkalite.wire.messages.list_groups import ListGroupsResponse

BROKER_MS = 2_000
SURVEY_MS = 5_000


class OneBroker:
    """Broker 1, which refuses to list its groups the first ``refusals`` times."""

    def __init__(self, refusals: int, error_code: int = CoordinatorLoadInProgress.code) -> None:
        self.clock = ManualClock()
        self.asked = 0
        self.snapshot = SimpleNamespace(nodes={1: None})
        self._refusals = refusals
        self._error_code = error_code

    def request_to(self, *_: object) -> ListGroupsResponse:
        self.asked += 1
        if self.asked <= self._refusals:
            return ListGroupsResponse(error_code=self._error_code)
        listed = Listed(group_id="g", protocol_type="consumer", group_state="Empty", group_type="classic")
        return ListGroupsResponse(groups=[listed])

    def pause(self, seconds: float) -> None:
        self.clock.advance(s=seconds)

    def survey(self) -> MonitoredCluster:
        survey = MonitoredCluster(cast("ClusterClient", self), broker_ms=BROKER_MS, clock=self.clock)
        survey.begin(SURVEY_MS)
        return survey


def test_a_coordinator_that_loads_its_groups_is_asked_again() -> None:
    broker = OneBroker(refusals=3)
    survey = broker.survey()
    assert survey.list_groups() == [ListedGroup("g", 1, "Empty", "consumer", "classic")]
    assert not survey.failures and broker.asked == 4


@pytest.mark.parametrize(
    ("error_code", "asked"),
    [(CoordinatorLoadInProgress.code, BROKER_MS // 50), (ClusterAuthorizationFailed.code, 1)],
    ids=["loads for long", "not allowed"],
)
def test_a_refusal_that_lasts_is_noted(error_code: int, asked: int) -> None:
    broker: Any = OneBroker(refusals=1_000, error_code=error_code)
    survey = broker.survey()
    began_s = broker.clock.monotonic_s()
    assert survey.list_groups() == []
    assert "broker 1 cannot list its groups" in survey.failures[1]
    assert asked - 1 <= broker.asked <= asked + 1
    assert broker.clock.monotonic_s() - began_s <= BROKER_MS / 1000
