"""Where a stream's offsets go beside its checkpoint: the source in the hands of an engine that is a loop, real stores.

What Spark itself adds is in tests/spark/test_offsets.py.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.config import admin_config
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.group.offsets import commit_offsets, fetch_offsets
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.errors import TopicAlreadyExists
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.registry.consumer_nodes import encode_offset, offset_path
from spark_kafkalite.registry.zookeeper import ZooKeeperStore, open_zookeeper
from spark_kafkalite.spark.checkpoints import checkpoint_commits
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader
from tests.interop.support.said import said_by
from tests.patience import PATIENCE_S, wait_until

_numbers = itertools.count(1)
_READERS: list[KafkaliteStreamReader] = []

Spans = dict[TopicPartition, tuple[int, int]]
MakeAgain = Callable[[str, int], None]


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "spark_kafkalite.spark")
    return caplog


@pytest.fixture(autouse=True)
def readers() -> Iterator[list[KafkaliteStreamReader]]:
    """The readers of a test's queries, which are stopped after it, or their sessions would live on in this process."""
    yield _READERS
    while _READERS:
        _READERS.pop().stop()


@pytest.fixture(scope="module")
def coordinators(bootstrap: str) -> Iterator[ClusterClient]:
    client = ClusterClient(admin_config({"bootstrap.servers": bootstrap}, {}))
    yield client
    client.close()


@pytest.fixture
def group(coordinators: ClusterClient) -> CoordinatorLink:
    return CoordinatorLink(coordinators, f"spark-{next(_numbers)}")


@pytest.fixture(scope="module")
def served_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's registry on a port; the broker is not needed for anything else."""
    with BrokerProcess(tmp_path_factory.mktemp("registry"), registry_port=0) as running:
        yield running.registry_connect


@pytest.fixture(params=["ours", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def ensemble(request: pytest.FixtureRequest) -> str:
    """A chroot in a broker's registry, and then in ZooKeeper."""
    if request.param == "ours":
        return f"{request.getfixturevalue('served_registry')}/spark-offsets"
    return f"{request.getfixturevalue('zookeeper').connect}/spark-offsets"


@pytest.fixture
def nodes(ensemble: str) -> Iterator[ZooKeeperStore]:
    opened = open_zookeeper(ensemble)
    yield opened
    opened.close()


class Query:
    """A streaming query without its tasks: checkpoint, and the order in which the engine calls a source.

    Every process of it is a reader of its own.
    """

    def __init__(self, bootstrap: str, topic: str, **options: str) -> None:
        self.options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        self.options |= {"fetchOffset.retryIntervalMs": "10", **options}
        self.checkpoint: list[dict[str, Any]] = []
        self.reader: KafkaliteStreamReader
        self.start: dict[str, Any]

    def begin(self, **options: str) -> None:
        """Start a process."""
        self.reader = KafkaliteStreamReader(reader_options({**self.options, **options}), READ_SCHEMA)
        _READERS.append(self.reader)
        self.start = self.checkpoint[-1] if self.checkpoint else {}

    def trigger(self) -> Spans:
        """Let one trigger pass and return what its batch read; nothing is read when nothing is new."""
        if not self.checkpoint:
            self.start = self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(self.start, ReadAllAvailable())))
        if self.checkpoint and end == self.start:
            return {}
        spans = self.plan(self.start, end)
        self.checkpoint.append(end)
        self.start = end
        return spans

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> Spans:
        tasks = self.reader.partitions(start, end)
        return {each.topic_partition: (each.start_offset, each.end_offset) for task in tasks for each in task.ranges}

    def available_now(self, **options: str) -> Spans:
        """Run until everything of now is read, in one process, and return what was."""
        self.begin(**options)
        self.reader.prepareForTriggerAvailableNow()
        spans = self.trigger()
        assert self.trigger() == {}
        return spans


