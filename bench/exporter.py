"""What does a scrape of ``kafkalite exporter`` cost with 5,000 groups, each with 10 partitions committed and behind?

Every group has offsets of its own, so the first scrapes read 50,000 record batches for the lag in seconds. Later ones
remember them: only groups that have moved are looked up. Memory is the exporter's resident memory after the scrapes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.commits import check_committed, find_coordinators
from bench.measurement import Row, Usage, peak_bytes, resident_bytes, thread_seconds
from bench.raw_load import Link, batch_of, check_produced, produce_request
from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.frame import framed
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

GROUPS, PARTITIONS = 5_000, 10
TOPIC = "read"
_COMMIT_VERSION = 8
_BATCHES, _RECORDS = 60, 100
_SCRAPERS = 20


@contextmanager
def exporter(bootstrap: str) -> Iterator[tuple[str, int]]:
    """Run an exporter; give the address of its page and its process id."""
    command = [sys.executable, "-m", "spark_kafkalite.cli", "exporter", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--bootstrap-server", bootstrap], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()


def rows(quick: bool) -> Iterator[Row]:
    """Yield the figures of scrapes of one broker."""
    groups = GROUPS // 10 if quick else GROUPS
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        broker = running.enter_context(BrokerProcess(directory))
        _fill(broker, groups)
        url, pid = running.enter_context(exporter(broker.bootstrap))
        what = f"{groups:,} groups of {PARTITIONS} partitions"
        first = _scraped(url, broker.pid, pid)
        more = 0
        while _left_out(url) and more < 20:
            more += 1
        yield Row(f"{what}, first scrape", "s", [first[0]], [], "", at_most=10)
        yield Row(f"{what}, further scrapes until all ages are known", "scrapes", [more], [], "")
        later = [_scraped(url, broker.pid, pid) for _ in range(3 if quick else 10)]
        yield Row(f"{what}, later scrapes", "s", [each[0] for each in later], [], "", at_most=10)
        yield Row(f"{what}, CPU of the broker", "CPU s", [each[1] for each in later], [], "")
        yield Row(f"{what}, CPU of the exporter", "CPU s", [each[3] for each in later], [], "")
        yield Row(f"{what}, page", "MB", [each[2] for each in later], [], "")
        with ThreadPoolExecutor(_SCRAPERS) as threads:
            taken = list(threads.map(lambda _: _scraped(url, broker.pid, pid)[0], range(_SCRAPERS)))
        yield Row(f"{what}, {_SCRAPERS} scrapers at once, the slowest", "s", [max(taken)], [], "", at_most=10)
        yield Row(f"{what}, memory", "MB", [resident_bytes(pid) / 1e6], [], "", at_most=100)
        yield Row(f"{what}, memory at most", "MB", [peak_bytes(pid) / 1e6], [], "", at_most=100)


def _fill(broker: BrokerProcess, groups: int) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    names = [f"group-{number}" for number in range(groups)]
    find_coordinators(broker.bootstrap, names)
    with Link(broker.bootstrap) as link:
        for _ in range(_BATCHES):
            check_produced(link.call(produce_request(TOPIC, range(PARTITIONS), batch_of(_RECORDS))))
        for number, name in enumerate(names):
            check_committed(link.call(_commit(name, number)))


def _commit(group: str, offset: int) -> bytes:
    asked = [OffsetCommitRequestPartition(partition_index=each, committed_offset=offset) for each in range(PARTITIONS)]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=asked)])
    return framed(codec.encode_request(request, _COMMIT_VERSION, 1, "bench"))


def _page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def _left_out(url: str) -> bool:
    # A page serves scrapes for a second.
    time.sleep(1.1)
    return b"\nkafkalite_exporter_ages_left_out 0\n" not in _page(url)


def _scraped(url: str, broker_pid: int, exporter_pid: int) -> tuple[float, float, float, float]:
    """Return a scrape's time and the broker's CPU time in s, its size in MB, and the exporter's CPU time in s."""
    time.sleep(1.1)
    began_s, computed_s, own = time.perf_counter(), thread_seconds(broker_pid), Usage(exporter_pid)
    size = len(_page(url))
    took_s = time.perf_counter() - began_s
    return took_s, thread_seconds(broker_pid) - computed_s, size / 1e6, own.cpu_s
