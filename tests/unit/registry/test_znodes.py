import json
import random
import uuid
from dataclasses import replace

import pytest

from spark_kafkalite.model import BrokerEpoch, BrokerId, ControllerEpoch, Incarnation, LeaderEpoch
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.accepted_damage import AcceptedDamage
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.election import elect
from spark_kafkalite.registry.node_json import MOST_STATE_FIELDS_BYTES, NO_FIELDS, MalformedNode
from spark_kafkalite.registry.producer_id_block import ProducerIdBlock
from spark_kafkalite.registry.store import MAX_DATA_BYTES, Stat
from spark_kafkalite.registry.znodes import BrokerRegistration, LeaderAndIsr, TopicAssignment
from tests.lab.partition_states import live_broker


def test_paths_are_kafkas() -> None:
    assert znodes.broker_path(3) == "/brokers/ids/3"
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.state_path("t", 0) == "/brokers/topics/t/partitions/0/state"
    assert znodes.topic_config_path("t") == "/config/topics/t"


def test_broker_registration_has_kafkas_fields_and_comes_back() -> None:
    registration = BrokerRegistration(BrokerId(1), "h", 9092, "r1", 1700000000000)
    fields = json.loads(registration.encode())
    assert fields == {
        "version": 5,
        "host": "h",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "1700000000000",
        "endpoints": ["PLAINTEXT://h:9092"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "features": {},
        "rack": "r1",
    }
    decoded = BrokerRegistration.decode(1, registration.encode())
    assert (decoded.host, decoded.port, decoded.rack, decoded.timestamp_ms) == ("h", 9092, "r1", 1700000000000)


def test_a_registration_names_the_version_of_its_broker() -> None:
    named = BrokerRegistration(BrokerId(1), "h", 9, software_version="1.2.3").encode()
    assert BrokerRegistration.decode(1, named).software_version == "1.2.3"
    # An older broker names none, and no text or number there makes a broker unknown to others.
    fields = json.loads(BrokerRegistration(BrokerId(1), "h", 9).encode())
    assert "software_version" not in fields
    for value, read in ((None, ""), (7, ""), (["1"], ""), ("v" * 30_000, "v" * 64)):
        data = json.dumps({**fields, "software_version": value}).encode()
        assert BrokerRegistration.decode(1, data).software_version == read


def test_an_ipv6_host_is_bracketed_in_the_endpoint() -> None:
    assert json.loads(BrokerRegistration(BrokerId(1), "::1", 9).encode())["endpoints"] == ["PLAINTEXT://[::1]:9"]


def test_a_registration_has_the_protocol_of_each_listener() -> None:
    secured = BrokerRegistration(
        BrokerId(1),
        "h",
        9093,
        endpoints=("SSL://h:9093", "INNER://10.0.0.1:9094"),
        protocols={"INNER": "SASL_SSL"},
        inner_listener="INNER",
        incarnation=Incarnation(5),
    )
    fields = json.loads(secured.encode())
    assert fields["listener_security_protocol_map"] == {"SSL": "SSL", "INNER": "SASL_SSL"}
    # Programs of old take these for the address of a listener without TLS and SASL, as Kafka has it.
    assert (fields["host"], fields["port"]) == (None, -1)
    read = BrokerRegistration.decode(1, secured.encode())
    assert (read.address("SSL"), read.address("PLAINTEXT"), read.inner_protocol) == (("h", 9093), None, "SASL_SSL")
    info = BrokerInfo.of(read, BrokerEpoch(1))
    assert (info.host, info.inner_address, info.inner_protocol) == ("h", ("10.0.0.1", 9094), "SASL_SSL")
    both = BrokerRegistration(
        BrokerId(1), "h", 8, endpoints=("SSL://h:8", "OUT://h:9"), protocols={"OUT": "PLAINTEXT", "SSL": "SSL"}
    )
    fields = json.loads(both.encode())
    assert (fields["host"], fields["port"]) == ("h", 9)
    assert BrokerRegistration.decode(1, both.encode()).inner_protocol == "SSL"


def test_a_registration_without_host_takes_its_first_endpoint() -> None:
    data = b'{"version":5,"host":null,"port":-1,"endpoints":["SSL://[::1]:7"],"timestamp":"1","features":{}}'
    decoded = BrokerRegistration.decode(2, data)
    assert (decoded.host, decoded.port) == ("::1", 7)


@pytest.mark.parametrize(
    ("protocol", "address"),
    [
        ("PLAINTEXT", ("inside", 9092)),
        ("SASL_SSL", ("::1", 9094)),
        ("SSL", ("outside", 9093)),
        ("SASL_PLAINTEXT", None),
    ],
)
def test_a_broker_is_reached_by_its_first_listener_with_the_protocol(
    protocol: str, address: tuple[str, int] | None
) -> None:
    fields = {
        "version": 5,
        "host": "inside",
        "port": 9092,
        "endpoints": ["INSIDE://inside:9092", "OUTSIDE://outside:port", "SSL://outside:9093", "USERS://[::1]:9094"],
        "listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "SSL", "USERS": "SASL_SSL"},
        "timestamp": "1",
    }
    assert BrokerRegistration.decode(2, json.dumps(fields).encode()).address(protocol) == address


def test_a_broker_of_old_has_one_address() -> None:
    old = BrokerRegistration.decode(2, b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1"}')
    assert old.address("PLAINTEXT") == ("h", 9092)
    assert old.address("SSL") is None


def test_topic_assignment_round_trip_and_old_version() -> None:
    assignment = TopicAssignment(
        bytes(range(16)), {0: (BrokerId(1), BrokerId(2)), 10: (BrokerId(2),), 2: (BrokerId(3),)}
    )
    decoded = TopicAssignment.decode("t", assignment.encode())
    assert decoded == assignment
    assert list(decoded.partitions) == [0, 2, 10]
    old = TopicAssignment.decode("t", b'{"version":1,"partitions":{"0":[1]}}')
    assert old.topic_id == znodes.NO_TOPIC_ID


def test_leader_and_isr_is_kafkas_json() -> None:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(4), (BrokerId(1), BrokerId(3)), ControllerEpoch(2))
    assert state.encode() == b'{"controller_epoch":2,"leader":1,"version":1,"leader_epoch":4,"isr":[1,3]}'
    with_more = b'{"controller_epoch":2,"leader":1,"version":1,"leader_epoch":4,"isr":[1,3],"leader_recovery_state":0}'
    assert LeaderAndIsr.decode("t", 0, with_more) == state


def test_producer_id_blocks_follow_each_other() -> None:
    first = ProducerIdBlock.from_number(0, BrokerId(1))
    assert first.encode() == b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    second = ProducerIdBlock.after(ProducerIdBlock.decode(first.encode()), BrokerId(2))
    assert (second.first, second.last) == (1000, 1999)


def test_ids_are_22_characters_and_never_begin_with_a_dash() -> None:
    for _ in range(500):
        raw = znodes.new_uuid()
        text = znodes.uuid_text(raw)
        assert len(text) == 22
        assert not text.startswith("-")
        assert znodes.uuid_bytes(text) == raw
        assert uuid.UUID(bytes=raw).version == 4
    for bad in ("", "short", "x" * 23, "+" * 22, "é" * 22):
        with pytest.raises(ValueError, match="22 characters"):
            znodes.uuid_bytes(bad)


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: BrokerRegistration.decode(1, data),
        lambda data: TopicAssignment.decode("t", data),
        lambda data: LeaderAndIsr.decode("t", 0, data),
        lambda data: ProducerIdBlock.decode(data),
        lambda data: znodes.decode_config("/config/topics/t", data),
        znodes.decode_cluster_id,
        znodes.decode_controller,
        znodes.decode_controller_epoch,
    ],
)
def test_bad_payloads_are_named_and_nothing_else_is_raised(decode) -> None:
    bad = [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"version":1}', b'{"partitions":[]}', b'{"config":3}', b"[" * 5000]
    bad.append(b'{"id":"x","isr":3,"leader":"a","brokerid":null,"config":[1],"endpoints":7,"partitions":{"a":[1]}}')
    chosen = random.Random(1)
    bad += [bytes(chosen.randrange(256) for _ in range(20)) for _ in range(100)]
    for data in bad:
        with pytest.raises(MalformedNode, match="which cannot be read"):
            decode(data)