def soon() -> Deadline:
    return Deadline.after_ms(1000 * PATIENCE_S)


def committed(group: CoordinatorLink) -> dict[str, int]:
    found = fetch_offsets(group, None, soon())
    return {str(tp): each.offset for tp, each in found.items()}


def commit(group: CoordinatorLink, topic: str, *offsets: int) -> None:
    values = {TopicPartition(topic, number): CommittedOffset(offset) for number, offset in enumerate(offsets)}
    commit_offsets(group, values, deadline=soon())


def fill(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for _ in range(count):
            producer.send(topic, b"x", partition=partition)
        producer.flush(PATIENCE_S)


def make_again(bootstrap: str, topic: str, count: int) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.delete_topics([topic])

        def is_created() -> bool:
            try:
                admin.create_topic(topic, 1)
            except TopicAlreadyExists:
                return False
            return True

        wait_until(is_created, "the deleted topic to be gone")
    fill(bootstrap, topic, count)


@pytest.fixture
def make_again_with_offsets(request: pytest.FixtureRequest, bootstrap: str, group: CoordinatorLink) -> MakeAgain:
    """Delete a topic and create it again, and the group still has its offset, also where brokers forget it."""
    forgets = request.node.callspec.params["bootstrap"] == "apache"

    def make(topic: str, count: int) -> None:
        before = fetch_offsets(group, None, soon())
        make_again(bootstrap, topic, count)
        wait_until(lambda: not (forgets and fetch_offsets(group, None, soon())), "the offsets to be forgotten")
        commit_offsets(group, before, deadline=soon())

    return make


def refusal(query: Query) -> str:
    query.begin()
    with pytest.raises(SparkConditionError) as caught:
        query.trigger()
    return str(caught.value).splitlines()[-1]


# Committing ---------------------------------------------------------------------------------------------------------


def test_what_is_durably_done_is_committed(bootstrap, topic, group):
    fill(bootstrap, topic, 5)
    query = Query(bootstrap, topic, groupId=group.group_id)
    query.begin()
    query.trigger()
    # The first batch is only planned: nothing is known to be done.
    assert committed(group) == {}
    fill(bootstrap, topic, 2, partition=1)
    query.trigger()
    assert committed(group) == {f"{topic}-0": 5, f"{topic}-1": 0, f"{topic}-2": 0, f"{topic}-3": 0}
    query.trigger()
    assert committed(group)[f"{topic}-1"] == 2


def test_an_available_now_run_commits_its_last_batch(bootstrap, topic, group, warnings):
    query = Query(bootstrap, topic, groupId=group.group_id)
    for count in (5, 12):
        fill(bootstrap, topic, count)
        query.available_now()
    assert committed(group)[f"{topic}-0"] == 17
    query.available_now()
    # Nothing is said but that the checkpoint counts.
    assert [each for each in warnings.messages if not each.startswith("startingOffsets=earliest: without effect")] == []


def test_without_groupid_and_with_none_nothing_is_committed(bootstrap, topic, group):
    fill(bootstrap, topic, 5)
    Query(bootstrap, topic, **{"kafka.group.id": group.group_id}).available_now()
    Query(bootstrap, topic, groupId=group.group_id, commitOffsets="none").available_now()
    assert committed(group) == {}


def test_a_group_with_members_refuses_and_the_query_goes_on(bootstrap, topic, group, warnings):
    kafka = pytest.importorskip("confluent_kafka")
    fill(bootstrap, topic, 5)
    member = kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group.group_id, "enable.auto.commit": False,
                             "auto.offset.reset": "earliest"})  # fmt: skip
    member.subscribe([topic])
    try:
        assert member.poll(30) is not None
        query = Query(bootstrap, topic, groupId=group.group_id)
        assert query.available_now()
        assert f"cannot commit offsets to group '{group.group_id}'" in warnings.text
        assert "the group has members, and only they may commit" in warnings.text
    finally:
        member.close()
    # Repeated with the next batch.
    query.available_now()
    assert committed(group)[f"{topic}-0"] == 5


