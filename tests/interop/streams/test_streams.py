"""ConsumerConnector over a real ZooKeeper and our broker, whose nodes a helper keeps there (mirrored_nodes)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from spark_kafkalite import Admin, Blacklist, ConsumerConnector, Producer, TopicPartition, Whitelist
from spark_kafkalite.errors import ClosedError, ConfigError, ConsumerTimeout
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.streams.mirrored_nodes import MirroredBroker
from tests.interop.streams.reading import Reader, values
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.zookeeper]

MakeTopic = Callable[..., str]
MakeConnector = Callable[..., ConsumerConnector]


@pytest.fixture(scope="module")
def store(ensemble: str) -> Iterator[Store]:
    opened = open_zookeeper(ensemble)
    yield opened
    opened.close()


def children(store: Store, path: str) -> list[str]:
    return store.children(path).result(PATIENCE_S)


def data(store: Store, path: str) -> bytes:
    return store.get(path).result(PATIENCE_S)[0]


def committed(store: Store, path: str) -> bytes | None:
    return data(store, path) if store.exists(path).result(PATIENCE_S) is not None else None


def produce(producer: Producer, topic: str, numbers: range, partitions: int = 4) -> None:
    for number in numbers:
        producer.send(topic, b"%d" % number, partition=number % partitions)
    producer.flush()


def test_records_are_spread_over_streams_in_order(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic()
    produce(producer, topic, range(4000))
    streams = connector().create_message_streams({topic: 2})[topic]
    readers = [Reader(stream) for stream in streams]
    wait_until(lambda: sum(len(reader.seen) for reader in readers) == 4000, "4,000 records read")
    for reader, partitions in zip(readers, ((0, 1), (2, 3)), strict=True):
        assert {each.partition for each, _ in reader.seen} == set(partitions)
        for partition in partitions:
            read = [value for each, value in reader.seen if each.partition == partition]
            assert read == list(range(partition, 4000, 4))


def test_an_iterator_blocks_until_something_comes(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic()
    (stream,) = connector(consumer_timeout_ms=-1).create_message_streams({topic: 1})[topic]
    reader = Reader(stream)
    # One with a time-out begins later and ends first.
    (other,) = connector(consumer_timeout_ms=200, group_id=f"other-{topic}").create_message_streams({topic: 1})[topic]
    with pytest.raises(ConsumerTimeout):
        next(other)
    assert reader.is_alive() and not reader.seen
    produce(producer, topic, range(3))
    wait_until(lambda: len(reader.seen) == 3, "three records read")
    assert reader.is_alive()


def test_consumer_timeout_is_raised_and_the_stream_goes_on(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic()
    (stream,) = connector(consumer_timeout_ms=200).create_message_streams({topic: 1})[topic]
    with pytest.raises(ConsumerTimeout, match=r"consumer\.timeout\.ms=200"):
        next(stream)
    produce(producer, topic, range(1))

    def has_come() -> bool:
        # On a busy host it may take longer than that.
        with contextlib.suppress(ConsumerTimeout):
            return values(stream, 1) == [0]
        return False

    wait_until(has_come, "the record")
    with pytest.raises(ConsumerTimeout):
        next(stream)


def test_nodes_are_those_of_the_document(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector, store: Store
) -> None:
    topic = make_topic()
    produce(producer, topic, range(8))
    consumer = connector()
    group = consumer.config.group_id
    (one, two) = consumer.create_message_streams({topic: 2})[topic]
    ids = children(store, consumer_nodes.consumer_ids_path(group))
    assert ids == [consumer.consumer_id]
    registration = json.loads(data(store, consumer_nodes.consumer_id_path(group, ids[0])))
    assert registration.pop("timestamp").isdigit()
    assert registration == {"version": 1, "subscription": {topic: 2}, "pattern": "static"}
    for partition, thread in enumerate((0, 0, 1, 1)):
        owner = store.get(consumer_nodes.owner_path(group, topic, partition)).result(PATIENCE_S)
        assert owner[0].decode() == f"{ids[0]}-{thread}"
        assert owner[1].ephemeral_owner
    values(one, 4), values(two, 4)
    consumer.commit_offsets()
    for partition in range(4):
        path = consumer_nodes.offset_path(group, topic, partition)
        offset, stat = store.get(path).result(PATIENCE_S)
        assert stat.ephemeral_owner == 0
        # The record in this thread's hand counts: its own commit says so.
        assert offset == b"2"
    consumer.shutdown()
    assert children(store, consumer_nodes.consumer_ids_path(group)) == []
    assert children(store, consumer_nodes.topic_owners_path(group, topic)) == []
    assert children(store, consumer_nodes.topic_offsets_path(group, topic)) == ["0", "1", "2", "3"]


def test_the_next_consumer_of_a_group_goes_on_where_the_last_one_stopped(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic(1)
    produce(producer, topic, range(100), 1)
    first = connector()
    (stream,) = first.create_message_streams({topic: 1})[topic]
    assert values(stream, 30) == list(range(30))
    first.shutdown()
    with pytest.raises(StopIteration):
        next(stream)
    (stream,) = connector().create_message_streams({topic: 1})[topic]
    assert values(stream, 70) == list(range(30, 100))


def test_a_record_that_is_being_worked_on_is_not_committed(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic(1)
    produce(producer, topic, range(10), 1)
    first = connector()
    (stream,) = first.create_message_streams({topic: 1})[topic]
    with pytest.raises(RuntimeError), first:
        for record in stream:
            if record.value == b"5":
                raise RuntimeError("could not be processed")
    (stream,) = connector().create_message_streams({topic: 1})[topic]
    assert values(stream, 5) == [5, 6, 7, 8, 9]


def test_automatic_commits_leave_out_what_is_in_hand(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector, store: Store
) -> None:
    topic = make_topic(1)
    produce(producer, topic, range(10), 1)
    consumer = connector(auto_commit_interval_ms=20)
    (stream,) = consumer.create_message_streams({topic: 1})[topic]
    path = consumer_nodes.offset_path(consumer.config.group_id, topic, 0)
    values(stream, 4)
    wait_until(lambda: committed(store, path) == b"3", "the offset 3 committed")
    values(stream, 1)
    wait_until(lambda: committed(store, path) == b"4", "the offset 4 committed")


def test_without_automatic_commits_only_asked_for_ones_count(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic(1)
    produce(producer, topic, range(10), 1)
    first = connector(auto_commit_enable=False)
    (stream,) = first.create_message_streams({topic: 1})[topic]
    values(stream, 3)
    first.commit_offsets()
    values(stream, 3)
    first.shutdown()
    (stream,) = connector().create_message_streams({topic: 1})[topic]
    assert values(stream, 7) == list(range(3, 10))


def test_largest_starts_at_the_end_and_does_not_move_when_the_partition_does(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector, store: Store
) -> None:
    topic = make_topic(1)
    produce(producer, topic, range(5), 1)
    first = connector(auto_offset_reset="largest", auto_commit_interval_ms=20)
    first.create_message_streams({topic: 1})
    path = consumer_nodes.offset_path(first.config.group_id, topic, 0)
    # Nothing was read, but where it begins is known, and kept.
    wait_until(lambda: store.exists(path).result(PATIENCE_S) is not None, "an offset committed")
    assert data(store, path) == b"5"
    produce(producer, topic, range(5, 8), 1)
    first.shutdown()
    (stream,) = connector(auto_offset_reset="largest").create_message_streams({topic: 1})[topic]
    assert values(stream, 3) == [5, 6, 7]


def test_two_groups_get_everything_each_and_one_group_shares(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic()
    produce(producer, topic, range(400))
    shared = [connector(), connector()]
    readers = [Reader(each.create_message_streams({topic: 1})[topic][0]) for each in shared]
    alone = connector({"group.id": f"other-{topic}"})
    other = Reader(alone.create_message_streams({topic: 1})[topic][0])
    wait_until(
        lambda: sum(len(reader.seen) for reader in readers) >= 400 and len(other.seen) == 400,
        "400 records read by both groups",
    )
    assert sorted(value for _, value in other.seen) == list(range(400))
    assert {value for reader in readers for _, value in reader.seen} == set(range(400))
    wait_until(lambda: [len(each.owned_partitions) for each in shared] == [2, 2], "the partitions shared")


def test_a_whitelist_takes_new_topics_while_it_runs(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    first = make_topic(2, "white")
    produce(producer, first, range(10), 2)
    streams = connector().create_message_streams_by_filter(Whitelist("white-.*"), 2)
    readers = [Reader(stream) for stream in streams]
    wait_until(lambda: sum(len(reader.seen) for reader in readers) == 10, "ten records read")
    second = make_topic(2, "white")
    make_topic(1, "other")
    produce(producer, second, range(10, 20), 2)
    wait_until(lambda: sum(len(reader.seen) for reader in readers) == 20, "20 records read")
    for reader in readers:
        assert {each.topic for each, _ in reader.seen} == {first, second}


def test_a_blacklist_reads_the_rest(make_topic: MakeTopic, producer: Producer, connector: MakeConnector) -> None:
    wanted, unwanted = make_topic(1, "black-yes"), make_topic(1, "black-no")
    produce(producer, unwanted, range(5), 1)
    produce(producer, wanted, range(5, 10), 1)
    consumer = connector()
    # Nothing but names that begin with black-yes.
    (stream,) = consumer.create_message_streams_by_filter(Blacklist("(?!black-yes).*"), 1)
    assert {each.topic for each in consumer.owned_partitions} == {wanted}
    assert values(stream, 5) == list(range(5, 10))


def test_added_partitions_are_read(
    make_topic: MakeTopic,
    producer: Producer,
    connector: MakeConnector,
    our_broker: BrokerProcess,
    registered: MirroredBroker,
) -> None:
    topic = make_topic(1)
    (stream,) = connector().create_message_streams({topic: 1})[topic]
    with Admin(bootstrap_servers=our_broker.bootstrap) as admin:
        admin.create_partitions({topic: 3})
    registered.copy_topics()
    with Producer(bootstrap_servers=our_broker.bootstrap) as fresh:
        produce(fresh, topic, range(3), 3)
    assert sorted(values(stream, 3)) == [0, 1, 2]


def test_a_partition_that_moves_loses_and_repeats_nothing(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic(8)
    produce(producer, topic, range(8000), 8)
    first = connector()
    readers = [Reader(stream) for stream in first.create_message_streams({topic: 2})[topic]]
    for _ in range(3):
        other = connector()
        readers += [Reader(stream) for stream in other.create_message_streams({topic: 1})[topic]]
    produce(producer, topic, range(8000, 12_000), 8)
    wait_until(lambda: len({value for reader in readers for _, value in reader.seen}) == 12_000, "12,000 records read")
    for partition in range(8):
        for reader in readers:
            read = [value for each, value in reader.seen if each.partition == partition]
            assert read == sorted(read)
    repeated = sum(len(reader.seen) for reader in readers) - 12_000
    # At most what was in a reader's hand when its partition went.
    assert repeated <= 3 * 8


def test_a_session_that_expires_stops_the_streams_and_the_consumer_comes_back(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector, ensemble: str, store: Store
) -> None:
    topic = make_topic(2)
    opened: list[Store] = []

    def open_registry() -> Store:
        opened.append(open_zookeeper(ensemble, session_timeout_ms=6000))
        return opened[-1]

    consumer = connector(open_registry=open_registry, auto_commit_interval_ms=50)
    reader = Reader(consumer.create_message_streams({topic: 1})[topic][0])
    produce(producer, topic, range(10), 2)
    wait_until(lambda: len(reader.seen) == 10, "ten records read")
    offset_path = consumer_nodes.offset_path(consumer.config.group_id, topic, 1)
    wait_until(lambda: committed(store, offset_path) == b"5", "the offset 5 committed")
    # Another connection closes this very session: what the server does to it when it expires.
    expire(opened[0], ensemble)
    wait_until(lambda: len(opened) == 2 and len(consumer.owned_partitions) == 2, "another session with both partitions")
    produce(producer, topic, range(10, 20), 2)
    wait_until(lambda: {value for _, value in reader.seen} == set(range(20)), "20 records read")
    owner = store.get(consumer_nodes.owner_path(consumer.config.group_id, topic, 0)).result(PATIENCE_S)
    assert owner[1].ephemeral_owner == opened[1].session_id


def expire(store: Store, connect: str) -> None:
    from kazoo.client import KazooClient

    client = store._client  # type: ignore[attr-defined]
    twin = KazooClient(hosts=connect, client_id=client.client_id, timeout=6)
    twin.start()
    twin.stop()
    twin.close()


def test_a_rewind_moves_the_stream_and_the_registry(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector, store: Store
) -> None:
    topic = make_topic(1)
    produce(producer, topic, range(20), 1)
    consumer = connector()
    (stream,) = consumer.create_message_streams({topic: 1})[topic]
    values(stream, 15)
    consumer.rewind({TopicPartition(topic, 0): 3})
    assert data(store, consumer_nodes.offset_path(consumer.config.group_id, topic, 0)) == b"3"
    assert values(stream, 17) == list(range(3, 20))
    with pytest.raises(ConfigError, match="not owned by this consumer"):
        consumer.rewind({TopicPartition(topic, 7): 0})


def test_an_offset_that_is_no_longer_in_the_log_goes_where_the_setting_says(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector, our_broker: BrokerProcess, store: Store
) -> None:
    topic = make_topic(1)
    produce(producer, topic, range(20), 1)
    with Admin(bootstrap_servers=our_broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 12})
    consumer = connector()
    path = consumer_nodes.offset_path(consumer.config.group_id, topic, 0)
    store.create(path, b"4", make_parents=True).result(PATIENCE_S)
    (stream,) = consumer.create_message_streams({topic: 1})[topic]
    assert values(stream, 8) == list(range(12, 20))


def test_streams_nobody_reads_do_not_hold_up_others(
    make_topic: MakeTopic, producer: Producer, connector: MakeConnector
) -> None:
    topic = make_topic(8)
    for number in range(1600):
        producer.send(topic, b"%04d" % number + bytes(4000), partition=number % 8)
    producer.flush()
    # All of it is 6.4 MB; the read-ahead holds a tenth.
    streams = connector(queued_max_bytes=640_000).create_message_streams({topic: 8})[topic]
    assert len(list(islice(streams[5], 200))) == 200


def test_a_connector_makes_streams_once_and_says_when_it_is_closed(
    make_topic: MakeTopic, connector: MakeConnector
) -> None:
    topic = make_topic(1)
    consumer = connector()
    consumer.create_message_streams({topic: 1})
    with pytest.raises(ConfigError, match="has made its message streams"):
        consumer.create_message_streams({topic: 1})
    consumer.shutdown()
    with pytest.raises(ClosedError):
        consumer.commit_offsets()
    consumer.shutdown()
