"""A follower whose sound batches are not its leader's finds that, and copies its log again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import COMPARED_FILE, write_compared_ms
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import CRC_POSITION, CRC_START
from tests.interop.cluster.test_replication import log_bytes, values_of, wait_until_equal
from tests.interop.cluster.test_truncation import produce
from tests.patience import wait_until

COUNT = 200


def change_a_record(segment: Path) -> int:
    """Change a value in the middle of a segment, and the CRC of its batch; return the batch's base offset."""
    data = bytearray(segment.read_bytes())
    headers = kernel.scan_headers(data)
    middle = len(headers) // 2
    start = sum(header.size_bytes for header in headers[:middle])
    end = start + headers[middle].size_bytes
    # The last byte of the last record is the number of its headers; the one before ends its value.
    data[end - 2] ^= 1
    crc = crc32c(bytes(data[start + CRC_START : end]))
    data[start + CRC_POSITION : start + CRC_POSITION + 4] = crc.to_bytes(4, "big")
    kernel.check_crc(data, start, end - start)
    segment.write_bytes(data)
    return int(headers[middle].base_offset)


def differences(cluster: KafkaliteCluster, topic: str) -> list[str]:
    logs = [cluster.broker(number).stderr_path.read_text() for number in cluster.brokers]
    return [line for log in logs for line in log.splitlines() if topic in line and " differ from those of " in line]


def test_a_follower_with_other_sound_batches_copies_its_log_again(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic, untouched = new_topic(segment_bytes=1000), new_topic(segment_bytes=1000)
    for each in (topic, untouched):
        for first in range(0, COUNT, 20):
            produce(cluster, each, range(first, first + 20))
    before = {each: wait_until_equal(cluster, each) for each in (topic, untouched)}
    leader = cluster.leader_of(topic)
    follower = next(number for number in cluster.brokers if number != leader)
    cluster.stop(follower)
    broker = cluster.broker(follower)
    # The last round has not ended.
    write_compared_ms(OsFs(), str(broker.data_dir / COMPARED_FILE), 0)
    segments = sorted((broker.data_dir / f"{topic}-0").glob("*.log"))
    assert len(segments) > 2
    offset = change_a_record(segments[1])
    assert log_bytes(cluster, follower, topic) != before[topic]

    overrides = dict(broker.overrides)
    broker.overrides["log.initial.task.delay.ms"] = 100
    # The round goes over the topics of all tests before this one.
    broker.overrides["replica.compare.max.bytes.per.second"] = 1 << 30
    try:
        cluster.restart(follower)
        strays = broker.data_dir
        wait_until(lambda: list(strays.glob(f"{topic}-0.*-stray")), "the log to be set aside")
        cluster.wait_in_sync(topic, untouched)
        wait_until_equal(cluster, topic)
        note = broker.data_dir / COMPARED_FILE
        wait_until(lambda: note.exists() and note.read_text().split()[-1] != "0", "the end of the round")
    finally:
        broker.overrides = overrides
    for each in (topic, untouched):
        assert {log_bytes(cluster, number, each) for number in cluster.brokers} == {before[each]}
    assert not differences(cluster, untouched)
    (line,) = differences(cluster, topic)
    assert "ERROR" in line
    found = re.search(
        r"offsets (\d+) to (\d+) of broker (\d+) differ from those of broker (\d+), its leader in epoch \d+: "
        r"broker \d+ has (\d+) bytes with checksum ([0-9a-f]{8}), of leader epochs 0 to 0, "
        r"but broker \d+ has (\d+) bytes with checksum ([0-9a-f]{8}), of leader epochs 0 to 0; "
        r"the batches of both are sound",
        line,
    )
    assert found is not None, line
    start, end, mine, other, my_bytes, my_sum, leaders_bytes, leaders_sum = found.groups()
    assert int(start) <= offset <= int(end)
    assert (int(mine), int(other)) == (follower, leader)
    assert my_bytes == leaders_bytes and my_sum != leaders_sum
    # What was set aside has the other record.
    (stray,) = strays.glob(f"{topic}-0.*-stray")
    assert b"".join(path.read_bytes() for path in sorted(stray.glob("*.log"))) != before[topic]
    assert values_of(cluster.bootstrap, topic, COUNT) == [b"%d" % number for number in range(COUNT)]


def test_a_broker_compares_after_a_stop_that_was_not_in_order_and_not_after_another(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    produce(cluster, topic, range(COUNT))
    leader = cluster.leader_of(topic)
    follower = next(number for number in cluster.brokers if number != leader)
    broker = cluster.broker(follower)
    note = broker.data_dir / COMPARED_FILE
    delay = broker.overrides.get("log.initial.task.delay.ms")
    broker.overrides["log.initial.task.delay.ms"] = 0
    try:
        for end in (cluster.stop, cluster.kill):
            end(follower)
            # The last round has ended just now.
            write_compared_ms(OsFs(), str(note), time.time_ns() // 1_000_000)
            before = note.read_bytes()
            cluster.restart(follower)
            cluster.wait_in_sync(topic)
            if end == cluster.kill:
                wait_until(lambda: note.read_bytes() != before, "a round")  # noqa: B023
            else:
                assert note.read_bytes() == before
    finally:
        broker.overrides["log.initial.task.delay.ms"] = delay
    assert not differences(cluster, topic)
