"""docs/operations.md: the registry is lost or old, and brokers run, which ``recover-registry`` asks for what they have.

On the registry of ``kafkalite registry`` and on ZooKeeper.
"""

from __future__ import annotations

from tests.interop.cluster.lost_power import produce
from tests.interop.cluster.recovered_cluster import (
    BROKERS,
    Place,
    check_all_have,
    commit,
    committed,
    follow,
    values_of,
)
from tests.interop.cluster.test_commands import kafkalite
from tests.patience import wait_until

SECTION = "The registry is lost or old, and brokers run"


def asked(place: Place, *numbers: int) -> tuple[str, ...]:
    addresses = ",".join(place.cluster.broker(number).bootstrap for number in numbers)
    return "--config", place.properties(1), "--bootstrap-server", addresses


def wait_until_away(place: Place) -> None:
    """Wait until the brokers know that the registry is away, or another one."""
    text = "the connection to the registry is lost"
    for number in BROKERS:
        broker = place.cluster.broker(number)
        wait_until(lambda broker=broker: text in broker.stderr_path.read_text(), f"broker {number} to say {text!r}")  # type: ignore[misc]


def retention_of(place: Place, topic: str) -> str:
    described = ("configs", "describe", "--entity-type", "topics", "--entity-name", topic)
    return kafkalite(*described, "--bootstrap-server", place.cluster.bootstrap).stdout


def test_the_registry_is_lost_while_all_brokers_run(place: Place) -> None:
    place.create("events", [2, 1, 3], [3, 2, 1], retention_ms="3600000000")
    produce(place.cluster, "events", 0, 300)
    produce(place.cluster, "events", 0, 50, 1)
    commit(place, "events", 300)
    place.lose_registry()
    wait_until_away(place)

    shown, warned = place.recover(*asked(place, 1, 2))
    assert "retention.ms=3600000000" in shown
    # An empty registry does not know broker 3; the others do.
    assert "broker 3 may have logs of" in warned
    _, refused = place.recover(*asked(place, 1, 2), "--execute", code=1)
    assert "nothing has been written" in refused
    assert "recover-registry has asked this broker" not in place.cluster.broker(1).stderr_path.read_text()

    follow(place, SECTION)
    check_all_have(place, "events", 300)
    check_all_have(place, "events", 50, 1)
    assert committed(place, "events") == 300
    assert "3600000000" in retention_of(place, "events")
    produce(place.cluster, "events", 300, 400)
    assert values_of(place, "events", 400) == list(range(400))
