"""Streams whose topics are deleted at any moment: what the source says and reads, driven as Spark's engine does it."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading import cluster_offsets, partition_reader
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.reading.partition_reader import read_task
from spark_kafkalite.spark.reading.read_plan import ReadPlan
from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader
from spark_kafkalite.spark.source import KafkaliteDataSource
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED

MOMENTS = 20
# How long a query may go on before it is stopped, and the brokers' ignorance of a topic is believed after ten seconds.


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("deleted"), overrides={"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as running:
        yield running


class Query:
    """A stream over two topics, run on a thread as Spark's engine runs it, until it is stopped or fails."""

    def __init__(self, broker: BrokerProcess, name: str, subscribe: dict[str, str], *, may_lose: bool) -> None:
        self.name = name
        self.may_lose = may_lose
        given = {
            # A name of its own gives it a connection and a view of the cluster of its own, as a process would have.
            "kafka.client.id": name,
            "kafka.bootstrap.servers": broker.bootstrap,
            "startingOffsets": "earliest",
            "fetchOffset.retryIntervalMs": "100",
            "failOnDataLoss": str(not may_lose).lower(),
            **subscribe,
        }
        options = reader_options(given)
        self._reader = KafkaliteStreamReader(options, READ_SCHEMA)
        self._plan = ReadPlan.of(options, READ_SCHEMA)
        self.values: list[bytes] = []
        self.error: Exception | None = None
        self.begun = self.stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            start = self._reader.initialOffset()
            self.begun = True
            # Few at a time, so that batches are planned all the time.
            limit = random.Random(f"{SEED} {self.name}").choice([ReadAllAvailable(), ReadMaxRows(7)])
            while not self.stopping:
                end = self._reader.latestOffset(start, limit)
                if end != start:
                    for task in self._reader.partitions(start, end):
                        for batch in read_task(self._plan, task):
                            self.values += batch.column("value").to_pylist()
                    start = end
        except Exception as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), self.name


def test_a_topic_is_deleted_at_any_moment(broker: BrokerProcess, admin: Admin) -> None:
    chance = random.Random(SEED)
    ways = [(loss, kind) for loss in ("lossy", "strict") for kind in ("subscribePattern", "subscribe")]
    names = [f"{loss}-{kind}-{number}" for loss, kind in ways for number in range(MOMENTS // 2)]
    for name in names:
        admin.create_topic(f"{name}-stays", 1)
        admin.create_topic(f"{name}-goes", 2)
    sent: dict[str, list[bytes]] = {name: [] for name in names}
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:

        def send(name: str) -> None:
            value = b"%d" % len(sent[name])
            sent[name].append(value)
            producer.send(f"{name}-stays", value).result(PATIENCE_S)

        queries = []
        for name in names:
            producer.send_batch(f"{name}-goes", [b"gone"] * 30).result(PATIENCE_S)
            pattern = {"subscribePattern": f"^{name}-(stays|goes)$"}
            both = {"subscribe": f"{name}-stays,{name}-goes"}
            chosen = pattern if "subscribePattern" in name else both
            queries.append(Query(broker, name, chosen, may_lose=name.startswith("lossy")))
        wait_until(lambda: all(query.begun or query.error for query in queries), "all queries to begin")
        chance.shuffle(names)
        for name in names:
            for _ in range(chance.randrange(4)):
                send(chance.choice(names))
            time.sleep(chance.random() * 0.05)
            admin.delete_topics([f"{name}-goes"])
        for name in names:
            send(name)
        for query in queries:
            if query.may_lose:
                wait_until(
                    lambda query=query: query.values.count(sent[query.name][-1]) > 0 or query.error is not None,
                    f"the last record of {query.name}, seed {SEED}",
                )
                query.stopping = True
            query.join()
    for query in queries:
        if query.may_lose:
            assert query.error is None, (query.name, query.error)
            assert [value for value in query.values if value != b"gone"] == sent[query.name], query.name
        else:
            assert isinstance(query.error, SparkConditionError), (query.name, query.error)
            assert query.error.condition.startswith("KAFKA_DATA_LOSS."), (query.name, query.error)
            assert "create it" not in str(query.error)


def test_a_task_whose_topic_is_gone_loses_its_range(
    broker: BrokerProcess, admin: Admin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "UNKNOWN_GRACE_S", 1.0)
    admin.create_topic("planned", 1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_batch("planned", [b"x"] * 5).result(PATIENCE_S)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "planned"}
    strict, lossy = (reader_options({**given, "failOnDataLoss": each}) for each in ("true", "false"))
    (task,) = KafkaliteBatchReader(strict, READ_SCHEMA).partitions()
    admin.delete_topics(["planned"])
    outcomes: list[object] = []

    def read_strictly() -> None:
        try:
            outcomes.append(list(read_task(ReadPlan.of(strict, READ_SCHEMA), task)))
        except SparkConditionError as error:
            outcomes.append(error)

    thread = threading.Thread(target=read_strictly)
    thread.start()
    assert list(read_task(ReadPlan.of(lossy, READ_SCHEMA), task)) == []
    thread.join(PATIENCE_S)
    assert isinstance(outcomes[0], SparkConditionError)
    for text in (str(outcomes[0]), caplog.text):
        assert "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] failOnDataLoss=" in text
        assert "planned-0[0, 5): offset 0 is not in the log, which the brokers do not know; was the topic" in text


def test_some_topics_may_be_gone_at_load_only_where_data_may_be_lost(
    broker: BrokerProcess, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_offsets, "UNKNOWN_GRACE_S", 1.0)
    admin.create_topic("there", 1)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "there,was-there"}
    not_found = r"\[KAFKALITE_TOPIC_NOT_FOUND\] subscribe=there,was-there: topic 'was-there'"
    with pytest.raises(SparkConditionError, match=f"{not_found}: it does not exist; .*if it was deleted, leave it out"):
        KafkaliteDataSource(given).schema()
    lossy = {**given, "failOnDataLoss": "false"}
    KafkaliteDataSource(lossy).schema()
    # The listener commits what was read of the others, whatever is gone.
    assert set(ClusterOffsets(reader_options(given)).check(all_there=False).topic_ids) == {"there"}
    # A read that begins needs them all.
    with pytest.raises(SparkConditionError, match=not_found):
        KafkaliteStreamReader(reader_options(lossy), READ_SCHEMA).initialOffset()
    with pytest.raises(SparkConditionError, match=not_found):
        KafkaliteBatchReader(reader_options(lossy), READ_SCHEMA).partitions()
    # A stream that goes on from its checkpoint reads what is there, and the other one when it comes again.
    stream = KafkaliteStreamReader(reader_options(lossy), READ_SCHEMA)
    stream.prepareForTriggerAvailableNow()
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("there", b"x").result(PATIENCE_S)
    going_on = KafkaliteStreamReader(reader_options(lossy), READ_SCHEMA)
    end = going_on.latestOffset({"there": {"0": 0}, "was-there": {"0": 5}}, ReadAllAvailable())
    assert end == {"there": {"0": 1}}
    assert [str(each) for task in going_on.partitions({"there": {"0": 0}, "was-there": {"0": 5}}, end)
            for each in task.ranges] == ["there-0[0, 1)"]  # fmt: skip
    admin.create_topic("was-there", 1)
    again = next(found for _ in itertools.count() if (found := going_on.latestOffset(end, ReadAllAvailable())) != end)
    assert again == {"there": {"0": 1}, "was-there": {"0": 0}}
