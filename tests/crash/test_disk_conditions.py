"""Full, read-only and failing disks, and a lack of descriptors and memory, under a live broker.

What was acknowledged is compared record by record, at its offset, while the condition lasts, when it has ended, and
after restarts. A refused batch is sent again by its idempotent producer and must be in the log once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from spark_kafkalite.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from spark_kafkalite.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.crash import faulty_broker, loop_disk
from tests.crash.small_disk import SmallDisk, failing, limit, open_descriptors, why_not
from tests.crash.traced import traced
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SOAK

pytestmark = [pytest.mark.root, pytest.mark.debian]

MIB = 1024 * 1024
STORAGE_ERROR = 56
OVERRIDES = {"log.flush.offset.checkpoint.interval.ms": 200, "log.initial.task.delay.ms": 200}
MakeDisk = Callable[[int], SmallDisk]


@pytest.fixture(autouse=True)
def possible() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    with contextlib.ExitStack() as undo:

        def make(size_bytes: int) -> SmallDisk:
            disk = SmallDisk(tmp_path / f"disk-{len(list(tmp_path.iterdir()))}", size_bytes)
            undo.callback(disk.unmount)
            return disk

        yield make


class Idempotent:
    """One partition's idempotent producer, one batch at a time; ``acknowledged`` holds each value at its offset."""

    def __init__(self, broker: BrokerProcess, topic: str, partition: int = 0, *, value_bytes: int = 100_000) -> None:
        self.broker = broker
        self.topic = topic
        self.partition = partition
        self.value_bytes = value_bytes
        self.acknowledged: dict[int, bytes] = {}
        self.error_text = ""
        self._sequence = 0
        with RawClient(broker.bootstrap) as client:
            self._id = client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id
        assert self._id >= 0

    def send(self) -> int:
        """Send the next batch, or again the one that was not acknowledged; return the error code."""
        value = b"%s-%d-%d:" % (self.topic.encode(), self.partition, self._sequence)
        value += bytes(self.value_bytes)
        batch = make_batch(
            [value],
            timestamp_ms=time.time_ns() // 1_000_000,
            producer_id=self._id,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        with RawClient(self.broker.bootstrap) as client:
            outcome = client.produce(self.topic, batch, self.partition)
        self.error_text = outcome.error_message or ""
        if outcome.error_code == 0:
            assert outcome.base_offset not in self.acknowledged
            self.acknowledged[outcome.base_offset] = value
            self._sequence += 1
        return outcome.error_code

    def send_until_refused(self, at_most: int = 2000) -> None:
        for _ in range(at_most):
            if self.send() == STORAGE_ERROR:
                return
        pytest.fail(f"{at_most} batches were taken")

    def send_all(self, count: int) -> None:
        assert [self.send() for _ in range(count)] == [0] * count, self.error_text

    def check(self) -> None:
        """Compare what consumers see with what was acknowledged, one by one: the same values, at the same offsets."""
        found: dict[int, bytes | None] = {}
        offset = 0
        with RawClient(self.broker.bootstrap) as client:
            while True:
                answer = client.fetch(self.topic, offset, partition=self.partition, max_wait_ms=0)
                assert answer.error_code == 0
                records = [pair for pair in values_of(answer.records) if pair[0] >= offset]
                if not records:
                    break
                found.update(records)
                offset = records[-1][0] + 1
                assert offset <= answer.high_watermark
        assert list(found) == sorted(self.acknowledged)
        assert list(found) == list(range(len(found)))
        assert all(found[at] == value for at, value in self.acknowledged.items())


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **settings: object) -> tuple[int, str]:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in settings.items()]
    asked = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=configs)
    with RawClient(broker.bootstrap, timeout_s=PATIENCE_S) as client:
        made = client.call(CreateTopicsRequest(topics=[asked], timeout_ms=60_000), 7).topics[0]
    return made.error_code, made.error_message or ""


