import json

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration, SubscriptionPattern
from spark_kafkalite.registry.node_json import MalformedNode


def test_paths_are_those_of_kafka() -> None:
    assert consumer_nodes.consumer_id_path("g", "h:1") == "/consumers/g/ids/h:1"
    assert consumer_nodes.owner_path("g", "t", 3) == "/consumers/g/owners/t/3"
    assert consumer_nodes.offset_path("g", "t", 3) == "/consumers/g/offsets/t/3"
    assert consumer_nodes.consumer_ids_path("g") == "/consumers/g/ids"
    assert consumer_nodes.topic_owners_path("g", "t") == consumer_nodes.owners_path("g") + "/t"
    assert consumer_nodes.topic_offsets_path("g", "t") == consumer_nodes.offsets_path("g") + "/t"


def test_a_registration_is_byte_for_byte_what_kafka_0_8_wrote() -> None:
    # kafka.consumer.ZookeeperConsumerConnector.registerConsumerInZK: Json.encode of a map in this order.
    assert ConsumerRegistration({"t": 2, "u": 1}, timestamp_ms=1_416_000_000_000).encode() == (
        b'{"version":1,"subscription":{"t":2,"u":1},"pattern":"static","timestamp":"1416000000000"}'
    )
    filtered = ConsumerRegistration({r"log\..*|web": 3}, SubscriptionPattern.WHITE_LIST, 5)
    assert filtered.encode() == (
        rb'{"version":1,"subscription":{"log\\..*|web":3},"pattern":"white_list","timestamp":"5"}'
    )


@pytest.mark.parametrize(
    "registration",
    [
        ConsumerRegistration({"t": 2}, SubscriptionPattern.STATIC, 7),
        ConsumerRegistration({".*": 1}, SubscriptionPattern.BLACK_LIST, 0),
        ConsumerRegistration({'été|"quoted"': 4}, SubscriptionPattern.WHITE_LIST, 2**41),
    ],
)
def test_a_registration_comes_back(registration: ConsumerRegistration) -> None:
    assert ConsumerRegistration.decode("g", "c", registration.encode()) == registration


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"version":1,"pattern":"static"}',
        b'{"version":1,"subscription":{"t":0},"pattern":"static"}',
        b'{"version":1,"subscription":{"t":1},"pattern":"other"}',
        b'{"version":1,"subscription":{"a":1,"b":1},"pattern":"white_list"}',
        b'{"version":1,"subscription":["t"],"pattern":"static"}',
        b'{"version":1,"subscription":{"t":10001},"pattern":"static"}',
        b'{"version":1,"subscription":{"t":1.5},"pattern":"static"}',
        b'{"version":1,"subscription":{"t":1e999},"pattern":"static"}',
        b'{"version":1,"subscription":{"t":1},"pattern":["static"]}',
        b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"9223372036854775808"}',
    ],
)
def test_a_malformed_registration_names_its_path(data: bytes) -> None:
    with pytest.raises(MalformedNode, match="/consumers/g/ids/c"):
        ConsumerRegistration.decode("g", "c", data)


def test_unknown_fields_and_later_versions_are_read() -> None:
    data = json.dumps({"version": 2, "subscription": {"t": 1}, "pattern": "static", "new": [1]}).encode()
    assert ConsumerRegistration.decode("g", "c", data) == ConsumerRegistration({"t": 1})


def test_thread_ids_name_their_consumer() -> None:
    thread = consumer_nodes.thread_id("host:a-b-c", 11)
    assert thread == "host:a-b-c-11"
    assert consumer_nodes.consumer_of(thread) == "host:a-b-c"
    assert consumer_nodes.decode_owner("g", "t", 0, consumer_nodes.encode_owner(thread)) == thread


def test_offsets_are_decimal_numbers() -> None:
    assert consumer_nodes.encode_offset(2**40) == b"1099511627776"
    assert consumer_nodes.decode_offset("g", "t", 0, b"1099511627776") == 2**40
    assert consumer_nodes.decode_offset("g", "t", 0, b"9223372036854775807") == 2**63 - 1
    for data in (b"", b"x", b"-1", b"1.5", b"9223372036854775808", b" 1", b"1_0", b"9" * 5000, b"\xff"):
        with pytest.raises(MalformedNode, match="/consumers/g/offsets/t/0"):
            consumer_nodes.decode_offset("g", "t", 0, data)


def test_names_that_cannot_be_one_part_of_a_path_are_refused() -> None:
    consumer_nodes.check_name("group.id", "group 1:ä")
    for name in ("", ".", "..", "a/b", "a\nb"):
        with pytest.raises(ConfigError, match=r"group\.id="):
            consumer_nodes.check_name("group.id", name)