STATE = {"controller_epoch": 2, "leader": 1, "version": 1, "leader_epoch": 4, "isr": [1]}
TOPIC = {"version": 3, "partitions": {"0": [1]}}
BROKER = {"version": 5, "host": "h", "port": 9092, "endpoints": ["PLAINTEXT://h:9092"], "timestamp": "5"}
BLOCK = {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}
# Each form with one field changed to what no broker has written.
OUT_OF_RANGE = [
    *(
        (lambda data: LeaderAndIsr.decode("t", 0, data), STATE, name, value)
        for name, values in {
            "leader": (-2, 2**31, 1.5, True, None, "1_0", "", [1]),
            "leader_epoch": (-1, 2**31 - 1, 2**31, 10**30, float("nan"), float("inf"), "9" * 25),
            "isr": ([-1], [2**31], ["a"], "12", {"1": 2}, [1, 1], 7),
            "controller_epoch": (-2, 2**31, "x"),
        }.items()
        for value in values
    ),
    *(
        (lambda data: TopicAssignment.decode("t", data), TOPIC, "partitions", value)
        for value in (
            {},
            {"-1": [1]},
            {"2147483648": [1]},
            {"0": []},
            {"0": [1, 1]},
            {"0": [-1]},
            {"0": [2**31]},
            {"100000": [1]},
            {"0": "1"},
            [[1]],
        )
    ),
    *((lambda data: TopicAssignment.decode("t", data), TOPIC, "topic_id", value) for value in (7, "short", ["x"])),
    *(
        (lambda data: BrokerRegistration.decode(1, data), BROKER, name, value)
        for name, values in {
            "host": (7, {"a": 1}, "\ud800", "h" * 1_001),
            "port": (-2, 65536, 10**20, 1.5, float("inf")),
            "endpoints": ("x", [1], {"a": 1}, ["PLAINTEXT://" + "h" * 1_000 + ":1"]),
            "rack": (7, ["r"], "\ud800", "r" * 256),
            "timestamp": (2**63, "soon", float("nan")),
        }.items()
        for value in values
    ),
    *(
        (ProducerIdBlock.decode, BLOCK, name, value)
        for name, values in {
            "broker": (-1, 2**31),
            "block_start": (-1, 2**63, 1000),
            "block_end": (-1, 2**63, "999.5", float("inf")),
        }.items()
        for value in values
    ),
    *(
        (lambda data: znodes.decode_config("/c", data), {}, "config", value)
        for value in ({"a": 1}, {"a": None}, [], "a")
    ),
    *((znodes.decode_controller, {}, "brokerid", value) for value in (-1, 2**31, "x", float("-inf"))),
]


