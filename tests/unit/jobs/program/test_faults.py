"""Faults at named points, as the environment asks for them."""

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs.program.faults import POINTS, VARIABLE, FaultInjected, fault_point, forget_passed


@pytest.fixture(autouse=True)
def nothing_passed():
    forget_passed()


def test_without_a_request_nothing_happens(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for point in POINTS:
        fault_point(point)


def test_the_nth_time_counts(monkeypatch):
    monkeypatch.setenv(VARIABLE, "moved-one:raise:2, staged:raise")
    fault_point("moved-one")
    fault_point("planned")
    with pytest.raises(FaultInjected, match="moved-one"):
        fault_point("moved-one")
    fault_point("moved-one")
    with pytest.raises(FaultInjected, match="staged"):
        fault_point("staged")


@pytest.mark.parametrize("asked", ["nowhere:kill", "staged", "staged:explode", "staged:kill:x"])
def test_a_request_that_cannot_be_read_is_an_error(monkeypatch, asked):
    monkeypatch.setenv(VARIABLE, asked)
    with pytest.raises(ConfigError, match="POINT:ACTION"):
        fault_point("planned")
