"""Retention and DeleteRecords on a running broker: what goes and when, what its readers see, what a kill leaves.

The check runs every 100 ms, and removed files go at once.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records import kernel
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafkalite.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until

OVERRIDES = {
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 0,
}
HOUR_MS = 3_600_000
OUT_OF_RANGE, UNKNOWN, INVALID_TOPIC, UNSUPPORTED, INVALID_REQUEST, POLICY, STORAGE_ERROR = 1, 3, 17, 35, 42, 44, 56


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("retention") / "data", overrides=OVERRIDES) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap, PATIENCE_S) as connected:
        yield connected


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t-{request.node.name.replace('[', '-').replace(']', '')}"[:100]


def create(client: RawClient, name: str, **config: object) -> None:
    settings = [CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=settings)
    assert client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0].error_code == 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def append(client: RawClient, name: str, *, age_ms: int = 0, size: int = 100, count: int = 1) -> int:
    batch = make_batch([b"x" * size] * count, timestamp_ms=now_ms() - age_ms)
    done = client.produce(name, batch)
    assert done.error_code == 0
    return int(done.base_offset) + count


def offset(client: RawClient, name: str, timestamp: int, version: int = 9) -> tuple[int, int, int]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[asked])])
    answer = client.call(request, version).topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


def start(client: RawClient, name: str) -> int:
    code, found, _ = offset(client, name, -2)
    assert code == 0
    return found


def delete(client: RawClient, name: str, before: int, *, partition: int = 0, version: int = 2) -> tuple[int, int]:
    asked = DeleteRecordsPartition(partition_index=partition, offset=before)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[asked])], timeout_ms=50_000)
    answer = client.call(request, version).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def files(broker: BrokerProcess, name: str) -> list[str]:
    return sorted(path.name for path in (broker.data_dir / f"{name}-0").iterdir())


# Retention ------------------------------------------------------------------------------------------------------------


def test_old_segments_go_and_young_ones_stay(broker: BrokerProcess, client: RawClient, name: str) -> None:
    create(client, name, segment_bytes=300, retention_ms=HOUR_MS)
    for age_ms in (3 * HOUR_MS, 2 * HOUR_MS, 0, 2 * HOUR_MS, 0):
        append(client, name, age_ms=age_ms)
    wait_until(lambda: start(client, name) == 2, "the log start at 2")
    assert client.fetch(name, 1).error_code == OUT_OF_RANGE
    answer = client.fetch(name, 2)
    assert (answer.error_code, answer.log_start_offset) == (0, 2)
    assert next(iter(values_of(answer.records)))[0] == 2
    wait_until(
        lambda: not [each for each in files(broker, name) if each.startswith(f"{0:019d}") and each[19] in "01"],
        "the deleted files unlinked",
    )
    assert start(client, name) == 2


def test_a_log_of_old_records_only_is_emptied(broker: BrokerProcess, client: RawClient, name: str) -> None:
    create(client, name, retention_ms=HOUR_MS)
    append(client, name, age_ms=2 * HOUR_MS, count=5)
    wait_until(lambda: start(client, name) == 5, "the log start at 5")
    segments = [f"{5:020d}.log"]
    wait_until(lambda: [each for each in files(broker, name) if each.endswith(".log")] == segments, "one segment left")
    assert append(client, name) == 6
    assert [each for each, _ in values_of(client.fetch(name, 5).records)] == [5]


def test_after_a_restart_the_age_of_records_counts_and_not_that_of_files(tmp_path: Path) -> None:
    """A fast start does not read the last segment of a log; retention finds out how old it is."""
    overrides = OVERRIDES | {"log.retention.check.interval.ms": 1_000_000, "log.initial.task.delay.ms": 1_000_000}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            for topic, age_ms in ("old", 2 * HOUR_MS), ("new", 0):
                create(client, topic, retention_ms=HOUR_MS)
                append(client, topic, age_ms=age_ms)
        broker.stop()
        # Files of the future and of the past, which say nothing.
        for topic, at in ("old", time.time() + 86400), ("new", time.time() - 86400 * 30):
            os.utime(tmp_path / "data" / f"{topic}-0" / f"{0:020d}.log", (at, at))
        broker.overrides.update(OVERRIDES)
        broker.start()
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            wait_until(lambda: start(client, "old") == 1, "the log start at 1")
            assert start(client, "new") == 0


def test_size_leaves_up_to_one_segment_more(broker: BrokerProcess, client: RawClient, name: str) -> None:
    create(client, name, segment_bytes=1000, retention_bytes=3000)
    for _ in range(40):
        append(client, name)
    wait_until(lambda: start(client, name) > 0, "a log start above 0")

    def size() -> int:
        return sum(map(_size, (broker.data_dir / f"{name}-0").glob("*.log")))

    wait_until(lambda: size() < 4000, "a log below 4,000 bytes")
    assert size() >= 3000


def test_what_is_not_flushed_stays_where_only_flushed_records_show(client: RawClient, name: str) -> None:
    create(client, name, retention_ms=1, visibility_policy="flushed", flush_ms=2**62)
    other = f"{name}-other"
    create(client, other, retention_ms=1)
    append(client, name, age_ms=HOUR_MS)
    append(client, other, age_ms=HOUR_MS)
    wait_until(lambda: start(client, other) == 1, "the other log start at 1")
    assert start(client, name) == 0


def test_a_slow_reader_gets_what_it_has_asked_for(broker: BrokerProcess, client: RawClient, name: str) -> None:
    create(client, name, segment_bytes=8_200_000)
    end = 0
    for _ in range(40):
        end = append(client, name, size=1000, count=200)
    with socket.create_connection((broker.host, broker.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader = RawClient(broker.bootstrap, PATIENCE_S)
        reader.socket.close()
        reader.socket = slow
        slow.settimeout(PATIENCE_S)
        reader.send_fetch(name, 0, partition_max_bytes=16 << 20, max_bytes=32 << 20)
        # The first bytes are there: the answer is under way, and far too large for the buffers.
        slow.recv(1, socket.MSG_PEEK)
        # The segment that is being sent is sealed, renamed and unlinked.
        append(client, name, size=1000, count=200)
        assert delete(client, name, end) == (0, end)
        assert client.fetch(name, 0).error_code == OUT_OF_RANGE
        wait_until(lambda: files(broker, name)[0] > f"{end:020d}", "the deleted files unlinked")
        fetched = reader.receive_fetch().topics[0][1][0]
    assert fetched.error_code == 0
    position, count = 0, 0
    for header in kernel.scan_headers(fetched.records):
        kernel.check_crc(fetched.records, position, header.size_bytes)
        position += header.size_bytes
        count += header.record_count
    assert count == end


def test_readers_see_no_hole_and_the_disk_does_not_fill(broker: BrokerProcess, name: str) -> None:
    with RawClient(broker.bootstrap, PATIENCE_S) as client:
        create(client, name, segment_bytes=20_000, retention_bytes=60_000)
    stopping = threading.Event()
    failures: list[BaseException] = []
    read = [0, 0]
    largest = 0

    def write() -> None:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            while not stopping.is_set():
                append(client, name, size=200, count=20)

    def follow(index: int, pause_s: float) -> None:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            at = 0
            while not stopping.is_set():
                answer = client.fetch(name, at, max_wait_ms=50, partition_max_bytes=30_000)
                if answer.error_code == OUT_OF_RANGE:
                    # Overtaken: the log start is beyond, and the record there can be read or has just gone as well.
                    begin = start(client, name)
                    assert begin > at, f"offset {at} was out of range, the log starts at {begin}"
                    at = begin
                    continue
                assert answer.error_code == 0
                for each, _ in values_of(answer.records):
                    assert each <= at, f"a hole: offset {each} follows {at - 1}"
                    at = max(at, each + 1)
                    read[index] += 1
                time.sleep(pause_s)

    def guarded(work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(error)
                stopping.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    threads = [guarded(write), guarded(follow, 0, 0.0), guarded(follow, 1, 0.1)]
    with RawClient(broker.bootstrap, PATIENCE_S) as client:

        def enough() -> bool:
            """Whether much has been deleted under both readers, and twice as much written as was ever on the disk."""
            nonlocal largest
            largest = max(largest, sum(_size(path) for path in (broker.data_dir / f"{name}-0").iterdir()))
            if stopping.is_set():
                return True
            written = offset(client, name, -1)[1] * 200
            return start(client, name) > 2000 and min(read) > 100 and written > 2 * largest

        wait_until(enough, lambda: f"a disk that does not fill: {largest} bytes, {read} records read", poll_s=0.02)
        stopping.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert failures == []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_altered_settings_hold_from_the_next_check_on(broker: BrokerProcess, client: RawClient, name: str) -> None:
    create(client, name, segment_bytes=300, retention_ms=-1)
    for age_ms in (3 * HOUR_MS, HOUR_MS, 0):
        append(client, name, age_ms=age_ms)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        for hours, expected in ((2, 1), (0.5, 2)):
            assert start(client, name) < expected
            admin.alter_configs({"segment.bytes": "300", "retention.ms": str(int(hours * HOUR_MS))}, topic=name)
            wait_until(lambda wanted=expected: start(client, name) == wanted, f"the log start at {expected}")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_segments_of_an_earlier_run_expire_too(tmp_path: Path, end: str) -> None:
    with BrokerProcess(tmp_path / "data", overrides={"log.initial.task.delay.ms": 86_400_000}) as broker:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            create(client, "t", segment_bytes=300, retention_ms=HOUR_MS)
            for age_ms in (3 * HOUR_MS, 2 * HOUR_MS, 2 * HOUR_MS, 0, 2 * HOUR_MS, 0):
                append(client, "t", age_ms=age_ms)
        broker.stop() if end == "stop" else broker.kill()
        broker.overrides = dict(OVERRIDES)
        broker.start()
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            # Their timestamps are read from the files, up to the first that is young enough.
            wait_until(lambda: start(client, "t") == 3, "the log start at 3")
            assert next(iter(values_of(client.fetch("t", 3).records)))[0] == 3
            assert offset(client, "t", -1)[1] == 6
            wait_until(lambda: files(broker, "t")[0] > f"{2:020d}~", "the deleted files unlinked")
            assert start(client, "t") == 3


# DeleteRecords --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_before_an_offset_are_deleted(
    broker: BrokerProcess, client: RawClient, name: str, version: int
) -> None:
    create(client, name, segment_bytes=500)
    for _ in range(10):
        append(client, name)
    assert delete(client, name, 7, version=version) == (0, 7)
    assert start(client, name) == 7
    assert client.fetch(name, 6).error_code == OUT_OF_RANGE
    assert next(iter(values_of(client.fetch(name, 7).records)))[0] <= 7
    # Never back, and the end is the end.
    assert delete(client, name, 3, version=version) == (0, 7)
    assert delete(client, name, 11, version=version) == (OUT_OF_RANGE, -1)
    assert delete(client, name, -2, version=version) == (OUT_OF_RANGE, -1)
    assert delete(client, name, -1, version=version) == (0, 10)
    assert client.fetch(name, 10, max_wait_ms=0).error_code == 0
    wait_until(lambda: files(broker, name)[0] > f"{5:020d}", "the deleted files unlinked")
    assert append(client, name) == 11


def test_each_partition_has_its_own_outcome(client: RawClient, name: str) -> None:
    create(client, name)
    create(client, f"{name}-compacted", cleanup_policy="compact")
    create(client, f"{name}-both", cleanup_policy="compact,delete")
    append(client, name)
    assert delete(client, "no-such-topic", 0) == (UNKNOWN, -1)
    assert delete(client, name, 0, partition=5) == (UNKNOWN, -1)
    assert delete(client, "__consumer_offsets", 0) == (INVALID_TOPIC, -1)
    assert delete(client, f"{name}-compacted", 0) == (POLICY, -1)
    assert delete(client, f"{name}-both", 0) == (0, 0)
    twice = [DeleteRecordsPartition(partition_index=0, offset=1)] * 2
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=twice)], timeout_ms=50_000)
    codes = [each.error_code for each in client.call(request, 2).topics[0].partitions]
    assert codes == [INVALID_REQUEST], "what is named twice is answered once"
    assert start(client, name) == 0


def test_only_what_consumers_see_can_be_deleted(client: RawClient, name: str) -> None:
    create(client, name, visibility_policy="flushed", flush_messages=3, flush_ms=2**62)
    append(client, name)
    assert delete(client, name, -1) == (0, 0)
    assert delete(client, name, 1) == (OUT_OF_RANGE, -1)
    append(client, name, count=2)
    wait_until(lambda: offset(client, name, -1)[1] == 3, "the log end at 3")
    assert delete(client, name, -1) == (0, 3)


def test_deleted_records_stay_deleted_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            create(client, "t", segment_bytes=500)
            for _ in range(10):
                append(client, "t")
            assert delete(client, "t", 6) == (0, 6)
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            assert start(client, "t") == 6
            assert client.fetch("t", 5).error_code == OUT_OF_RANGE
            assert offset(client, "t", -1)[1] == 10
            assert delete(client, "t", -1) == (0, 10)
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            assert (start(client, "t"), append(client, "t")) == (10, 11)


# ListOffsets and DescribeLogDirs --------------------------------------------------------------------------------------


def test_every_place_in_a_log_by_its_number(client: RawClient, name: str) -> None:
    create(client, name)
    assert [offset(client, name, each) for each in (-1, -2, -3, -4, -5)] == [
        (0, 0, -1), (0, 0, -1), (0, -1, -1), (0, 0, -1), (0, -1, -1),
    ]  # fmt: skip
    for age_ms in (5000, 1000, 3000):
        append(client, name, age_ms=age_ms)
    assert delete(client, name, 1) == (0, 1)
    largest = offset(client, name, -3)
    assert largest[:2] == (0, 1)
    assert [offset(client, name, each) for each in (-1, -2, -4, -5, largest[2], largest[2] + 1)] == [
        (0, 3, -1), (0, 1, -1), (0, 1, -1), (0, -1, -1), largest, (0, -1, -1),
    ]  # fmt: skip
    assert [offset(client, name, each)[0] for each in (-6, -100)] == [UNSUPPORTED] * 2
    assert [offset(client, name, -5, 8)[0], offset(client, name, -4, 7)[0], offset(client, name, -3, 6)[0]] == [
        UNSUPPORTED
    ] * 3
    # As in Kafka, before it is known whether there is such a partition.
    assert offset(client, "not-there", -6)[0] == UNSUPPORTED
    assert [offset(client, name, -4, 8), offset(client, name, -3, 7)] == [(0, 1, -1), largest]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_log_directories_are_described(broker: BrokerProcess, client: RawClient, name: str, version: int) -> None:
    create(client, name)
    append(client, name, count=10)
    asked = [DescribableLogDirTopic(topic=name, partitions=[0, 7])]
    (found,) = client.call(DescribeLogDirsRequest(topics=asked), version).results
    assert (found.error_code, found.log_dir) == (0, str(broker.data_dir))
    (topic,) = found.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index, partition.offset_lag, partition.is_future_key) == (name, 0, 0, False)
    assert partition.partition_size == (broker.data_dir / f"{name}-0" / f"{0:020d}.log").stat().st_size
    assert (found.total_bytes > found.usable_bytes > 0) == (version == 4)
    everything = client.call(DescribeLogDirsRequest(topics=None), version).results[0]
    assert name in {each.name for each in everything.topics}
    assert client.call(DescribeLogDirsRequest(topics=[]), version).results[0].topics == []


def test_a_directory_that_is_offline_is_named_with_its_error(tmp_path: Path) -> None:
    good, in_the_way = tmp_path / "good", tmp_path / "file"
    in_the_way.write_text("")
    overrides = {"log.dirs": f"{good},{in_the_way}/bad"}
    with (
        BrokerProcess(tmp_path / "data", overrides=overrides) as broker,
        RawClient(broker.bootstrap, PATIENCE_S) as client,
    ):
        create(client, "t")
        append(client, "t")
        results = client.call(DescribeLogDirsRequest(topics=None), 4).results
    found = {each.log_dir: (each.error_code, [topic.name for topic in each.topics]) for each in results}
    assert found == {str(good): (0, ["t"]), f"{in_the_way}/bad": (STORAGE_ERROR, [])}
    assert [each.usable_bytes > 0 for each in results] == [True, False]
