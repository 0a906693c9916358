"""A cluster that answers, and advertises an address that cannot be reached: a first mistake with containers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite.errors import AdvertisedUnreachable
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.spark import cluster_errors
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options, writer_options
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.sink import sink_check


@pytest.fixture
def wrong_address() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def read(bootstrap: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t", "fetchOffset.retryIntervalMs": "1"}
    offsets = ClusterOffsets(reader_options(options))
    offsets.latest(offsets.assigned().partitions)


def write(bootstrap: str) -> None:
    sink_check.check_sink(writer_options({"kafka.bootstrap.servers": bootstrap, "topic": "t"}), patient=False)


def write_by_column(bootstrap: str) -> None:
    sink_check.check_sink(writer_options({"kafka.bootstrap.servers": bootstrap}), patient=False)


def write_batch_of_stream(bootstrap: str) -> None:
    sink_check.check_sink(writer_options({"kafka.bootstrap.servers": bootstrap, "topic": "t"}), patient=True)


def test_reads_and_writes_name_the_address_and_the_setting(
    tmp_path: Path, wrong_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_errors, "ADVERTISED_TIMEOUT_MS", 0)
    [port] = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    overrides = {
        "listeners": f"PLAINTEXT://{bootstrap}",
        "advertised.listeners": f"PLAINTEXT://{wrong_address}",
    }
    ways: list[Callable[[str], None]] = [write, write_by_column, write_batch_of_stream, read]
    with BrokerProcess(tmp_path, overrides=overrides):
        for way in ways:
            with pytest.raises(SparkConditionError) as caught:
                way(bootstrap)
            line = str(caught.value).splitlines()[-1]
            assert line.startswith(
                f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={bootstrap}: broker 1 at {wrong_address}, "
                f"the address that the cluster advertises for it, cannot be reached: {wrong_address}: "
            ), way
            assert "advertised.listeners" in line and "start the broker" not in line


def test_an_address_that_was_reached_before_is_waited_for() -> None:
    first, later = AdvertisedUnreachable("", is_first=True), AdvertisedUnreachable("")
    assert cluster_errors.patience_ms(first, 180_000, False) == cluster_errors.ADVERTISED_TIMEOUT_MS < 60_000
    assert cluster_errors.patience_ms(first, 1_000, False) == 1_000
    assert cluster_errors.patience_ms(later, 180_000, False) == 180_000
    # Who says how long is obeyed.
    assert cluster_errors.patience_ms(first, 180_000, True) == 180_000
