"""docs/operations.md: the registry is lost or old, and brokers run, which ``recover-registry`` asks for what they have.

On the registry of ``kafkalite registry`` and on ZooKeeper.
"""

from __future__ import annotations

import shutil

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.errors import InvalidRequest, KafkaliteError
from spark_kafkalite.registry.zookeeper import open_zookeeper
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
from tests.interop.cluster.streams import Ours
from tests.interop.cluster.test_commands import kafkalite
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.sampled("place")

SECTION = "The registry is lost or old, and brokers run"
STANDS_STILL = "kafkalite cluster recover-registry has asked this broker for its logs"


def asked(place: Place, *numbers: int) -> tuple[str, ...]:
    addresses = ",".join(place.cluster.broker(number).bootstrap for number in numbers)
    return "--config", place.properties(1), "--bootstrap-server", addresses


def said_by(place: Place, number: int) -> str:
    return place.cluster.broker(number).stderr_path.read_text()


def wait_until_away(place: Place, *numbers: int) -> None:
    """Wait until brokers know that the registry is away, or another one."""
    text = "the connection to the registry is lost"
    wait_until(lambda: all(text in said_by(place, number) for number in numbers), f"brokers to say {text!r}")


def settings_of(place: Place, topic: str) -> str:
    described = ("configs", "describe", "--entity-type", "topics", "--entity-name", topic)
    return kafkalite(*described, "--bootstrap-server", place.cluster.bootstrap).stdout


def check_nothing_is_taken(place: Place, topic: str) -> None:
    settings = {"bootstrap.servers": place.cluster.bootstrap, "delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000}
    with Producer(settings) as producer, pytest.raises(KafkaliteError):
        producer.send(topic, b"-1", partition=0).result(PATIENCE_S)


def test_the_registry_is_lost_while_all_brokers_run(place: Place) -> None:
    place.create("events", [2, 1, 3], [3, 2, 1], retention_ms="3600000000")
    place.create("streamed", [1, 2, 3])
    produce(place.cluster, "events", 0, 300)
    produce(place.cluster, "events", 0, 50, 1)
    commit(place, "events", 300)
    stream = Ours(place.cluster.bootstrap, "streamed", place.directory)
    wait_until(lambda: stream.acknowledged > 100, "records to be acknowledged")
    place.lose_registry()
    wait_until_away(place, *BROKERS)

    shown, warned = place.recover(*asked(place, 1, 2))
    assert "retention.ms=3600000000" in shown
    # An empty registry does not know broker 3; the others do.
    assert "broker 3 may have logs of" in warned
    _, refused = place.recover(*asked(place, 1, 2), "--execute", code=1)
    assert "nothing has been written" in refused
    assert not any(STANDS_STILL in said_by(place, number) for number in BROKERS)

    follow(place, SECTION)
    stream.stop()
    assert (stream.errors, stream.acknowledged) == ([], stream.sent)
    check_all_have(place, "streamed", stream.sent)
    check_all_have(place, "events", 300)
    check_all_have(place, "events", 50, 1)
    assert committed(place, "events") == 300
    assert "3600000000" in settings_of(place, "events")
    produce(place.cluster, "events", 300, 400)
    assert values_of(place, "events", 400) == list(range(400))


def test_the_registry_is_old_and_one_broker_has_ended(place: Place) -> None:
    place.create("events", [2, 1, 3])
    produce(place.cluster, "events", 0, 100)
    place.stop_all()
    yesterday = shutil.copytree(place.data, place.directory / "yesterday")
    place.start_registry()
    for number in BROKERS:
        place.cluster.restart(number)
    place.wait_in_sync()
    # Yesterday's leader has left the ISR, and lacks what was acknowledged since.
    place.cluster.kill(2)
    produce(place.cluster, "events", 100, 400)
    make_transactions(place)
    place.put_back(yesterday)
    wait_until_away(place, 1, 3)

    _, refused = place.recover(*asked(place, 1, 2, 3), code=1)
    assert f"broker at {place.cluster.broker(2).bootstrap}: no broker answers" in refused
    _, warned = place.recover(*asked(place, 1, 3))
    assert "broker 2 may have logs of events-0" in warned
    place.recover("--config", place.properties(2), "--to", place.file(2))
    all_of_them = (*asked(place, 1, 3), "--from", place.file(2), "--execute")
    _, said = place.recover(*all_of_them)
    assert "restart brokers 1, 3, which lead nothing until then" in said
    assert "start brokers 2" in said
    assert all(said_by(place, number).count(STANDS_STILL) == 1 for number in (1, 3))
    check_nothing_is_taken(place, "events")
    # It may be done again: what the brokers have stays as it is.
    place.recover(*all_of_them)
    for number in (2, 1, 3):
        place.cluster.restart(number)
    place.wait_in_sync()
    check_all_have(place, "events", 400)
    # The same copy is older than the logs again.
    place.stop_brokers()
    place.put_back(yesterday)
    assert "older than the logs" in place.refused(1)


def make_transactions(place: Place) -> None:
    """Have the registry come so far that sessions of brokers that it refuses do not soon make up for it."""
    store = open_zookeeper(str(place.cluster.broker(1).settings["zookeeper.connect"]))
    try:
        store.create("/made").result(PATIENCE_S)
        for each in [store.set("/made", b"%d" % number) for number in range(2_000)]:
            each.result(PATIENCE_S)
    finally:
        store.close()


def test_a_broker_that_was_asked_goes_on_with_its_registry_when_it_is_restarted(place: Place) -> None:
    place.create("events", [2, 1, 3])
    produce(place.cluster, "events", 0, 100)
    refused = pytest.raises(InvalidRequest, match="connected to a registry that is neither lost nor older")
    with Admin(bootstrap_servers=place.cluster.broker(2).bootstrap) as admin, refused:
        admin.host_logs(stands_still=True)
    produce(place.cluster, "events", 100, 150)
    place.stop_registry()
    wait_until_away(place, *BROKERS)
    with Admin(bootstrap_servers=place.cluster.broker(2).bootstrap) as admin:
        admin.host_logs(stands_still=True)
    # The leader has been asked, and the others do not lead without the registry.
    check_nothing_is_taken(place, "events")
    place.start_registry()
    wait_until(lambda: leader_of(place, "events") in (1, 3), "another broker to lead")
    produce(place.cluster, "events", 150, 200)
    with Admin(bootstrap_servers=place.cluster.broker(1).bootstrap) as admin:
        wait_until(
            lambda: 2 not in {node.node_id for node in admin.describe_cluster().brokers}, "the first broker to miss it"
        )
    place.cluster.restart(2)
    place.wait_in_sync()
    check_all_have(place, "events", 200)


def leader_of(place: Place, topic: str) -> int:
    with Admin(bootstrap_servers=place.cluster.broker(1).bootstrap) as admin:
        return admin.describe_topics([topic])[topic].partitions[0].leader


def test_nothing_is_asked_of_brokers_that_have_a_registry(place: Place) -> None:
    place.create("events", [1, 2, 3])
    _, refused = place.recover(*asked(place, *BROKERS), "--execute", code=1)
    assert refused.count("connected to a registry that is neither lost nor older") == 3
    produce(place.cluster, "events", 0, 10)