def described(broker: BrokerProcess, topic: str) -> list[tuple[int, int, list[int]]]:
    """Return (error code, leader, offline replicas) of a topic's partitions."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with RawClient(broker.bootstrap) as client:
        partitions = client.call(request, 12).topics[0].partitions
    found = sorted(partitions, key=lambda each: each.partition_index)
    return [(each.error_code, each.leader_id, each.offline_replicas) for each in found]


def log_lines(broker: BrokerProcess, pattern: str) -> list[str]:
    return re.findall(f".*{pattern}.*", broker.stderr_path.read_text())


def alter(broker: BrokerProcess, topic: str, name: str, value: object) -> None:
    change = AlterableConfig(name=name, config_operation=0, value=str(value))
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
    with RawClient(broker.bootstrap) as client:
        answer = client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0


# Full and read-only ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_full_disk_is_read_survives_its_broker_and_takes_records_when_there_is_room(
    make_disk: MakeDisk, end: str
) -> None:
    disk = make_disk(32 * MIB)
    broker = BrokerProcess(disk.path / "data", overrides=OVERRIDES)
    # Its output must not compete for the room.
    broker._output_directory = lambda: disk.path.parent / "output"  # type: ignore[method-assign]
    with broker:
        assert create(broker, "t", segment_bytes=3_000_000) == (0, "")
        producer = Idempotent(broker, "t")
        producer.send_all(20)
        reserve = disk.path / "data" / ".kafkalite-reserve"
        wait_until(reserve.exists, "the reserve")
        disk.fill()
        producer.send_until_refused()
        text = producer.error_text
        assert str(disk.path) in text and "bytes are free" in text and "retention.ms" in text
        for _ in range(20):
            assert producer.send() == STORAGE_ERROR
        producer.check()
        assert described(broker, "t") == [(0, 1, [])]
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            ((directory,),) = admin.describe_log_dirs().values()
        assert directory.error is None and str(disk.path) in (directory.refusal or "")
        code, text = create(broker, "other")
        assert code == STORAGE_ERROR and str(disk.path) in text
        # Small things still fit, by way of the reserve: a block of producer ids, checkpoints.
        assert Idempotent(broker, "t") is not None
        assert len(log_lines(broker, f"log directory {disk.path}/data takes no records: ")) == 1
        disk.fill()
        if end == "stop":
            assert broker.stop() == 0
            assert (disk.path / "data" / ".kafka_cleanshutdown").exists()
        else:
            broker.kill()
        disk.fill()
        broker.start()
        producer.check()
        assert producer.send() == STORAGE_ERROR
        producer.check()
        (disk.path / "filler").unlink()
        wait_until(lambda: producer.send() == 0, "records being taken again")
        producer.send_all(10)
        producer.check()
        assert len(log_lines(broker, "takes records again")) == 1
        wait_until(lambda: reserve.exists() and reserve.stat().st_size == 32 * MIB // 20, "the reserve again")
        broker.restart()
        producer.check()
        producer.send_all(1)


def test_retention_frees_a_full_ext4_without_a_restart(tmp_path: Path) -> None:
    if (reason := loop_disk.why_not()) is not None:
        pytest.skip(reason)
    overrides = {**OVERRIDES, "log.retention.check.interval.ms": 200, "log.segment.delete.delay.ms": 0}
    with loop_disk.Disks() as disks:
        disk = disks.new_disk("data=ordered")
        broker = BrokerProcess(disk.path / "data", overrides=overrides)
        broker._output_directory = lambda: tmp_path / "output"  # type: ignore[method-assign]
        with broker:
            assert create(broker, "t", segment_bytes=8_000_000) == (0, "")
            producer = Idempotent(broker, "t", value_bytes=900_000)
            producer.send_until_refused()
            assert "log.dir.min.free.bytes" in producer.error_text
            producer.check()
            alter(broker, "t", "retention.bytes", 16_000_000)
            wait_until(lambda: producer.send() == 0, "retention making room")
            producer.send_all(20)
            broker.restart()
            producer.send_all(1)
        disk.unmount()


@pytest.mark.parametrize("error", ["EROFS", "ENOSPC"])
def test_write_that_is_refused_leaves_nothing_and_is_repeated_once(tmp_path: Path, error: str) -> None:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        create(broker, "t")
        producer = Idempotent(broker, "t", value_bytes=1000)
        producer.send_all(10)
        log = tmp_path / "data" / "t-0" / f"{0:020d}.log"
        size = log.stat().st_size
        probe = tmp_path / "data" / ".kafkalite-probe"
        with failing(broker, "pwrite64", error, log, probe):
            for _ in range(5):
                assert producer.send() == STORAGE_ERROR
            assert ("mount it for writing" if error == "EROFS" else "free space") in producer.error_text
            producer.check()
            assert log.stat().st_size == size
        wait_until(lambda: producer.send() == 0, "records being taken again")
        producer.send_all(10)
        producer.check()
        assert not log_lines(broker, "is offline")
        broker.kill()
        broker.start()
        producer.check()


# Broken ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "acks_wait"), [("fdatasync", True), ("pwrite64", False)])
def test_directory_whose_disk_fails_is_offline_alone(tmp_path: Path, call: str, acks_wait: bool) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    overrides = {**OVERRIDES, "log.dirs": ",".join(map(str, directories)), "registry.dir": tmp_path / "registry"}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        create(broker, "t", 4, flush_before_ack="true" if acks_wait else "false")
        producers = [Idempotent(broker, "t", number, value_bytes=1000) for number in range(4)]
        for producer in producers:
            producer.send_all(5)
        in_a = [number for number in range(4) if (directories[0] / f"t-{number}").exists()]
        in_b = [number for number in range(4) if number not in in_a]
        assert len(in_a) == len(in_b) == 2
        with failing(broker, call, "EIO", directories[0] / f"t-{in_a[0]}" / f"{0:020d}.log"):
            assert producers[in_a[0]].send() == STORAGE_ERROR
            # The other partition of the directory fails with it, those of the other directory go on.
            for number in in_a:
                assert producers[number].send() == STORAGE_ERROR
            for number in in_b:
                producers[number].send_all(3)
        # The error is gone, the directory is not tried again.
        assert producers[in_a[0]].send() == producers[in_a[1]].send() == STORAGE_ERROR
        assert [described(broker, "t")[number] for number in in_a] == [(5, -1, [1])] * 2
        assert [described(broker, "t")[number] for number in in_b] == [(0, 1, [])] * 2
        assert len(log_lines(broker, f"log directory {directories[0]} is offline")) == 1
        assert create(broker, "new", 3) == (0, "")
        assert sorted(path.name for path in directories[1].glob("new-*")) == ["new-0", "new-1", "new-2"]
        # The checkpoints of the other directory go on being written.
        checkpoint = directories[1] / "replication-offset-checkpoint"
        ends = {number: len(producers[number].acknowledged) for number in in_b}

        def is_written() -> bool:
            # The first one may not have been due yet.
            text = checkpoint.read_text() if checkpoint.exists() else ""
            return all(f"t {number} {end}" in text for number, end in ends.items())

        wait_until(is_written, "the checkpoint")
        for number in in_b:
            producers[number].check()
        assert broker.stop() == 0
        assert (directories[1] / ".kafka_cleanshutdown").exists()
        assert not (directories[0] / ".kafka_cleanshutdown").exists()
        broker.start()
        for number in in_b:
            producers[number].check()
        for number in in_a:
            # What was refused may have reached the file before its fsync failed; its producer repeats it, once.
            producers[number].send_all(1)
            producers[number].check()


@pytest.mark.parametrize(("call", "count"), [("fdatasync", 1), ("pwrite64", 2)])
def test_broker_ends_when_its_last_directory_fails(tmp_path: Path, call: str, count: int) -> None:
    directories = [tmp_path / name for name in "ab"[:count]]
    overrides = {**OVERRIDES, "log.dirs": ",".join(map(str, directories)), "registry.dir": tmp_path / "registry"}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        create(broker, "t", count, flush_before_ack="true" if call == "fdatasync" else "false")
        producers = [Idempotent(broker, "t", number, value_bytes=1000) for number in range(count)]
        for number, producer in enumerate(producers):
            producer.send_all(5)
            assert broker.running
            (log,) = tmp_path.glob(f"?/t-{number}/{0:020d}.log")
            with failing(broker, call, "EIO", log):
                assert producer.send() == STORAGE_ERROR
                if number == count - 1:
                    wait_until(lambda: not broker.running, "the broker's end")
        assert broker.stop() == 1
        (line,) = log_lines(broker, " broker 1 stops: no log directory can be used")
        for number, directory in enumerate(directories):
            assert f"{directory}: cannot " in line and f"t-{number}" in line
            assert not (directory / ".kafka_cleanshutdown").exists()
        assert line.count("Input/output error") == count and "repair or replace the disks" in line
        broker.start()
        for producer in producers:
            # What was refused is not in the log, or its producer's repetition is recognised.
            producer.send_all(1)
            producer.check()


def test_broker_without_a_directory_ends_although_a_thread_hangs_on_the_disk(tmp_path: Path) -> None:
    prefix = faulty_broker.command_prefix("hang")
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES, command_prefix=prefix) as broker:
        create(broker, "hangs", flush_before_ack="true")
        create(broker, "t")
        producer = Idempotent(broker, "t", value_bytes=1000)
        producer.send_all(1)
        with RawClient(broker.bootstrap) as waiting:
            waiting.send_produce([("hangs", [(0, make_batch([b"x"], timestamp_ms=time.time_ns() // 1_000_000))])])
            log = tmp_path / "data" / "hangs-0" / f"{0:020d}.log"
            wait_until(lambda: log.stat().st_size, "the write")
            with failing(broker, "pwrite64", "EIO", tmp_path / "data" / "t-0" / log.name):
                assert producer.send() == STORAGE_ERROR
                wait_until(lambda: not broker.running, "the broker's end")
        assert broker.stop() == 1
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as producer.broker:
        producer.send_all(1)
        producer.check()


def test_directory_that_is_missing_at_the_start_is_offline_and_its_partitions_are_not_made_anew(
    tmp_path: Path,
) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    overrides = {**OVERRIDES, "log.dirs": ",".join(map(str, directories))}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        create(broker, "t", 2)
        producers = [Idempotent(broker, "t", number, value_bytes=1000) for number in range(2)]
        for producer in producers:
            producer.send_all(5)
        gone = next(number for number in range(2) if (directories[1] / f"t-{number}").exists())
        broker.stop()
        directories[1].rename(tmp_path / "away")
        directories[1].write_bytes(b"not a directory")
        broker.start()
        assert log_lines(broker, f"log directory {directories[1]} is offline")
        producers[1 - gone].check()
        producers[1 - gone].send_all(1)
        assert producers[gone].send() == STORAGE_ERROR and "it may lie in" in producers[gone].error_text
        assert not (directories[0] / f"t-{gone}").exists()
        assert described(broker, "t")[gone] == (5, -1, [1])
        with RawClient(broker.bootstrap) as client:
            shown = client.call(DescribeLogDirsRequest(topics=None), 4).results
        assert {each.log_dir: each.error_code for each in shown} == {
            str(directories[0]): 0,
            str(directories[1]): STORAGE_ERROR,
        }
        assert create(broker, "new", 2) == (0, "")
        broker.stop()
        directories[1].unlink()
        (tmp_path / "away").rename(directories[1])
        broker.start()
        for producer in producers:
            producer.send_all(1)
            producer.check()
        broker.stop()
        # The first directory holds the registry: without it there is no start.
        directories[0].rename(tmp_path / "away")
        directories[0].write_bytes(b"not a directory")
        with pytest.raises(ChildFailed, match=r"_registry lies in the log directory .*, which is missing"):
            broker.start()


# The registry ---------------------------------------------------------------------------------------------------------


def test_registry_on_a_full_disk_refuses_what_does_not_fit_and_recovers(tmp_path: Path, make_disk: MakeDisk) -> None:
    disk = make_disk(MIB)
    overrides = {**OVERRIDES, "registry.dir": disk.path / "registry"}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        assert create(broker, "t") == (0, "")
        producer = Idempotent(broker, "t", value_bytes=1000)
        disk.fill()
        refused = []
        for number in range(50):
            code, text = create(broker, f"u{number}", 20)
            if code:
                refused.append((code, text))
        assert refused and refused[-1][0] == STORAGE_ERROR
        assert "registry" in refused[-1][1] and "no room" in refused[-1][1]
        producer.send_all(5)
        producer.check()
        assert broker.running
        (disk.path / "filler").unlink()
        assert create(broker, "later", 20) == (0, "")
        broker.restart()
        producer.send_all(1)
        producer.check()
        assert all(code == 0 for code, _, _ in described(broker, "later"))


def test_registry_whose_fsync_fails_ends_the_broker_with_a_text(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        create(broker, "t")
        producer = Idempotent(broker, "t", value_bytes=1000)
        producer.send_all(3)
        registry = tmp_path / "data" / "_registry"
        with failing(broker, "fdatasync", "EIO", registry / "registry.db-wal", registry / "registry.db"):
            with contextlib.suppress(ConnectionError, OSError):
                create(broker, "u")
            wait_until(lambda: not broker.running, "the broker's end")
        assert "repair or replace the disk" in broker.stderr_path.read_text()
        broker.start()
        producer.check()
        producer.send_all(1)


# Descriptors and memory -----------------------------------------------------------------------------------------------


def test_without_descriptors_requests_fail_and_nothing_else(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker, RawClient(broker.bootstrap) as client:
        create(broker, "t", segment_bytes=5000)
        wait_until((tmp_path / "data" / ".kafkalite-reserve").exists, "the reserve")

        def produce() -> int:
            return client.produce("t", make_batch([bytes(1500)], timestamp_ms=time.time_ns() // 1_000_000)).error_code

        assert [produce() for _ in range(10)] == [0] * 10
        # Below what is open: a descriptor that is closed cannot be opened again.
        limit(broker, "nofile", 10)
        accepts = tmp_path / "accepts"
        with socket.create_connection((broker.host, broker.port)):
            codes = [produce() for _ in range(20)]
            assert STORAGE_ERROR in codes and set(codes) <= {0, STORAGE_ERROR}
            taken = codes.count(0)
            # A connection waits that cannot be accepted: the broker tries again after a second, not in each pass.
            with traced(broker.pid, "-e", "trace=accept,accept4", output=accepts):
                for _ in range(200):
                    assert client.fetch("t", 9, max_wait_ms=0).error_code == 0
        assert accepts.read_text().count("accept") < 100, "the broker spins"
        limit(broker, "nofile", 4096)
        assert [produce() for _ in range(10)] == [0] * 10
        assert not log_lines(broker, "is offline")
        answer = client.fetch("t", 0, max_wait_ms=0)
        assert answer.high_watermark == 20 + taken
        broker.stop()
        broker.start()
        with RawClient(broker.bootstrap) as again:
            assert again.fetch("t", 0, max_wait_ms=0).high_watermark == 20 + taken


def test_partitions_and_connections_fit_into_the_limit_of_descriptors(tmp_path: Path) -> None:
    # As the documentation of net/descriptors.py says of 2,000, 1,000 and 4,096.
    partitions, connections, hard = (2000, 1000, 4096) if SOAK else (300, 150, 600)
    prefix = ("prlimit", f"--nofile=256:{hard}")
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES, command_prefix=prefix) as broker:
        assert log_lines(broker, f"raised the limit of open files from 256 to {hard}")
        assert create(broker, "t", partitions) == (0, "")
        producers = [Idempotent(broker, "t", number, value_bytes=100) for number in (0, 99, partitions - 1)]
        for producer in producers:
            producer.send_all(3)
        assert partitions < open_descriptors(broker) < partitions + hard // 8 + 50
        with contextlib.ExitStack() as clients:
            for _ in range(connections):
                clients.enter_context(socket.create_connection((broker.host, broker.port)))
            for producer in producers:
                producer.send_all(1)
                producer.check()


def test_without_memory_a_request_fails_and_the_broker_lives(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        create(broker, "t")
        producer = Idempotent(broker, "t", value_bytes=1000)
        producer.send_all(10)
        status = Path(f"/proc/{broker.pid}/status").read_text()
        size = int(status.split("VmSize:")[1].split()[0]) * 1024
        limit(broker, "as", size + 24 * MIB)
        for _ in range(10):
            with RawClient(broker.bootstrap) as large:
                large.socket.sendall(struct.pack(">i", 90 * MIB) + b"\0\0\0\x09")
                assert large.is_closed()
            producer.send_all(1)
        producer.check()
        limit(broker, "as", "unlimited")
        with RawClient(broker.bootstrap) as large:
            large.send_produce([("t", [(0, make_batch([os.urandom(60 * MIB)]))])])
            assert large.receive_produce().topics[0][1][0].error_code == 10  # MESSAGE_TOO_LARGE: it was read
        producer.send_all(5)
        producer.check()
        assert log_lines(broker, "no memory for a request of 94371840 bytes")
        assert not log_lines(broker, "Traceback")
