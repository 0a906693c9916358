"""What does security cost the broker, and what does it cost Apache Kafka with the same listeners and certificates?

The clients are the same for both: confluent-kafka for bytes, plain sockets for all else. Both brokers run, and one at a
time has work. CPU is the broker process's own, with all its threads, after a round that is not counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bench.clients import Bench, Timed
from bench.measurement import Row, Usage, percentile, resident_bytes, thread_seconds, warm_page_cache
from bench.quotas import QUOTA, produce_by_librdkafka, running_in_process
from bench.raw_load import (
    Link,
    batch_of,
    check_produced,
    fetch_request,
    fetched_in,
    metadata_request,
    paced,
    produce_request,
    request_cpu_us,
)
from bench.secured_pair import AUTHORIZER, MTLS, PEER, PLAINTEXT, TLS, Subject, give_rights, secured_pair
from bench.tls_peers import flood, idle_connections
from spark_kafkalite import Admin

_VALUE: Final = b"x" * 1000
_TOPIC: Final = "one"
_CONNECTIONS: Final = 10_000
_FLOOD_PER_S: Final = 500
_PAIRS: Final = 10
# After so long a client has used up what its quota lets it send at once.
_LIMITED_AFTER_S: Final = 4.0
_PAUSE_S: Final = 0.002

_T = TypeVar("_T")
Figures = tuple[list[float], list[float]]


def rows(quick: bool, part: str) -> Iterator[Row]:
    """Measure one part, and yield a row for each figure."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as directory:
        yield from _PARTS[part](Path(directory), quick)