def test_two_queries_on_one_group_and_partition_warn(bootstrap, topic, group, warnings):
    fill(bootstrap, topic, 5)
    one, two = (Query(bootstrap, topic, groupId=group.group_id) for _ in range(2))
    one.begin()
    one.trigger()
    one.trigger()
    commit(group, topic, 2)
    fill(bootstrap, topic, 1)
    one.trigger()
    one.trigger()
    assert f"group '{group.group_id}': another process commits there: {topic}-0 at 2" in warnings.text
    warnings.clear()
    two.available_now(startingOffsets=json.dumps({topic: {"0": 6, "1": 0, "2": 0, "3": 0}}))
    commit(group, topic, 9)
    fill(bootstrap, topic, 1)
    two.available_now()
    assert f"is ahead of this query and is not taken back: {topic}-0 is at 9, done is 6" in warnings.text
    assert committed(group)[f"{topic}-0"] == 9


def test_a_new_query_that_is_told_to_start_earlier_takes_the_group_back(bootstrap, topic, group, warnings):
    fill(bootstrap, topic, 5)
    commit(group, topic, 5, 0, 0, 0)
    query = Query(bootstrap, topic, groupId=group.group_id)
    query.begin()
    query.trigger()
    assert committed(group)[f"{topic}-0"] == 0
    assert f"goes back to the start that this new query's options set: {topic}-0 from 5 to 0" in warnings.text


def test_commits_go_on_when_the_broker_was_killed(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        bootstrap, topic = broker.bootstrap, "killed"
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topic(topic, 1)
        client = ClusterClient(admin_config({"bootstrap.servers": bootstrap}, {}))
        group = CoordinatorLink(client, "survivor")
        query = Query(bootstrap, topic, groupId="survivor")
        query.begin()
        for count in (5, 2):
            fill(bootstrap, topic, count)
            assert query.trigger()
        assert committed(group) == {f"{topic}-0": 5}
        broker.kill()
        broker.restart()
        query.trigger()
        assert committed(group) == {f"{topic}-0": 7}
        client.close()


# A topic that was deleted and made again ----------------------------------------------------------------------------


def test_a_topic_made_again_is_recognised_across_a_restart(bootstrap, admin, group, make_again_with_offsets):
    topic = f"again-{next(_numbers)}"
    admin.create_topic(topic, 1)
    fill(bootstrap, topic, 5)
    query = Query(bootstrap, topic, groupId=group.group_id)
    query.available_now()
    # Longer than the old one: offsets alone show nothing.
    make_again_with_offsets(topic, 8)
    assert refusal(query).startswith(
        "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] failOnDataLoss=true: "
        f"the topic {topic} was deleted and created again"
    )
    assert query.available_now(failOnDataLoss="false") == {TopicPartition(topic, 0): (0, 8)}
    assert committed(group) == {f"{topic}-0": 8}
    # And from then on it is the topic that is known.
    fill(bootstrap, topic, 1)
    assert query.available_now() == {TopicPartition(topic, 0): (8, 9)}


@pytest.mark.kafka
def test_offsets_that_were_forgotten_with_their_topic_are_told_of(apache_kafka, warnings):
    bootstrap, topic = apache_kafka.bootstrap, f"again-{next(_numbers)}"
    client = ClusterClient(admin_config({"bootstrap.servers": bootstrap}, {}))
    group = CoordinatorLink(client, f"spark-{next(_numbers)}")
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(topic, 1)
    fill(bootstrap, topic, 5)
    query = Query(bootstrap, topic, groupId=group.group_id)
    query.available_now()
    make_again(bootstrap, topic, 8)
    wait_until(lambda: not committed(group), "the offsets to be forgotten")
    assert query.available_now() == {TopicPartition(topic, 0): (5, 8)}
    assert f"the group {group.group_id} has no offsets of {topic}, which this query has read" in warnings.text
    client.close()


def test_a_batch_planned_before_the_topic_was_made_again(bootstrap, admin, group, make_again_with_offsets):
    topic = f"again-{next(_numbers)}"
    admin.create_topic(topic, 1)
    fill(bootstrap, topic, 5)
    query = Query(bootstrap, topic, groupId=group.group_id)
    query.available_now()
    fill(bootstrap, topic, 2)
    query.available_now()
    make_again_with_offsets(topic, 20)
    # The last batch is in the offset log, and not in the commit log: the engine begins with partitions().
    query.begin()
    with pytest.raises(SparkConditionError, match="deleted and created again"):
        query.plan(query.checkpoint[-2], query.checkpoint[-1])
    query.begin(failOnDataLoss="false")
    assert query.plan(query.checkpoint[-2], query.checkpoint[-1]) == {}
    assert query.trigger() == {TopicPartition(topic, 0): (0, 20)}


# Starting from committed offsets ------------------------------------------------------------------------------------


def test_a_new_query_starts_where_the_group_stands(bootstrap, topic, group, warnings):
    fill(bootstrap, topic, 9)
    commit(group, topic, 4, 0, 0, 0)
    options = {"groupId": group.group_id, "startingOffsets": "committed"}
    assert Query(bootstrap, topic, **options).available_now() == {TopicPartition(topic, 0): (4, 9)}
    assert committed(group)[f"{topic}-0"] == 9
    assert said_by("spark_kafkalite.spark", warnings) == []


def test_a_batch_read_starts_there_too_and_commits_nothing(bootstrap, topic, group):
    fill(bootstrap, topic, 9)
    commit(group, topic, 4, 0, 0, 0)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "groupId": group.group_id}
    reader = KafkaliteBatchReader(reader_options({**options, "startingOffsets": "committed"}), READ_SCHEMA)
    ranges = [each for task in reader.partitions() for each in task.ranges]
    assert [str(each) for each in ranges] == [f"{topic}-0[4, 9)"]
    assert committed(group)[f"{topic}-0"] == 4


