from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.client.group.consumer_protocol import Assignment, Subscription
from spark_kafkalite.errors import FrameError
from spark_kafkalite.model import TopicPartition

TOPICS = st.text(min_size=1, max_size=8)
PARTITIONS = st.lists(st.builds(TopicPartition, TOPICS, st.integers(0, 9)), max_size=12, unique=True).map(sorted)
USER_DATA = st.none() | st.binary(max_size=20)
SUBSCRIPTIONS = st.builds(
    Subscription,
    st.lists(TOPICS, max_size=6, unique=True).map(lambda topics: tuple(sorted(topics))),
    USER_DATA,
    PARTITIONS.map(tuple),
    st.integers(-1, 2**31 - 1),
    st.none() | TOPICS,
)

# As kafka-python 3.0 writes its ConsumerProtocolSubscription, version by version:
# topics b and a, user data 01, owned partitions b-1, b-0 and a-4, generation 9, rack r.
SUBSCRIPTION_V0 = bytes.fromhex("0000 00000002 000161 000162 00000001 01")
OWNED = bytes.fromhex("00000002 000161 00000001 00000004 000162 00000002 00000000 00000001")
GENERATION = bytes.fromhex("00000009")
RACK = bytes.fromhex("000172")


@given(SUBSCRIPTIONS)
def test_subscriptions_come_back(subscription: Subscription) -> None:
    assert Subscription.decode(subscription.encode()) == subscription


@given(PARTITIONS, USER_DATA)
def test_assignments_come_back(partitions: list[TopicPartition], user_data: bytes | None) -> None:
    assert Assignment.decode(Assignment(tuple(partitions), user_data).encode()) == Assignment(
        tuple(partitions), user_data
    )


@pytest.mark.parametrize(
    ("version", "rest"), [(0, b""), (1, OWNED), (2, OWNED + GENERATION), (3, OWNED + GENERATION + RACK)]
)
def test_every_version_of_a_subscription_has_its_fields(version: int, rest: bytes) -> None:
    owned = (TopicPartition("a", 4), TopicPartition("b", 0), TopicPartition("b", 1))
    whole = Subscription(("a", "b"), b"\x01", owned, 9, "r")
    data = version.to_bytes(2, "big") + SUBSCRIPTION_V0[2:] + rest
    assert whole.encode(version) == data
    assert Subscription.decode(data) == Subscription(
        whole.topics, whole.user_data, *(whole.owned, whole.generation, whole.rack)[:version]
    )


def test_fields_of_newer_versions_are_passed_over() -> None:
    newer = b"\x00\x09" + Subscription(("a",)).encode()[2:] + b"what comes after version 3"
    assert Subscription.decode(newer) == Subscription(("a",))
    newer = b"\x00\x09" + Assignment((TopicPartition("a", 1),)).encode()[2:] + b"more"
    assert Assignment.decode(newer).partitions == (TopicPartition("a", 1),)


def test_a_member_that_was_left_out_gets_nothing() -> None:
    assert Assignment.decode(b"") == Assignment()


@given(SUBSCRIPTIONS, st.data())
def test_a_cut_subscription_is_refused(subscription: Subscription, data: st.DataObject) -> None:
    whole = subscription.encode()
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FrameError, match="subscription"):
        Subscription.decode(whole[:length])


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_read_but_nothing_else(garbage: bytes) -> None:
    for read in (Subscription.decode, Assignment.decode):
        try:
            read(garbage)
        except FrameError:
            pass


def test_counts_are_not_believed_beyond_the_bytes_there_are() -> None:
    with pytest.raises(FrameError, match="announces 2147483647 items in the 0 bytes"):
        Subscription.decode(b"\x00\x00\x7f\xff\xff\xff")