@pytest.mark.parametrize(("decode", "fields", "name", "value"), OUT_OF_RANGE)
def test_a_number_out_of_its_range_and_another_type_are_malformed(decode, fields, name, value) -> None:
    data = json.dumps({**fields, name: value}).encode()
    with pytest.raises(MalformedNode, match="which cannot be read"):
        decode(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b'{"partitions":[]}', "'[]' is not an object"),
        (b'{"partitions":{"0":"1"}}', "'1' is not an array"),
    ],
)
def test_why_a_node_cannot_be_read_is_said_in_terms_of_its_content(data: bytes, why: str) -> None:
    with pytest.raises(MalformedNode) as raised:
        TopicAssignment.decode("t", data)
    assert str(raised.value) == f"registry node /brokers/topics/t holds {data!r}, which cannot be read: {why}"


@pytest.mark.parametrize("epoch", [b"-1", b"2147483647", b"1e3", b" 1", b"1_0", b"", "٣".encode()])
def test_a_controller_epoch_leaves_room_for_the_next_one(epoch: bytes) -> None:
    with pytest.raises(MalformedNode, match="/controller_epoch"):
        znodes.decode_controller_epoch(epoch)
    assert znodes.decode_controller_epoch(b"2147483646") == 2**31 - 2


def test_producer_ids_that_are_used_up_are_said_to_be() -> None:
    last = ProducerIdBlock(BrokerId(1), 0, 2**63 - 1)
    with pytest.raises(MalformedNode, match=r"leaves none: set block_end"):
        ProducerIdBlock.after(last, BrokerId(1))


def test_config_keeps_text() -> None:
    data = znodes.encode_config({"retention.ms": "-1"})
    assert data == b'{"version":1,"config":{"retention.ms":"-1"}}'
    assert znodes.decode_config("/config/topics/t", data) == {"retention.ms": "-1"}


def test_a_thousand_partition_states_fit_into_one_multi() -> None:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(4), (BrokerId(1), BrokerId(2), BrokerId(3)), ControllerEpoch(2))
    assert 500 * (len(state.encode()) + 2 * len(znodes.state_path("t" * 249, 999))) < MAX_DATA_BYTES


