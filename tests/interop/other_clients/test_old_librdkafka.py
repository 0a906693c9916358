"""An older librdkafka (Debian's kcat), which compresses only for brokers that advertise Produce from version 0.

Up to 2.11.0 it sends gzip, snappy and lz4 uncompressed otherwise, without a word. Looked at is what lies in the segment
file afterwards.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records import kernel
from spark_kafkalite.records.compression import CODECS
from tests.interop.support.raw_client import RawClient
from tests.interop.support.stored_codecs import stored_codecs
from tests.patience import PATIENCE_S

VALUES = [b"line %05d of what an old client sends" % number for number in range(2000)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


def kcat(*arguments: str, input: bytes = b"") -> bytes:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (make setup-debian)")
    return subprocess.run(["kcat", *arguments], input=input, capture_output=True, check=True, timeout=PATIENCE_S).stdout


@pytest.mark.debian
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "zstd", "lz4"])
def test_codecs_stay_on(broker: BrokerProcess, codec: str, idempotent: bool) -> None:
    version = re.search(rb"librdkafka (\d+)\.(\d+)\.(\d+)", kcat("-V"))
    assert version is not None
    topic = f"{codec}-{idempotent}".lower()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, 1, 1)
    kcat(
        "-P", "-b", broker.bootstrap, "-t", topic, "-p", "0", "-z", codec, "-X", f"enable.idempotence={idempotent}",
        input=b"\n".join(VALUES) + b"\n",
    )  # fmt: skip
    (segment,) = (broker.data_dir / f"{topic}-0").glob("*.log")
    headers = kernel.scan_headers(segment.read_bytes())
    assert sum(header.record_count for header in headers) == len(VALUES)
    assert stored_codecs(segment.parent, CODECS[codec]) == {CODECS[codec]}
    read = kcat(
        "-C", "-b", broker.bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-X", "check.crcs=true"
    )
    assert read.splitlines() == VALUES


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_produce_of_an_old_version_closes_the_connection(broker: BrokerProcess, version: int) -> None:
    header = b"\x00\x00" + version.to_bytes(2, "big") + b"\x00\x00\x00\x07\xff\xff"
    with RawClient(broker.bootstrap) as client:
        client.send_frame(header + b"\xff\xff\x00\x00\x03\xe8\x00\x00\x00\x00")
        assert client.is_closed()
