"""What do the broker's metrics cost: CPU of small requests with and without them, and of scrapes?

The same ready-made requests go to two brokers in turn, one with ``metrics.listener``; the "peer" is the one without.
A scrape has 1,000 partitions, and 20 groups with a commit for each of them.
"""

from __future__ import annotations

import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.commits import commit_request, find_coordinators
from bench.measurement import Row, percentile, resident_bytes, thread_seconds, warm_page_cache
from bench.raw_load import Link, batch_of, check_produced, closed_loop, fetch_request, produce_request, request_cpu_us
from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess

PARTITIONS, GROUPS = 1000, 20
_WITHOUT = "without metrics"
_IN_FLIGHT = (1, 20)


def rows(quick: bool) -> Iterator[Row]:
    """Measure both brokers in turn and yield a row for each figure."""
    seconds, rounds = (0.5, 3) if quick else (2.0, 10)
    warm_page_cache(256 << 20)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        counting = BrokerProcess(directory / "with", overrides={"metrics.listener": "127.0.0.1:0"})
        brokers = [running.enter_context(counting), running.enter_context(BrokerProcess(directory / "without"))]
        for broker in brokers:
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                admin.create_topic("one", 1)
            with Link(broker.bootstrap) as link:
                check_produced(link.call(produce_request("one", [0], batch_of(1))))
        requests = {
            "produce of one record": produce_request("one", [0], batch_of(1)),
            "fetch of one record": fetch_request("one", [(0, 0)], 1),
        }
        for name, request in requests.items():
            for in_flight in _IN_FLIGHT:
                yield _request_row(f"{name}, {in_flight} in flight", brokers, request, in_flight, seconds, rounds)
        yield from _scrape_rows(counting, 5 if quick else 30)


def _request_row(
    what: str, brokers: list[BrokerProcess], request: bytes, in_flight: int, seconds: float, rounds: int
) -> Row:
    figures: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        # Whichever is first is measured warmer or colder: they change places.
        for which in (0, 1) if number % 2 else (1, 0):
            broker, for_s = brokers[which], seconds if number else 0.5
            measured = request_cpu_us(broker.pid, broker.bootstrap, request, in_flight, for_s)
            if number:
                figures[which].append(measured)
    return Row(f"{what}, CPU", "us/request", *figures, _WITHOUT, higher_is_better=False)


def _scrape_rows(broker: BrokerProcess, scrapes: int) -> Iterator[Row]:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("read", PARTITIONS)
    groups = [f"group {number}" for number in range(GROUPS)]
    find_coordinators(broker.bootstrap, groups)
    with Link(broker.bootstrap) as link:
        for group in groups:
            link.call(commit_request(group, range(PARTITIONS)))
        # The index of every log is in memory.
        link.call(produce_request("read", range(PARTITIONS), batch_of(1)))
    before_bytes = resident_bytes(broker.pid)
    alone = [_scrape(broker) for _ in range(scrapes)]
    grown = (resident_bytes(broker.pid) - before_bytes) / 1e6
    yield Row("a scrape, time", "ms", [each[0] for each in alone], [], "")
    yield Row("a scrape, CPU of the broker", "ms", [each[1] for each in alone], [], "", at_most=15)
    yield Row("a scrape, size", "KB", [each[2] for each in alone], [], "")
    yield Row("memory that scrapes take", "MB", [grown], [], "", at_most=5)
    quiet_ms, scraped_ms = _latencies(broker, 0.2 * scrapes), []
    done = threading.Event()

    def scrape() -> None:
        for _ in range(scrapes):
            _scrape(broker)
        done.set()

    scraper = threading.Thread(target=scrape)
    scraper.start()
    while not done.is_set():
        scraped_ms += _latencies(broker, 0.2)
    scraper.join()
    p99 = ([percentile(scraped_ms, 0.99)], [percentile(quiet_ms, 0.99)])
    yield Row("produce of one record during scrapes, p99", "ms", *p99, "without scrapes", higher_is_better=False)


def _scrape(broker: BrokerProcess) -> tuple[float, float, float]:
    """Return the time and the broker's CPU time of a scrape in ms, and its size in KB."""
    # A page serves scrapes for a second.
    time.sleep(1.1)
    began_s, computed_s = time.perf_counter(), thread_seconds(broker.pid)
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics") as answer:
        size = len(answer.read())
    return (
        1000 * (time.perf_counter() - began_s),
        1000 * (thread_seconds(broker.pid) - computed_s),
        size / 1000,
    )


def _latencies(broker: BrokerProcess, seconds: float) -> list[float]:
    """Return how long the answers to one request at a time take, in ms."""
    load = closed_loop(broker.bootstrap, [produce_request("one", [0], batch_of(1))], 1, seconds, lambda _: None)
    return [1000 * each for each in load.latencies_s]