def test_partitions_without_a_commit_fail_or_fall_back(bootstrap, topic, group):
    fill(bootstrap, topic, 9)
    fill(bootstrap, topic, 3, partition=1)
    commit(group, topic, 4)
    options = {"groupId": group.group_id, "startingOffsets": "committed", "commitOffsets": "none"}
    assert refusal(Query(bootstrap, topic, **options)) == (
        f"[KAFKALITE_INVALID_OPTION] startingOffsets=committed: group '{group.group_id}' has no offset of {topic}-1, "
        f"{topic}-2, {topic}-3; commit one, or set committedFallback=earliest or committedFallback=latest for such "
        "partitions"
    )
    earliest = Query(bootstrap, topic, committedFallback="earliest", **options)
    assert earliest.available_now() == {TopicPartition(topic, 0): (4, 9), TopicPartition(topic, 1): (0, 3)}
    latest = Query(bootstrap, topic, committedFallback="latest", **options)
    assert latest.available_now() == {TopicPartition(topic, 0): (4, 9)}


@pytest.mark.parametrize(("offset", "nearest"), [(1, 3), (10, 9)])
def test_a_commit_outside_of_the_log_is_no_start(bootstrap, topic, admin, group, warnings, offset, nearest):
    fill(bootstrap, topic, 9)
    admin.delete_records({TopicPartition(topic, 0): 3})
    commit(group, topic, offset, 0, 0, 0)
    options = {"groupId": group.group_id, "startingOffsets": "committed", "commitOffsets": "none"}
    assert refusal(Query(bootstrap, topic, **options)).startswith(
        "[KAFKA_DATA_LOSS.START_OFFSET_RESET] startingOffsets=committed: failOnDataLoss=true: "
        f"{topic}-0 starts at {offset}, but its log holds [3, 9); "
    )
    found = Query(bootstrap, topic, failOnDataLoss="false", **options).available_now()
    assert found == ({TopicPartition(topic, 0): (nearest, 9)} if nearest < 9 else {})
    assert "starting at the nearest end" in warnings.text


