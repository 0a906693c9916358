"""Quotas of real brokers: what clients of all kinds get, and what the protocol promises (KIP-13, KIP-124, KIP-219)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.configs import ConfigChange
from spark_kafkalite.client.admin.quotas import ANY
from spark_kafkalite.errors import InvalidRequest
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.metadata import MetadataRequest
from spark_kafkalite.wire.packed import FetchPartition, FetchRequest
from tests.interop.support.java_tools import JavaTools
from tests.interop.support.raw_client import RawClient
from tests.lab import apache_kafka
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until

with warnings.catch_warnings():
    # It reads its schemas with functions that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

RECORD = os.urandom(10_000)
RECORDS = 400
RATE = 1_000_000
# 4 MB at 1 MB/s, of which a client that has used less may have saved two. `bench quotas` measures the rates.
LEAST_S = 1.5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Tests write records of long ago, which retention would take.
    overrides = {"log.initial.task.delay.ms": 86_400_000}
    with BrokerProcess(tmp_path_factory.mktemp("quotas") / "data", overrides=overrides) as running:
        yield running


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    """An administrator, after whose test nothing limits anybody."""
    with Admin(bootstrap_servers=broker.bootstrap) as made:
        yield made
        for each in made.describe_client_quotas():
            made.alter_client_quotas(each.entity, remove=each.quotas)


@pytest.fixture
def client_id() -> str:
    """One that no other test has: what was not used before is saved."""
    return f"raw-{time.monotonic_ns()}"


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"t{time.monotonic_ns()}"
    admin.create_topic(name, num_partitions=1)
    return name


@pytest.fixture
def used_topic(broker: BrokerProcess, topic: str) -> str:
    """A topic with a record. A log's first append is answered after a sync, and what arrives meanwhile is served before
    the client is muted."""
    with RawClient(broker.bootstrap, client_id="first") as client:
        client.produce(topic, make_batch([b"first"]))
    return topic


# Rates of clients -----------------------------------------------------------------------------------------------------


# Each returns what closes the producer: with acks=0 a client that closes may reset the connection, whatever is unread.
Produce = Callable[[str, str, str, str], Callable[[], object]]


def ours_produce(bootstrap: str, topic: str, client_id: str, acks: str) -> Callable[[], object]:
    settings = {"bootstrap.servers": bootstrap, "client.id": client_id, "acks": acks, "linger.ms": 5}
    producer = Producer({**settings, "enable.idempotence": acks == "all"})
    for _ in range(RECORDS):
        producer.send(topic, value=RECORD)
    producer.flush()
    if acks != "0":
        assert producer.metrics()["producer-metrics"]["produce-throttle-time-max"] > 0
    return producer.close


def confluent_produce(bootstrap: str, topic: str, client_id: str, acks: str) -> Callable[[], object]:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "acks": acks})
    for _ in range(RECORDS):
        producer.produce(topic, RECORD)
    assert producer.flush(PATIENCE_S) == 0
    return lambda: producer.purge()


def kafka_python_produce(bootstrap: str, topic: str, client_id: str, acks: str) -> Callable[[], object]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=client_id,
        acks=acks if acks == "all" else int(acks),
        enable_idempotence=False,
    )
    for _ in range(RECORDS):
        producer.send(topic, RECORD)
    producer.flush(PATIENCE_S)
    return lambda: producer.close()


def wait_for_records(admin: Admin, topic: str, count: int = RECORDS) -> None:
    partition = TopicPartition(topic, 0)
    wait_until(
        lambda: admin.list_offsets({partition: LATEST_TIMESTAMP})[partition].offset == count,
        "all records to be in the log",
    )


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("produce", [ours_produce, confluent_produce, kafka_python_produce])
def test_producers_keep_to_their_rate(
    broker: BrokerProcess, admin: Admin, used_topic: str, produce: Produce, acks: str
) -> None:
    admin.alter_client_quotas({"client-id": used_topic}, {"producer_byte_rate": RATE})
    begun_s = time.monotonic()
    close = produce(broker.bootstrap, used_topic, used_topic, acks)
    wait_for_records(admin, used_topic, 1 + RECORDS)
    assert time.monotonic() - begun_s >= LEAST_S
    close()


@pytest.mark.kafka
def test_java_keeps_to_its_rate_and_says_that_it_was_throttled(
    broker: BrokerProcess, admin: Admin, used_topic: str, java_tools: JavaTools
) -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    # A request has more than all that may be saved, so the first one is throttled however slowly they come.
    admin.alter_client_quotas({"user": "ANONYMOUS", "client-id": used_topic}, {"producer_byte_rate": RATE / 20})
    records, settings = 30, ("batch.size=200000", "linger.ms=60000")
    begun_s = time.monotonic()
    done = java_tools.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", used_topic, "--num-records", str(records), "--record-size", str(len(RECORD))),
        *("--throughput", "-1", "--print-metrics"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}", f"client.id={used_topic}"),
        *settings,
    )
    wait_for_records(admin, used_topic, 1 + records)
    assert time.monotonic() - begun_s >= LEAST_S
    (line,) = [line for line in done.stdout.splitlines() if "produce-throttle-time-max" in line]
    assert float(line.rsplit(":", 1)[1]) > 0


def counted(read_some: Callable[[], int]) -> int:
    """Return how many records came in all, once there are enough."""
    counts: list[int] = []

    def have_come() -> bool:
        counts.append(read_some())
        return sum(counts) >= RECORDS

    wait_until(have_come, lambda: f"{RECORDS} records; {sum(counts)} have come")
    return sum(counts)


def ours_read(bootstrap: str, topic: str) -> int:
    with Consumer({"bootstrap.servers": bootstrap, "client.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        throttled_ms = [0.0]

        def read_some() -> int:
            throttled_ms.append(consumer.metrics()["consumer-fetch-manager-metrics"].get("fetch-throttle-time-max", 0))
            return len(list(consumer.poll(100) or ()))

        count = counted(read_some)
        assert max(throttled_ms) > 0
        return count


def confluent_read(bootstrap: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "client.id": topic, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    count = counted(lambda: sum(message.error() is None for message in consumer.consume(100, 0.1)))
    consumer.close()
    return count


def kafka_python_read(bootstrap: str, topic: str) -> int:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, client_id=topic, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, 0)])
    count = counted(lambda: sum(map(len, consumer.poll(100).values())))
    consumer.close()
    return count


@pytest.mark.parametrize("read", [ours_read, confluent_read, kafka_python_read])
def test_consumers_keep_to_their_rate_and_lose_nothing(
    broker: BrokerProcess, admin: Admin, topic: str, read: Callable[[str, str], int]
) -> None:
    confluent_produce(broker.bootstrap, topic, "unlimited", "all")
    admin.alter_client_quotas({"client-id": topic}, {"consumer_byte_rate": RATE})
    begun_s = time.monotonic()
    assert read(broker.bootstrap, topic) == RECORDS
    assert time.monotonic() - begun_s >= LEAST_S


# The protocol ---------------------------------------------------------------------------------------------------------


def test_five_requests_in_flight_are_answered_in_order(
    broker: BrokerProcess, admin: Admin, used_topic: str, client_id: str
) -> None:
    admin.alter_client_quotas({"client-id": client_id}, {"producer_byte_rate": 200_000})
    # The second has more than all that may be saved, so it is throttled however slowly they come.
    batches = [make_batch([os.urandom(size)]) for size in (100_000, 450_000, 10_000, 10_000, 10_000)]
    with RawClient(broker.bootstrap, client_id=client_id) as client:
        begun_s = time.monotonic()
        for batch in batches:
            client.send_produce([(used_topic, [(0, batch)])])
        answers = [client.receive_produce() for _ in range(5)]
        took_s = time.monotonic() - begun_s
    assert [answer.topics[0][1][0].base_offset for answer in answers] == [1, 2, 3, 4, 5]
    # The first second's allowance is for the first; what is over that is paid for before the last one is served.
    assert answers[0].throttle_time_ms == 0
    assert answers[1].throttle_time_ms > 0
    assert took_s >= 1.6


def test_produces_without_answers_mute_the_connection(
    broker: BrokerProcess, admin: Admin, used_topic: str, client_id: str
) -> None:
    admin.alter_client_quotas({"client-id": client_id}, {"producer_byte_rate": 200_000})
    batch = make_batch([os.urandom(100_000)])
    with RawClient(broker.bootstrap, client_id=client_id) as client:
        begun_s = time.monotonic()
        for _ in range(5):
            client.send_produce([(used_topic, [(0, batch)])], acks=0)
        client.call(MetadataRequest(topics=[]), 9)
        assert time.monotonic() - begun_s >= 1.3


def test_an_opening_fetch_over_the_quota_has_no_session(
    broker: BrokerProcess, admin: Admin, topic: str, client_id: str
) -> None:
    # So low that the first batch is owed for seconds.
    admin.alter_client_quotas({"client-id": client_id}, {"consumer_byte_rate": 4_000})
    asked = FetchRequest([(topic, [FetchPartition(0, 0, 1 << 20)])], session_epoch=0)
    with RawClient(broker.bootstrap, client_id=client_id) as client:
        for number in range(3):
            client.produce(topic, make_batch([b"%d" % number + os.urandom(20_000)]))
        first = client.ask_fetch(asked, 12)
        assert first.session_id
        # The first batch comes, however large.
        ((_, value),) = values_of(first.topics[0][1][0].records)
        assert value is not None and value.startswith(b"0")
        throttled = client.ask_fetch(asked, 12)
        assert (throttled.session_id, throttled.topics, throttled.error_code) == (0, [], 0)
        assert throttled.throttle_time_ms > 0
        begun_s = time.monotonic()
        again = client.ask_fetch(asked, 12)
        assert time.monotonic() - begun_s >= throttled.throttle_time_ms / 1000 * 0.9
        assert again.session_id and again.topics


def test_a_session_goes_on_after_its_empty_answers(
    broker: BrokerProcess, admin: Admin, topic: str, client_id: str
) -> None:
    # So low that the first batch is owed for seconds.
    admin.alter_client_quotas({"client-id": client_id}, {"consumer_byte_rate": 10_000})
    values: list[bytes] = []
    throttled = 0
    with RawClient(broker.bootstrap, client_id=client_id) as client:
        for number in range(2):
            client.produce(topic, make_batch([b"%04d" % number + os.urandom(50_000)]))
        asked = FetchRequest([(topic, [FetchPartition(0, 0, 50_000)])], 100, 1, 50_000, session_epoch=0)
        answer = client.ask_fetch(asked, 12)
        session_id, epoch = answer.session_id, 0
        assert session_id
        while True:
            values += [
                value[:4] for _, ones in answer.topics for one in ones for _, value in values_of(one.records) if value
            ]
            throttled += answer.throttle_time_ms > 0
            if len(values) == 2:
                break
            epoch += 1
            # After an empty answer nothing is named again.
            topics = [(topic, [FetchPartition(0, len(values), 50_000)])] if answer.topics else []
            answer = client.ask_fetch(asked._replace(topics=topics, session_id=session_id, session_epoch=epoch), 12)
            assert (answer.error_code, answer.session_id) == (0, session_id)
    assert values == [b"0000", b"0001"]
    assert throttled > 0


def test_the_time_of_requests_is_limited(broker: BrokerProcess, admin: Admin, client_id: str) -> None:
    admin.alter_client_quotas({"client-id": client_id}, {"request_percentage": 0.01})
    with RawClient(broker.bootstrap, client_id=client_id) as client:
        answers = [client.call(MetadataRequest(topics=None), 9) for _ in range(5)]
        assert max(answer.throttle_time_ms for answer in answers) > 0
        assert max(answer.throttle_time_ms for answer in answers) <= 1000
        # A fetch pays, too, and is empty then.
        empty = client.ask_fetch(FetchRequest([("none", [FetchPartition(0, 0, 100)])]), 12)
        assert empty.topics == [] and empty.throttle_time_ms > 0


def test_a_new_connection_begins_with_the_debt_of_its_client(
    broker: BrokerProcess, admin: Admin, topic: str, client_id: str
) -> None:
    admin.alter_client_quotas({"client-id": client_id}, {"producer_byte_rate": 10})
    with RawClient(broker.bootstrap, client_id=client_id) as client:
        answer = client.send_produce([(topic, [(0, make_batch([b"x" * 100_000]))])])
        assert answer and client.receive_produce().throttle_time_ms == 15_000
    # Its debt stays its own.
    with RawClient(broker.bootstrap, client_id=client_id) as client:
        client.send_produce([(topic, [(0, make_batch([b"x"]))])])
        assert client.receive_produce().throttle_time_ms == 15_000


# Connections ----------------------------------------------------------------------------------------------------------


def opened(address: str, count: int) -> int:
    """Open connections one after the other; return how many of them are served."""
    served = 0
    for _ in range(count):
        try:
            with RawClient(address) as client:
                client.call(MetadataRequest(topics=[]), 9)
                served += 1
        except ConnectionError:
            pass
    return served


def opened_at_once(address: str, count: int) -> int:
    """Open connections without a wait between them; return how many of them are served."""
    served = 0
    with contextlib.ExitStack() as opening:
        for client in [opening.enter_context(RawClient(address)) for _ in range(count)]:
            with contextlib.suppress(ConnectionError):
                client.call(MetadataRequest(topics=[]), 9)
                served += 1
    return served


def test_an_address_opens_no_more_connections_than_its_quota(broker: BrokerProcess, admin: Admin) -> None:
    admin.alter_client_quotas({"ip": "127.0.0.1"}, {"connection_creation_rate": 5})
    assert opened(broker.bootstrap, 5) == 5
    wait_until(lambda: opened_at_once(broker.bootstrap, 50) < 50, "a connection to be turned away")
    admin.alter_client_quotas({"ip": "127.0.0.1"}, remove=["connection_creation_rate"])
    assert opened(broker.bootstrap, 12) == 12


def test_a_broker_and_a_listener_accept_so_many_connections_a_second(tmp_path: Path) -> None:
    overrides = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SLOW://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SLOW:PLAINTEXT",
        "listener.name.slow.max.connection.creation.rate": 4,
    }
    with (
        BrokerProcess(tmp_path / "data", overrides=overrides) as running,
        Admin(bootstrap_servers=running.bootstrap) as admin,
    ):
        assert opened(running.bootstrap, 20) == 20
        # In a running broker.
        admin.incremental_alter_configs([ConfigChange("max.connection.creation.rate", "set", "4")], all_brokers=True)
        begun_s = time.monotonic()
        # Nobody is turned away: they wait.
        assert opened(running.bootstrap, 20) == 20
        assert time.monotonic() - begun_s >= 2.0


# Entities -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a%2Fb", "a/b", "a\0b", "..", "ü ☃", "<default>", "x" * 1000])
def test_names_of_all_kinds_are_kept(admin: Admin, name: str) -> None:
    entity = {"user": name, "client-id": name}
    admin.alter_client_quotas(entity, {"producer_byte_rate": 5, "request_percentage": 0.5})
    (described,) = admin.describe_client_quotas(entity)
    assert (described.entity, described.quotas) == (entity, {"producer_byte_rate": 5.0, "request_percentage": 0.5})
    assert [each.entity for each in admin.describe_client_quotas({"user": ANY, "client-id": ANY})] == [entity]
    assert admin.describe_client_quotas({"user": None}) == []


@pytest.mark.parametrize("value", [0.0, -1.0, 1e300, float("nan"), float("inf"), 0.5])
def test_values_that_cannot_be_change_nothing(admin: Admin, value: float) -> None:
    admin.alter_client_quotas({"client-id": "c"}, {"producer_byte_rate": 7})
    with pytest.raises(InvalidRequest, match="producer_byte_rate"):
        admin.alter_client_quotas({"client-id": "c"}, {"producer_byte_rate": value, "consumer_byte_rate": 5})
    (described,) = admin.describe_client_quotas({"client-id": "c"})
    assert described.quotas == {"producer_byte_rate": 7}
    admin.alter_client_quotas({"client-id": "c"}, {"consumer_byte_rate": 5}, validate_only=True)
    assert admin.describe_client_quotas({"client-id": "c"}) == [described]


def test_what_is_not_enforced_is_refused(admin: Admin) -> None:
    with pytest.raises(InvalidRequest, match="does not limit the creation and deletion of topics"):
        admin.alter_client_quotas({"user": "u"}, {"controller_mutation_rate": 5})


def test_every_broker_obeys_and_remembers(tmp_path: Path) -> None:
    with (
        KafkaliteCluster(tmp_path / "cluster", size=2) as cluster,
        Admin(bootstrap_servers=cluster.broker(1).bootstrap) as admin,
    ):
        admin.alter_client_quotas({"client-id": "raw"}, {"request_percentage": 0.001})

        def throttles(number: int) -> bool:
            with RawClient(cluster.broker(number).bootstrap) as client:
                return max(client.call(MetadataRequest(topics=None), 9).throttle_time_ms for _ in range(3)) > 0

        for number in (1, 2):
            wait_until(lambda number=number: throttles(number), f"broker {number} to throttle")  # type: ignore[misc]
        cluster.broker(2).restart()
        assert throttles(2)
        admin.alter_client_quotas({"client-id": "raw"}, remove=["request_percentage"])
        for number in (1, 2):
            wait_until(lambda number=number: not throttles(number), f"broker {number} to throttle no more")  # type: ignore[misc]


def test_a_listening_socket_survives_a_storm(broker: BrokerProcess, admin: Admin) -> None:
    """Connections over an address's quota are kept for a moment: not without end."""
    admin.alter_client_quotas({"ip": None}, {"connection_creation_rate": 1})
    host, _, port = broker.bootstrap.rpartition(":")
    sockets = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(300)]
    for each in sockets:
        each.close()
    admin.alter_client_quotas({"ip": None}, remove=["connection_creation_rate"])
    assert opened(broker.bootstrap, 5) == 5
