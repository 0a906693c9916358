"""A broker under a low hard limit of open files: it refuses what it could not open again, and always starts."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import wait_until

LIMIT = 256
POLICY_VIOLATION, STORAGE_ERROR = 44, 56
NO_DELAY = {"log.flush.offset.checkpoint.interval.ms": 200, "log.initial.task.delay.ms": 200}


def broker_under(limit: int, tmp_path: Path, **options: int) -> BrokerProcess:
    prefix = ("prlimit", f"--nofile={limit}:{limit}")
    return BrokerProcess(tmp_path / "data", command_prefix=prefix, overrides=NO_DELAY, **options)


def create(client: RawClient, name: str, partitions: int = 1) -> tuple[int, str | None]:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    (answer,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 5).topics
    return answer.error_code, answer.error_message


def produce(client: RawClient, topic: str, value: bytes) -> int:
    batch = make_batch([value], timestamp_ms=time.time_ns() // 1_000_000)
    return client.produce(topic, batch).error_code


def values(client: RawClient, topic: str) -> list[bytes | None]:
    answer = client.fetch(topic, 0, max_wait_ms=0)
    assert answer.error_code == 0
    return [value for _, value in values_of(bytes(answer.records))]


def test_topics_are_refused_early_enough_that_a_killed_broker_starts_and_serves_all(tmp_path: Path) -> None:
    with broker_under(LIMIT, tmp_path) as broker:
        with RawClient(broker.bootstrap) as client:
            made: list[str] = []
            while (outcome := create(client, f"t{len(made)}"))[0] == 0:
                made.append(f"t{len(made)}")
                assert len(made) < LIMIT
            code, text = outcome
            assert code == POLICY_VIOLATION
            assert text is not None and f"the limit of open files is {LIMIT}" in text and "ulimit -n" in text
            assert len(made) >= LIMIT // 2
            more = CreatePartitionsTopic(name="t0", count=2, assignments=None)
            (extended,) = client.call(CreatePartitionsRequest(topics=[more], timeout_ms=50_000), 3).results
            assert extended.error_code == POLICY_VIOLATION
            wanted = MetadataRequest(topics=[MetadataRequestTopic(name="automatic")], allow_auto_topic_creation=True)
            assert client.call(wanted, 8).topics[0].error_code != 0
            assert "topic automatic is not created automatically" in broker.stderr_path.read_text()
            assert [produce(client, name, b"1") for name in made] == [0] * len(made)
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert [produce(client, name, b"2") for name in made] == [0] * len(made)
            assert all(values(client, name) == [b"1", b"2"] for name in made)
            assert create(client, "more")[0] == POLICY_VIOLATION
            gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t0")], timeout_ms=50_000)
            assert client.call(gone, 6).responses[0].error_code == 0
            assert create(client, "more") == (0, None)


def test_requests_at_the_same_time_are_counted_together(tmp_path: Path) -> None:
    with broker_under(LIMIT, tmp_path) as broker, contextlib.ExitStack() as clients:
        opened = [clients.enter_context(RawClient(broker.bootstrap)) for _ in range(4)]
        for number, client in enumerate(opened):
            topic = CreatableTopic(name=f"t{number}", num_partitions=50, replication_factor=1)
            client.send(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 5)
        codes = [client.receive(CreateTopicsRequest.API_KEY, 5).topics[0].error_code for client in opened]
        assert sorted(codes) == [0, 0, POLICY_VIOLATION, POLICY_VIOLATION]


def test_connections_leave_what_logs_need(tmp_path: Path) -> None:
    with broker_under(LIMIT, tmp_path, registry_port=0) as broker, contextlib.ExitStack() as clients:
        client = clients.enter_context(RawClient(broker.bootstrap))
        assert create(client, "t", 100) == (0, None)
        host, port = broker.registry_connect.split(":")
        crowd = [
            clients.enter_context(socket.create_connection(address))
            for address in [(broker.host, broker.port), (host, int(port))]
            for _ in range(LIMIT)
        ]
        descriptors = Path(f"/proc/{broker.pid}/fd")
        wait_until(
            lambda: "connections next to 100 partitions" in broker.stderr_path.read_text(),
            "a connection is turned away",
        )
        # One that is being turned away has a descriptor for a moment.
        wait_until(lambda: LIMIT - len(os.listdir(descriptors)) >= 40, "descriptors for the logs")
        code, text = create(client, "u", 20)
        assert code == POLICY_VIOLATION and text is not None and "open connections" in text
        assert produce(client, "t", b"1") == 0
        for one in crowd:
            one.close()
        wait_until(lambda: create(client, "u", 10)[0] == 0, "room for a topic")


def test_a_start_under_a_lower_limit_serves_what_it_can_and_the_rest_later(tmp_path: Path) -> None:
    with broker_under(LIMIT, tmp_path) as broker:
        with RawClient(broker.bootstrap) as client:
            made = [f"t{number:03}" for number in range(100)]
            assert [create(client, name)[0] for name in made] == [0] * len(made)
            assert [produce(client, name, b"1") for name in made] == [0] * len(made)
        broker.kill()
    with broker_under(100, tmp_path) as broker:
        assert "the limit of open files is 100" in broker.stderr_path.read_text()
        with RawClient(broker.bootstrap) as client:
            codes = [produce(client, name, b"2") for name in made]
            served = codes.count(0)
            assert codes == [0] * served + [STORAGE_ERROR] * (len(made) - served) and 40 <= served < 60
            gone = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in (made[0], made[1], made[-1])], timeout_ms=50_000
            )
            assert {one.error_code for one in client.call(gone, 6).responses} == {0}
            # Two had been open and are gone, one had been closed: two of the closed ones take the places, once the
            # broker has let go of the deleted ones.
            wait_until(
                lambda: [produce(client, name, b"2") for name in made[2:-1]].count(0) == served,
                f"{served} of the topics served",
            )
        broker.kill()
    with broker_under(LIMIT, tmp_path) as broker:
        with RawClient(broker.bootstrap) as client:
            assert all(values(client, name)[:1] == [b"1"] for name in made[2:-1])
        left = [each.name for each in (tmp_path / "data").iterdir() if each.name.startswith(made[-1])]
        assert not left or left[0].endswith("-delete")
