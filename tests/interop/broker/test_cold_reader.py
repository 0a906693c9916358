"""Consumers of old data that is not in the page cache: they get it, and the broker's loop never waits for the disk."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.interop.support.good_client import GoodClient
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED

FIRST_MS = 1_700_000_000_000
BATCHES = 3_000
VALUE_BYTES = 10_000


def value_of(number: int) -> bytes:
    return b"%08d" % number * (VALUE_BYTES // 8)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With 30 MB of old records in ``old``, one in a batch, in segments of 4 MiB."""
    # Retention would take them.
    overrides = {"log.initial.task.delay.ms": 86_400_000}
    with BrokerProcess(tmp_path_factory.mktemp("cold") / "data", overrides=overrides) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topic("old", 1, 1, {"segment.bytes": str(4 << 20), "flush.messages": "100"})
            admin.create_topic("good", 1, 1)
            admin.create_topic("good2", 1, 1)
        with RawClient(running.bootstrap, PATIENCE_S) as client:
            for start in range(0, BATCHES, 50):
                for number in range(start, start + 50):
                    batch = make_batch([value_of(number)], timestamp_ms=FIRST_MS + number)
                    client.send_produce([("old", [(0, batch)])], acks=1)
                for number in range(start, start + 50):
                    assert client.receive_produce().topics[0][1][0].base_offset == number
        yield running


def drop_caches(broker: BrokerProcess) -> int:
    """Have the kernel forget the old topic's files, except for what was written last; return how many pages of the
    first segment stayed."""
    for path in (broker.data_dir / "old-0").iterdir():
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    first = os.open(broker.data_dir / "old-0" / f"{0:020}.log", os.O_RDONLY)
    try:
        os.preadv(first, [bytearray(1)], 2 << 20, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0
    except OSError:
        return 1
    finally:
        os.close(first)
    return 1


@contextmanager
def traced_reads(broker: BrokerProcess, output: Path) -> Iterator[None]:
    """Write down the read calls of every thread of the broker."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: scripts/install_debian_packages.sh")
    calls = "trace=pread64,preadv,preadv2"
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-o", str(output), "-p", str(broker.pid), "-e", calls]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        tasks = Path(f"/proc/{broker.pid}/task")

        def is_attached() -> bool:
            """To each thread: it takes them one after the other."""
            return not any("TracerPid:\t0\n" in status.read_text() for status in tasks.glob("*/status"))

        wait_until(lambda: tracer.poll() is not None or is_attached(), "strace attaches")
        assert tracer.poll() is None, "strace has ended"
        yield
    finally:
        tracer.send_signal(signal.SIGTERM)
        tracer.wait(PATIENCE_S)


def calls_in(traced: Path) -> Iterator[str]:
    """Yield the calls, one a line, also those that strace tells in two lines because of another thread's."""
    begun: dict[str, str] = {}
    for line in traced.read_text().splitlines():
        thread = line.partition(" ")[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>")
        elif (resumed := re.match(r"\d+ +<\.\.\. \w+ resumed>", line)) is not None:
            yield begun.pop(thread, "") + line[resumed.end() :]
        else:
            yield line


def offset_at(client: RawClient, timestamp: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="old", partitions=[asked])])
    return int(client.call(request, 7).topics[0].partitions[0].offset)


def assert_right(client: RawClient, offset: int, max_bytes: int) -> None:
    answer = client.fetch("old", offset, max_wait_ms=0, partition_max_bytes=max_bytes)
    assert answer.error_code == 0
    found = values_of(answer.records)
    assert found and found[0] == (offset, value_of(offset))
    assert [number for number, _ in found] == list(range(offset, offset + len(found)))


@pytest.mark.root
@pytest.mark.debian
def test_the_loop_reads_only_what_is_in_memory(broker: BrokerProcess, tmp_path: Path) -> None:
    try:
        # It is advice: a page that another processor has just used stays.
        wait_until(lambda: not drop_caches(broker), "the kernel drops the old files", poll_s=0.05)
    except AssertionError:
        pytest.skip("this file system keeps files in memory")
    print(f"KAFKALITE_SEED={SEED}")
    chance = random.Random(SEED)
    with RawClient(broker.bootstrap, PATIENCE_S) as client, traced_reads(broker, tmp_path / "reads"):
        for _ in range(12):
            drop_caches(broker)
            offset = chance.randrange(BATCHES - 2_000)
            assert_right(client, offset, chance.choice([1, 50_000, 1 << 20]))
            drop_caches(broker)
            assert offset_at(client, FIRST_MS + offset) == offset
    loop_reads = threads_reads = 0
    for line in calls_in(tmp_path / "reads"):
        called = re.match(r"(\d+) +(\w+)\(\d+<([^>]*)>", line)
        if called is None or "/old-0/" not in called[3]:
            continue
        if int(called[1]) != broker.pid:
            threads_reads += 1
            continue
        loop_reads += 1
        assert called[2] == "preadv2" and "RWF_NOWAIT" in line, f"the loop may wait for the disk: {line}"
    print(f"{loop_reads} reads in the loop, {threads_reads} in threads")
    assert loop_reads > 20 and threads_reads > 20


def test_cold_readers_get_everything_and_another_client_goes_on(broker: BrokerProcess) -> None:
    drop_caches(broker)
    failures: list[BaseException] = []

    def read_through(start: int) -> None:
        try:
            with RawClient(broker.bootstrap, PATIENCE_S) as client:
                for offset in range(start, BATCHES - 100, 90):
                    assert_right(client, offset, 1 << 20)
        except BaseException as error:
            failures.append(error)

    # That nothing in the loop waits for the disk is shown above; bench/cold_reader.py measures how late answers are.
    with GoodClient(broker, "good2") as good:
        for _ in range(2):
            readers = [threading.Thread(target=read_through, args=(start,)) for start in range(0, 600, 100)]
            for reader in readers:
                reader.start()
            good.goes_on()
            while any(reader.is_alive() for reader in readers):
                drop_caches(broker)
            for reader in readers:
                reader.join()
    assert failures == []
    assert "Traceback" not in broker.stderr_path.read_text()
