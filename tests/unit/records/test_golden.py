"""Batches that real clients sent, as Apache Kafka stored them (tests/golden/records), read by both twins."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from spark_kafkalite.model import Record, TimestampType
from spark_kafkalite.records.admission import AdmissionRules, admit
from spark_kafkalite.records.columns import batch_payload
from spark_kafkalite.records.compression import CODECS
from tests.paths import GOLDEN

GOLDEN_FILES = GOLDEN / "records"
BASE_MS = 1_700_000_000_000
LARGE = b"0123456789abcdef" * 6000
SENT = [
    (b"key-0", b"value-0", [], BASE_MS),
    (None, b"", [("trace", b"\x01\x02"), ("trace", b"")], BASE_MS + 5),
    (b"", None, [("caf\u00e9", b"x")], BASE_MS + 3),
    ("schl\u00fcssel".encode(), LARGE, [], BASE_MS + 70_000),
    (b"key-0", b"value-4", [("last", b"header")], BASE_MS + 70_001),
]
SENT_BY_JAVA = [
    (b"key-0", b"value-0", [("trace", b"1"), ("trace", b"2")]),
    (None, b"value-1", []),
    (b"key-2", None, []),
    (b"key-3", LARGE, []),
    (b"key-0", b"value-4", [("last", b"header")]),
]


def read(kernel: ModuleType, name: str) -> list[Record]:
    data = (GOLDEN_FILES / name).read_bytes()
    builder = kernel.ColumnBuilder(True)
    position = 0
    for header in kernel.scan_headers(data):
        kernel.check_crc(data, position, header.size_bytes)
        builder.add_batch(data, position, header, batch_payload(data, position, header))
        position += header.size_bytes
    assert position == len(data)
    columns = builder.finish()
    records: list[Record] = columns.records("topic", 0, 0, columns.count)
    return records


@pytest.mark.parametrize("path", sorted(GOLDEN_FILES.glob("*-*.log")), ids=lambda path: path.stem)
def test_every_client_and_codec(kernel: ModuleType, path: Path) -> None:
    records = read(kernel, path.name)
    codec = CODECS[path.stem.split("-")[1]]
    assert {header.codec for header in kernel.scan_headers(path.read_bytes())} == {codec}
    assert [record.offset for record in records] == list(range(5))
    if path.stem.startswith("java"):
        assert [(record.key, record.value, record.headers) for record in records] == SENT_BY_JAVA
    else:
        assert [(record.key, record.value, record.headers, record.timestamp) for record in records] == SENT


def test_all_clients_and_codecs_are_there() -> None:
    names = {path.stem for path in GOLDEN_FILES.glob("*-*.log")}
    assert names >= {f"{client}-{codec}" for client in ("confluent", "aiokafka", "java") for codec in CODECS}


@pytest.mark.parametrize("path", sorted(GOLDEN_FILES.glob("*-*.log")), ids=lambda path: path.stem)
def test_what_clients_send_is_admitted_unchanged(path: Path) -> None:
    data = path.read_bytes()
    admission = admit(data, 0, len(data), AdmissionRules(now_ms=2**42), produce_version=9)
    assert admission.header.record_count == 5
    assert not admission.needs_thread


def test_uncompressed_batches_of_other_clients_are_what_ours_builds(kernel: ModuleType) -> None:
    batch = kernel.OpenBatch(2**20)
    for key, value, headers, timestamp in SENT:
        batch.append(timestamp, key, value, headers)
    ours = batch.build()
    kernel.stamp(ours, 0, 0, 0)
    assert ours == (GOLDEN_FILES / "confluent-none.log").read_bytes()


def test_log_append_time_counts_for_every_record(kernel: ModuleType) -> None:
    data = (GOLDEN_FILES / "append_time.log").read_bytes()
    times = [header.max_timestamp for header in kernel.scan_headers(data) for _ in range(header.record_count)]
    records = read(kernel, "append_time.log")
    assert [record.timestamp for record in records] == times
    assert {record.timestamp_type for record in records} == {TimestampType.LOG_APPEND_TIME}
    assert times[0] > BASE_MS + 70_001


def test_transaction_markers_are_no_records(kernel: ModuleType) -> None:
    records = read(kernel, "transactions.log")
    assert [(record.offset, record.value) for record in records] == [(0, b"committed"), (2, b"aborted")]
    headers = kernel.scan_headers((GOLDEN_FILES / "transactions.log").read_bytes())
    assert [header.is_control for header in headers] == [False, True, False, True]
    assert all(header.is_transactional and header.producer_id >= 0 for header in headers)
    assert [header.last_sequence for header in headers] == [0, -1, 1, -1]


def test_idempotent_batches_carry_producer_id_and_sequence(kernel: ModuleType) -> None:
    (header,) = kernel.scan_headers((GOLDEN_FILES / "idempotent.log").read_bytes())
    assert header.producer_id >= 0
    assert (header.producer_epoch, header.base_sequence, header.last_sequence) == (0, 0, 4)


def test_what_apache_kafkas_cleaner_leaves(kernel: ModuleType) -> None:
    """Gaps, batches whose base timestamp is a delete horizon, one without records; ours has nothing to add."""
    data = (GOLDEN_FILES / "cleaned.log").read_bytes()
    kept = [(4 * number + 1, f"gone {codec}", None) for number, codec in enumerate(CODECS)]
    kept += [(4 * number + 2, f"kept {codec}", b"x" * 50) for number, codec in enumerate(CODECS)]
    kept += [(21, "shared", b"new"), (22, "again", b"new"), (23, "large", bytes(3000))]
    assert [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in read(kernel, "cleaned.log")
    ] == [(offset, BASE_MS + offset, key.encode(), value, [("h", b"v")]) for offset, key, value in sorted(kept)]
    headers = kernel.scan_headers(data)
    assert [header.record_count for header in headers] == [2, 2, 2, 2, 2, 0, 2, 1]
    assert [header.next_offset for header in headers] == [4, 8, 12, 16, 20, 21, 23, 24]
    assert {header.delete_horizon_ms for header in headers[:5]} == {1_795_363_129_155}
    assert all(header.delete_horizon_ms == -1 for header in headers[5:])
    keys, position = kernel.KeyMap(24 * 100), 0
    for header in headers:
        payload = batch_payload(data, position, header)
        assert keys.put_records(payload, header) == header.next_offset
        assert keys.filter_records(payload, header).buffer is None
        position += header.size_bytes
    assert keys.count == 13