def test_a_commit_of_a_topic_that_was_made_again_is_no_start(bootstrap, admin, group, make_again_with_offsets):
    topic = f"again-{next(_numbers)}"
    admin.create_topic(topic, 1)
    fill(bootstrap, topic, 5)
    Query(bootstrap, topic, groupId=group.group_id).available_now()
    make_again_with_offsets(topic, 8)
    options = {"groupId": group.group_id, "startingOffsets": "committed"}
    assert "topics were deleted and created again since" in refusal(Query(bootstrap, topic, **options))
    lossy = Query(bootstrap, topic, failOnDataLoss="false", **options)
    assert lossy.available_now() == {TopicPartition(topic, 0): (0, 8)}
    assert committed(group) == {f"{topic}-0": 8}


# ZooKeeper ----------------------------------------------------------------------------------------------------------


def in_zookeeper(nodes: ZooKeeperStore, group: CoordinatorLink, topic: str) -> bytes:
    return nodes.get(offset_path(group.group_id, topic, 0)).result(PATIENCE_S)[0]


def test_both_places_are_committed_to_and_the_larger_offset_is_the_start(bootstrap, topic, group, ensemble, nodes):
    fill(bootstrap, topic, 5)
    options = {"groupId": group.group_id, "commitOffsets": "both", "zookeeper.connect": ensemble}
    query = Query(bootstrap, topic, **options)
    query.available_now()
    assert (committed(group)[f"{topic}-0"], in_zookeeper(nodes, group, topic)) == (5, b"5")
    fill(bootstrap, topic, 2)
    query.available_now()
    assert (committed(group)[f"{topic}-0"], in_zookeeper(nodes, group, topic)) == (7, b"7")
    fill(bootstrap, topic, 2)
    nodes.set(offset_path(group.group_id, topic, 0), encode_offset(8)).result(PATIENCE_S)
    start = Query(bootstrap, topic, **{**options, "startingOffsets": "committed"})
    assert start.available_now() == {TopicPartition(topic, 0): (8, 9)}


def test_zookeeper_alone(bootstrap, topic, group, ensemble, nodes, warnings):
    fill(bootstrap, topic, 5)
    options = {"groupId": group.group_id, "commitOffsets": "zookeeper", "kafka.zookeeper.connect": ensemble}
    query = Query(bootstrap, topic, **options)
    query.available_now()
    assert committed(group) == {}
    assert in_zookeeper(nodes, group, topic) == b"5"
    # Never back, and a rewind that was asked for.
    nodes.set(offset_path(group.group_id, topic, 0), encode_offset(50)).result(PATIENCE_S)
    query.available_now()
    assert in_zookeeper(nodes, group, topic) == b"50"
    assert "is ahead of this query" in warnings.text
    again = Query(bootstrap, topic, **options)
    again.available_now()
    assert in_zookeeper(nodes, group, topic) == b"5"


def test_a_zookeeper_that_is_away_warns(bootstrap, topic, group, warnings, monkeypatch):
    monkeypatch.setattr(checkpoint_commits, "COMMIT_TIMEOUT_MS", 3_000)
    fill(bootstrap, topic, 5)
    options = {"groupId": group.group_id, "commitOffsets": "both", "zookeeper.connect": "127.0.0.1:1"}
    query = Query(bootstrap, topic, **options)
    assert query.available_now() == {TopicPartition(topic, 0): (0, 5)}
    assert committed(group)[f"{topic}-0"] == 5
    assert f"cannot commit offsets to group '{group.group_id}' in ZooKeeper at 127.0.0.1:1: " in warnings.text
