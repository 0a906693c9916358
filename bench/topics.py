"""How long do 1,000 and 5,000 topics take to make and to remove, and one of 9,999 partitions, in one request each?

From the sending of the request until its answer: leaders are registered, or the topics are gone. Apache Kafka answers
before it makes any log, and we when the first thousand serve. So one more row has the time until all partitions of the
wide topic serve, of which a minute is waited for. Meanwhile a request that needs no disk is sent again and again; its
longest wait is a row of its own.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin as confluent_admin

from bench.measurement import Row
from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab.apache_kafka import ApacheKafka

_PEER = "Apache Kafka 4.3.0"
_TIMEOUT_S = 300
_FEW, _MANY, _PARTITIONS = 1000, 5000, 9999
_SECONDS_AT_MOST = 10
# What a wide topic may take in terms of Apache Kafka's time, and how long its partitions are waited for.
_WIDE_AT_MOST = 3
_SERVED_WITHIN_S = 60
# What 5,000 topics may cost in terms of what 1,000 cost.
_GROWTH_AT_MOST = 6


class Waiter:
    """Another client, and the longest that it has waited for an answer."""

    def __init__(self, bootstrap: str) -> None:
        self.longest_s = 0.0
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.describe_cluster()
            while not self._ended.wait(0.005):
                began_s = time.perf_counter()
                admin.describe_cluster()
                self.longest_s = max(self.longest_s, time.perf_counter() - began_s)

    def __enter__(self) -> Waiter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def measured(bootstrap: str, many: int, partitions: int) -> dict[str, float]:
    """Return the seconds of each step at one broker, and the longest wait of another client."""
    found: dict[str, float] = {}
    admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    timeouts = {"operation_timeout": _TIMEOUT_S, "request_timeout": _TIMEOUT_S}

    def make(names: list[str], count: int) -> float:
        topics = [confluent_admin.NewTopic(name, count, 1) for name in names]
        return seconds(lambda: [each.result() for each in admin.create_topics(topics, **timeouts).values()])

    def remove(names: list[str]) -> float:
        return seconds(lambda: [each.result() for each in admin.delete_topics(names, **timeouts).values()])

    def serves(name: str, count: int) -> None:
        """Wait until all partitions answer, or the time is over."""
        until_s = time.perf_counter() + _SERVED_WITHIN_S
        left = [confluent_kafka.TopicPartition(name, number) for number in range(count)]
        while left and time.perf_counter() < until_s:
            asked = admin.list_offsets(
                dict.fromkeys(left, confluent_admin.OffsetSpec.latest()), request_timeout=_SERVED_WITHIN_S / 10
            )
            left = [each for each, found in asked.items() if found.exception() is not None]

    with Waiter(bootstrap) as waiter:
        for count in (_FEW, many):
            names = [f"topic-{count}-{number}" for number in range(count)]
            found[f"make {count}"] = make(names, 1)
            found[f"remove {count}"] = remove(names)
        found["make wide"] = make(["wide"], partitions)
        found["serve wide"] = found["make wide"] + seconds(lambda: serves("wide", partitions))
        found["remove wide"] = remove(["wide"])
    found["wait"] = waiter.longest_s
    return found


def rows(quick: bool) -> Iterator[Row]:
    """Measure ours and Apache Kafka's in turn."""
    many, partitions, rounds = (2 * _FEW, 2000, 1) if quick else (_MANY, _PARTITIONS, 3)
    ours: list[dict[str, float]] = []
    peers: list[dict[str, float]] = []
    for _ in range(rounds):
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            broker = stack.enter_context(BrokerProcess(directory / "data"))
            ours.append(measured(broker.bootstrap, many, partitions))
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            kafka = stack.enter_context(ApacheKafka(directory, heap_mb=1024, jvm_options=("-XX:+UseG1GC",)))
            peers.append(measured(kafka.bootstrap, many, partitions))
            # It goes on removing directories for minutes after it has answered; nobody needs what they hold.
            kafka.kill()
    steps = {
        f"make {_FEW}": f"{_FEW:,} topics made in one request",
        f"remove {_FEW}": f"{_FEW:,} topics removed in one request",
        f"make {many}": f"{many:,} topics made in one request",
        f"remove {many}": f"{many:,} topics removed in one request",
        "make wide": f"a topic of {partitions:,} partitions made",
        "serve wide": f"a topic of {partitions:,} partitions made, and all serve",
        "remove wide": f"a topic of {partitions:,} partitions removed",
    }
    for step, what in steps.items():
        yield Row(
            what,
            "s",
            [one[step] for one in ours],
            [one[step] for one in peers],
            _PEER,
            higher_is_better=False,
            target=_WIDE_AT_MOST if step in ("make wide", "serve wide") else None,
            at_most=_SECONDS_AT_MOST,
        )
    yield Row(
        f"{many:,} topics made, in terms of {_FEW:,}",
        "times",
        [one[f"make {many}"] / one[f"make {_FEW}"] for one in ours],
        [one[f"make {many}"] / one[f"make {_FEW}"] for one in peers],
        _PEER,
        higher_is_better=False,
        at_most=_GROWTH_AT_MOST,
    )
    yield Row(
        "longest wait of another client meanwhile",
        "s",
        [one["wait"] for one in ours],
        [one["wait"] for one in peers],
        _PEER,
        higher_is_better=False,
    )