def _in_turn(rounds: int, runs: Sequence[Callable[[], _T]]) -> list[list[_T]]:
    """Run each in turn, after a round that is not counted; who is first changes."""
    results: list[list[_T]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for which in range(len(runs)) if number % 2 else reversed(range(len(runs))):
            found = runs[which]()
            if number:
                results[which].append(found)
    return results


def _figures(found: Sequence[Sequence[_T]], figure: Callable[[_T], float]) -> Figures:
    ours, peer = found
    return [figure(each) for each in ours], [figure(each) for each in peer]


# Bytes --------------------------------------------------------------------------------------------------------------


class _Watched(Bench):
    """Clients of one listener that measure the CPU of its broker instead of their own."""

    def __init__(self, subject: Subject, listener: str, authority: Path) -> None:
        ours, confluent = {}, {}
        if listener != PLAINTEXT:
            ours = {"security.protocol": "SSL", "ssl.truststore.location": str(authority), "ssl.truststore.type": "PEM"}
            confluent = {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
        super().__init__(subject.addresses[listener], ours, confluent, _VALUE)
        self._pid = subject.pid

    def timed(self, count: int, run: Callable[[], None]) -> Timed:
        """Return records a second, and records per CPU second of the broker."""
        began_s, usage = time.perf_counter(), Usage(self._pid)
        run()
        return count / (time.perf_counter() - began_s), count / usage.cpu_s


def _bytes(directory: Path, quick: bool) -> Iterator[Row]:
    count, rounds = (200_000, 2) if quick else (1_000_000, 3)
    warm_page_cache(2 * count * len(_VALUE))
    with secured_pair(directory) as pair:
        for listener in (TLS, PLAINTEXT):
            benches = [_Watched(subject, listener, pair.authority) for subject in pair.subjects]
            found = _in_turn(rounds, [partial(each.produce_confluent, count) for each in benches])
            yield from _bytes_rows("produce", listener, found)
            topics = [each.fill(count) for each in benches]
            reads = zip(benches, topics, strict=True)
            found = _in_turn(rounds, [partial(each.consume_confluent, topic, count) for each, topic in reads])
            yield from _bytes_rows("fetch", listener, found)
            for each, topic in zip(benches, topics, strict=True):
                each.drop(topic)
                each.close()


def _bytes_rows(what: str, listener: str, found: Sequence[Sequence[Timed]]) -> Iterator[Row]:
    over_tls = listener == TLS
    name = f"{what} by {'TLS 1.3' if over_tls else listener}"
    yield Row(
        f"{name}, CPU", "CPU s/GB", *_figures(found, lambda each: 1e9 / len(_VALUE) / each[1]), PEER,
        higher_is_better=False, target=1.0, at_most=1.0 if over_tls and what == "fetch" else None,
        note="confluent-kafka, values of 1,000 bytes",
    )  # fmt: skip
    yield Row(
        f"{name}, rate", "MB/s", *_figures(found, lambda each: each[0] * len(_VALUE) / 1e6), PEER,
        note="client and broker share the machine's cores",
    )  # fmt: skip


# Handshakes ---------------------------------------------------------------------------------------------------------


def _warm_up(subject: Subject, seconds: float) -> None:
    """Have the JIT compile what handshakes use: that takes thousands of them."""
    with flood(subject.addresses[TLS], None, seconds):
        pass


def _handshakes(directory: Path, quick: bool) -> Iterator[Row]:
    seconds, rounds = (2.0, 2) if quick else (6.0, 4)
    with secured_pair(directory) as pair:
        for subject in pair.subjects:
            _warm_up(subject, 2 * seconds)

        def measure(subject: Subject, listener: str, client_key: Path | None) -> tuple[float, float]:
            usage = Usage(subject.pid)
            with flood(subject.addresses[listener], client_key, seconds) as found:
                pass
            if found[0].failed:
                raise ConnectionError(f"{subject.name}: {found[0].failed} handshakes have failed")
            return found[0].per_s, usage.cpu_s / found[0].count

        for name, listener, key in (("one-way", TLS, None), ("mutual TLS", MTLS, pair.client_key)):
            results = _in_turn(rounds, [partial(measure, subject, listener, key) for subject in pair.subjects])
            yield Row(
                f"full handshakes, {name}", "per s", *_figures(results, lambda each: each[0]), PEER, target=1.0,
                note="EC P-256, no resumption; two clients, which share the machine's cores with the broker",
            )  # fmt: skip
            yield Row(
                f"a full handshake, {name}, CPU", "ms", *_figures(results, lambda each: 1000 * each[1]), PEER,
                higher_is_better=False, target=1.0,
                note="with the connection around it: accepted, and closed at the client's end",
            )  # fmt: skip


# Many connections ---------------------------------------------------------------------------------------------------


def _latencies_ms(bootstrap: str, seconds: float) -> list[float]:
    """Return how long the answers to produces of one record take, one after the other, in ms."""
    request = produce_request(_TOPIC, [0], batch_of(1), acks=1)
    return [1000 * each for each in paced(bootstrap, request, seconds, _PAUSE_S)]


def _p99_ms(bootstrap: str, seconds: float) -> float:
    return percentile(_latencies_ms(bootstrap, seconds), 0.99)


def _make_topic(subject: Subject) -> None:
    with Admin(bootstrap_servers=subject.bootstrap) as admin:
        admin.create_topic(_TOPIC, 1, 1)


def _idle(directory: Path, quick: bool) -> Iterator[Row]:
    count, seconds, rounds = (1_000, 1.0, 3) if quick else (_CONNECTIONS, 3.0, 5)
    found = []
    with secured_pair(directory) as pair:
        for subject in pair.subjects:
            _make_topic(subject)
            with idle_connections(subject.addresses[TLS], 100):
                _p99_ms(subject.bootstrap, 3 * seconds)
            alone_ms = [_p99_ms(subject.bootstrap, seconds) for _ in range(rounds)]
            before_bytes = resident_bytes(subject.pid)
            with idle_connections(subject.addresses[TLS], count):
                each_kib = (resident_bytes(subject.pid) - before_bytes) / 1024 / count
                cpu_ms = [_cpu_ms_a_second(subject.pid, seconds) for _ in range(rounds)]
                next_to_ms = [_p99_ms(subject.bootstrap, seconds) for _ in range(rounds)]
            found.append(([each_kib], cpu_ms, next_to_ms, alone_ms))
    name = f"{count:,} idle connections by TLS"
    memory, cpu, next_to, alone = zip(*found, strict=True)
    yield Row(
        f"{name}, memory of one", "KiB", memory[0], memory[1], PEER, higher_is_better=False, target=1.0, at_most=45,
        note="growth of the resident memory; each has asked a small request",
    )  # fmt: skip
    yield Row(f"{name}, CPU", "ms/s", cpu[0], cpu[1], PEER, higher_is_better=False, target=1.0)
    yield Row(f"produce next to {name}, p99", "ms", next_to[0], next_to[1], PEER, higher_is_better=False, target=1.0)
    yield Row("produce without them, p99", "ms", alone[0], alone[1], PEER, higher_is_better=False)


def _cpu_ms_a_second(pid: int, seconds: float) -> float:
    before_s = thread_seconds(pid)
    time.sleep(seconds)
    return 1000 * (thread_seconds(pid) - before_s) / seconds


def _floods(directory: Path, quick: bool) -> Iterator[Row]:
    seconds, rounds = (3.0, 2) if quick else (4.0, 4)
    with secured_pair(directory) as pair:
        for subject in pair.subjects:
            _make_topic(subject)
            _warm_up(subject, 2 * seconds)

        def measure(subject: Subject, per_s: float, abandons: bool) -> tuple[float, float, float]:
            with flood(subject.addresses[TLS], None, seconds, per_s, abandons=abandons) as found:
                took_ms = _latencies_ms(subject.bootstrap, seconds)
            return percentile(took_ms, 0.99), max(took_ms), found[0].per_s

        alone = _in_turn(rounds, [partial(_p99_ms, subject.bootstrap, seconds) for subject in pair.subjects])
        yield Row(
            "produce of one record by PLAINTEXT, p99", "ms", *_figures(alone, float), PEER, higher_is_better=False
        )
        for name, per_s, abandons in (
            (f"{_FLOOD_PER_S} handshakes a second", _FLOOD_PER_S, False),
            ("all handshakes that two clients can do", 0, False),
            ("all handshakes that two clients can begin and leave", 0, True),
        ):
            runs = [partial(measure, subject, per_s, abandons) for subject in pair.subjects]
            results = _in_turn(rounds, runs)
            yield Row(name, "per s", *_figures(results, lambda each: each[2]), PEER)
            yield Row(
                f"produce next to {name}, p99", "ms", *_figures(results, lambda each: each[0]), PEER,
                higher_is_better=False, target=1.0, at_most=20 if per_s else None,
                note="" if per_s else "the faster broker has more handshakes in that time",
            )  # fmt: skip
            yield Row(
                f"produce next to {name}, longest", "ms", *_figures(results, lambda each: each[1]), PEER,
                higher_is_better=False,
            )  # fmt: skip


# The authorizer -----------------------------------------------------------------------------------------------------


def _authorizer(directory: Path, quick: bool) -> Iterator[Row]:
    seconds, rounds = (0.5, 2) if quick else (1.5, 5)
    requests = {
        "produce of one record": produce_request(_TOPIC, [0], batch_of(1)),
        "fetch of one record": fetch_request(_TOPIC, [(0, 0)], 1),
        "metadata of one topic": metadata_request(_TOPIC),
    }
    with secured_pair(directory / "with", AUTHORIZER) as on, secured_pair(directory / "without") as off:
        subjects = [*on.subjects, *off.subjects]
        for subject in subjects:
            _make_topic(subject)
        for subject in on.subjects:
            give_rights(subject.bootstrap, _TOPIC)
        for subject in subjects:
            with Link(subject.bootstrap) as link:
                check_produced(link.call(requests["produce of one record"]))
                if error := fetched_in(link.call(requests["fetch of one record"])).error_code:
                    raise RuntimeError(f"{subject.name} answers a fetch with error {error}")
            for request in requests.values():
                # Many at a time: the JIT compiles after thousands.
                request_cpu_us(subject.pid, subject.bootstrap, request, 20, 2 * seconds)
        for name, request in requests.items():

            def measure(subject: Subject, request: bytes) -> float:
                return request_cpu_us(subject.pid, subject.bootstrap, request, 1, seconds)

            ours_on, peer_on, ours_off, peer_off = _in_turn(
                rounds, [partial(measure, subject, request) for subject in subjects]
            )
            yield Row(
                f"{name} with an authorizer, CPU", "us", ours_on, peer_on, PEER, higher_is_better=False, target=1.0
            )
            yield Row(f"{name} without one, CPU", "us", ours_off, peer_off, PEER, higher_is_better=False)
            yield Row(f"{name}, ours with one", "us", ours_on, ours_off, "ours without", higher_is_better=False)
            yield Row(f"{name}, {PEER} with one", "us", peer_on, peer_off, "it without", higher_is_better=False)


# Tenants ------------------------------------------------------------------------------------------------------------


def _tenants(directory: Path, quick: bool) -> Iterator[Row]:
    pairs, seconds = (2, 2.0) if quick else (_PAIRS, 2.5)
    with secured_pair(directory) as brokers:
        for subject in brokers.subjects:
            _make_topic(subject)
            with Admin(bootstrap_servers=subject.bootstrap) as admin:
                admin.create_topic("limited", 1, 1)
                admin.alter_client_quotas({"client-id": "limited"}, {"producer_byte_rate": QUOTA})
            _p99_ms(subject.bootstrap, seconds)
            next_to, alone = [], []
            for _ in range(pairs):
                alone.append(_p99_ms(subject.bootstrap, seconds))
                with running_in_process(produce_by_librdkafka, subject.bootstrap, "limited", "1"):
                    time.sleep(_LIMITED_AFTER_S)
                    next_to.append(_p99_ms(subject.bootstrap, seconds))
            name = "ours" if subject is brokers.subjects[0] else PEER
            yield Row(
                f"produce of one record, p99, next to a client at its quota: {name}", "ms", next_to, alone,
                "without that client", higher_is_better=False, target=1.1,
                note=f"{pairs} pairs; the limited client is librdkafka, which may send 1 MB/s",
            )  # fmt: skip


_PARTS: Final[dict[str, Callable[[Path, bool], Iterator[Row]]]] = {
    "bytes": _bytes,
    "handshakes": _handshakes,
    "idle": _idle,
    "flood": _floods,
    "authorizer": _authorizer,
    "tenants": _tenants,
}