def test_a_state_keeps_what_an_operator_has_accepted() -> None:
    node = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), (BrokerId(1),), ControllerEpoch(2))
    assert b"accepted" not in node.encode()
    accepted = AcceptedDamage(Incarnation(2**60 + 1), ((500, 1000), (1000, 2000), (2**40, 2**41)))
    data = replace(node, accepted_damage=accepted).encode()
    read = LeaderAndIsr.decode("t", 0, data)
    assert (read.accepted_damage, read.unknown) == (accepted, NO_FIELDS)
    # A leader that writes its ISR writes it again.
    state = PartitionState.of((BrokerId(1),), read, Stat(*range(11)))
    assert replace(state, isr=()).node.accepted_damage == accepted
    for ranges in (
        [[5, 5]],
        [[5, 4]],
        [[5, 7], [6, 9]],
        [[-1, 4]],
        [[1, 2, 3]],
        [[0, 2**63]],
        7,
        [[2 * n, 2 * n + 1] for n in range(65)],
    ):
        field = {"accepted_damage": {"incarnation": "7", "ranges": ranges}}
        with pytest.raises(MalformedNode):
            LeaderAndIsr.decode("t", 0, with_fields(node.encode(), field))


def test_a_state_keeps_the_epoch_of_the_last_unclean_election() -> None:
    node = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), (BrokerId(1),), ControllerEpoch(2))
    assert b"unclean" not in node.encode()
    read = LeaderAndIsr.decode("t", 0, replace(node, unclean_epoch=2).encode())
    assert (read.unclean_epoch, read.unknown) == (2, NO_FIELDS)
    state = PartitionState.of((BrokerId(1),), read, Stat(*range(11)))
    assert replace(state, isr=()).node.unclean_epoch == 2
    with pytest.raises(MalformedNode):
        LeaderAndIsr.decode("t", 0, with_fields(node.encode(), {"unclean_epoch": "x"}))


# Fields of a newer version -------------------------------------------------------------------------------------------

NEWER = {"adding_learners": {"0": [7]}, "moved_at": "12", "flags": [True, None, "h\u00e9"]}


def with_fields(data: bytes, fields: object) -> bytes:
    return json.dumps({**json.loads(data), **fields}).encode()  # type: ignore[dict-item]


def test_fields_of_a_newer_version_survive_a_rewrite() -> None:
    assignment = TopicAssignment(bytes(15) + b"x", {0: (BrokerId(1),)})
    read = TopicAssignment.decode("t", with_fields(assignment.encode(), NEWER))
    changed = replace(read, partitions={0: (BrokerId(1), BrokerId(2))}).encode()
    assert json.loads(changed) == {**json.loads(changed), **NEWER}
    assert TopicAssignment.decode("t", changed).partitions == {0: (1, 2)}

    node = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), (BrokerId(1),), ControllerEpoch(2), {BrokerId(1): Incarnation(9)})
    state = PartitionState.of(
        (BrokerId(1),), LeaderAndIsr.decode("t", 0, with_fields(node.encode(), NEWER)), Stat(*range(11))
    )
    changed = replace(state, isr=(), incarnations={}).node.encode()
    assert json.loads(changed) == {**json.loads(changed), **NEWER}
    elected = elect(state, {1: live_broker(1, 9)})
    changed = elected.as_node(4, ControllerEpoch(2), state.unknown).encode()
    assert json.loads(changed) == {**json.loads(changed), **NEWER}

    block = ProducerIdBlock.decode(with_fields(ProducerIdBlock.from_number(0, BrokerId(1)).encode(), NEWER))
    changed = ProducerIdBlock.after(block, BrokerId(2)).encode()
    assert json.loads(changed) == {**json.loads(changed), **NEWER}


def test_nodes_without_such_fields_share_one_empty_mapping() -> None:
    node = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), (BrokerId(1),), ControllerEpoch(2))
    assert LeaderAndIsr.decode("t", 0, node.encode()).unknown is NO_FIELDS
    assignment = TopicAssignment(bytes(15) + b"x", {0: (BrokerId(1),)})
    assert TopicAssignment.decode("t", assignment.encode()).unknown is NO_FIELDS


def test_what_a_state_keeps_of_a_newer_version_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    node = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), (BrokerId(1),), ControllerEpoch(2)).encode()
    for _ in range(3):
        large = LeaderAndIsr.decode("t", 0, with_fields(node, {"a_newer_field": "x" * MOST_STATE_FIELDS_BYTES}))
        assert large.unknown is NO_FIELDS
    assert caplog.text.count("a_newer_field") == 1
    assert "upgrade all brokers" in caplog.text
    half = LeaderAndIsr.decode("t", 0, node[:-1] + b',"half":"\\ud800"}')
    assert (half.leader, half.unknown) == (1, NO_FIELDS)
