"""Our clients beside confluent-kafka over TLS: one Apache Kafka 4.3, values of 1,000 bytes, CPU seconds of the client.

Both use the same listener, an EC certificate and TLS 1.3, in turn, on topics of their own with four partitions. Ours
send and read columns; confluent-kafka reads batches of 500. The other rows are what TLS adds to our same work,
and the memory of connections that have fetched a mebibyte each.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.clients import Bench, Timed, in_turn
from bench.measurement import Row, resident_bytes, warm_page_cache
from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.config import admin_config, parse_address
from spark_kafkalite.client.consume.fetch_requests import FetchFrom, FetchLimits, fetch
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.model import IsolationLevel
from tests.lab.secure_kafka import SecuredListener, SecureKafka
from tests.lab.token_endpoint import TokenEndpoint

_VALUE = b"x" * 1000
_GB = 1e9
_CONNECTIONS = 1000
_FETCHED_BYTES = 1 << 20
_TIMEOUT_MS = 60_000
_PEER = "confluent-kafka"


def rows(quick: bool) -> Iterator[Row]:
    """Measure and yield one row after the other."""
    count = 262_144 if quick else 1_048_576
    rounds = 3 if quick else 7
    warm_page_cache(count * len(_VALUE))
    with (
        tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as directory,
        TokenEndpoint() as tokens,
        SecureKafka(Path(directory), tokens, heap_mb=1024, jvm_options=("-XX:+UseG1GC",)) as kafka,
    ):
        ours = kafka.client_settings(SecuredListener.SSL)
        address = ours.pop("bootstrap.servers")
        confluent = {"security.protocol": "SSL", "ssl.ca.location": ours["ssl.truststore.location"]}
        encrypted = Bench(address, ours, confluent, _VALUE)
        plain = Bench(kafka.bootstrap, value=_VALUE)

        mine, peer, mine_plain = in_turn(
            rounds,
            lambda: encrypted.produce_columns(count),
            lambda: encrypted.produce_confluent(count),
            lambda: plain.produce_columns(count),
        )
        yield from _rows("produce", mine, peer, mine_plain)

        topic = encrypted.fill(count)
        mine, peer, mine_plain = in_turn(
            rounds,
            lambda: encrypted.consume_columns(topic, count),
            lambda: encrypted.consume_confluent(topic, count),
            lambda: plain.consume_columns(topic, count),
        )
        yield from _rows("fetch", mine, peer, mine_plain)

        topic = _filled_topic(kafka.bootstrap)
        with_tls, without = [], []
        for _ in range(rounds):
            with_tls.append(_in_new_process({"bootstrap.servers": address, **ours}, topic))
            without.append(_in_new_process({"bootstrap.servers": kafka.bootstrap}, topic))
        yield Row(
            f"memory of a connection, {_CONNECTIONS:,} at once", "KiB", with_tls, without, "ours without TLS",
            higher_is_better=False, note="growth of the client's resident memory; each has fetched 1 MiB once",
        )  # fmt: skip
        encrypted.close()
        plain.close()


def _rows(what: str, mine: list[Timed], peer: list[Timed], plain: list[Timed]) -> Iterator[Row]:
    def cpu(results: list[Timed]) -> list[float]:
        return [_GB / (per_cpu_s * len(_VALUE)) for _, per_cpu_s in results]

    def wall(results: list[Timed]) -> list[float]:
        return [per_s * len(_VALUE) / 1e6 for per_s, _ in results]

    name = f"{what} over TLS, columns"
    yield Row(name, "CPU s/GB", cpu(mine), cpu(peer), _PEER, higher_is_better=False, target=1.5)
    yield Row(
        f"{name}, wall", "MB/s", wall(mine), wall(peer), _PEER, note="client and broker share the machine's cores"
    )
    yield Row(f"{name} ", "CPU s/GB", cpu(mine), cpu(plain), "ours without TLS", higher_is_better=False)


def _filled_topic(bootstrap: str) -> str:
    topic = "memory"
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_topic(topic, 1, 1)
        producer.send_batch(topic, [_VALUE] * 4096).result(30)
    return topic


def _in_new_process(settings: Mapping[str, str], topic: str) -> float:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(memory_of_a_connection, settings, topic).result()


def memory_of_a_connection(settings: Mapping[str, str], topic: str) -> float:
    """Open connections, fetch once over each, and return by how many KiB each has made this process larger."""
    config = admin_config(settings, {})
    host, port = parse_address(settings["bootstrap.servers"])
    limits = FetchLimits(1, _FETCHED_BYTES, 1000, IsolationLevel.READ_UNCOMMITTED)
    position = FetchFrom(TopicPartition(topic, 0), 0, -1, _FETCHED_BYTES)

    def open_one() -> BrokerConnection:
        deadline = Deadline.after_ms(_TIMEOUT_MS)
        connection = BrokerConnection.open(host, port, config, deadline)
        fetch(connection, [position], limits, deadline, config.client_id)
        return connection

    # The first ones load what there is to be loaded.
    held = [open_one() for _ in range(10)]
    before = resident_bytes(os.getpid())
    held += [open_one() for _ in range(_CONNECTIONS)]
    grown = resident_bytes(os.getpid()) - before
    for connection in held:
        connection.close()
    return grown / 1024 / _CONNECTIONS
