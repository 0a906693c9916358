"""The limit of open files, divided: the shares fit, and refusals say what to do."""

from __future__ import annotations

import pytest

from spark_kafkalite.net.descriptors import Descriptors, registry_connections

# What a broker has open besides, measured (13) and doubled.
OWN = 26


@pytest.mark.parametrize("limit", [64, 100, 256, 600, 1024, 4096, 65_536, 1_048_576])
@pytest.mark.parametrize("serves_registry", [False, True])
def test_the_shares_fit_into_the_limit_and_leave_what_the_broker_itself_needs(
    limit: int, serves_registry: bool
) -> None:
    divided = Descriptors(limit, serves_registry=serves_registry)
    clients = divided.registry_clients if serves_registry else 0
    for partitions in range(0, divided.most_partitions + 1, max(divided.most_partitions // 50, 1)):
        connections = divided.most_connections(partitions)
        assert connections >= 1
        with_brokers = divided.most_connections(partitions, for_brokers=True)
        # Under the smallest limits that mean anything, a few other brokers have their place, too.
        assert with_brokers - connections >= min(8, limit // 8)
        own = limit - divided.kept_open - clients - partitions - with_brokers
        assert own >= min(OWN, limit // 8), (partitions, connections)


def test_what_the_documentation_promises_fits() -> None:
    large = Descriptors(4096)
    assert large.most_partitions >= 2000 and large.most_connections(2000) >= 1000
    small = Descriptors(256)
    assert (small.most_partitions, small.most_connections(0), small.most_connections(128)) == (128, 160, 32)


def test_new_partitions_are_refused_with_the_limit_what_is_used_and_what_to_do() -> None:
    divided = Descriptors(256)
    assert divided.room_for_partitions(connections=5) == 128
    assert divided.why_not_hosted("topic t", 29, 100, connections=5) == (
        "topic t: 29 more partitions cannot be hosted: the limit of open files is 256, which leaves room for 128 "
        "partitions, and 100 are hosted; raise it (ulimit -n, or LimitNOFILE= of the service) and restart the broker, "
        "or delete topics"
    )


def test_open_connections_count_against_new_partitions() -> None:
    divided = Descriptors(256)
    assert divided.room_for_partitions(connections=100) == 60
    assert "room for 60 partitions next to 100 open connections" in divided.why_not_hosted("topic t", 61, 0, 100)


def test_a_registry_alone_leaves_descriptors_for_itself() -> None:
    assert [registry_connections(limit) for limit in (1_048_576, 1064, 256, 40)] == [1000, 1000, 192, 30]
