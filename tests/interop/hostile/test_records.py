"""Batches that lie, one lie each: the field's own error, the same connection goes on, and so do other clients.

The rules themselves are tested in tests/unit/records/test_admission.py. Here it is what a client gets from a running
broker, in every codec and in old and new versions of Produce, and what the broker pays for it in memory.
``bench/latency.py`` measures how long other clients wait for it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import pytest
from crc32c import crc32c

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records import layout
from spark_kafkalite.records.assemble import SectionFacts, assemble
from spark_kafkalite.records.compression import CODECS, compress
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.interop.support.good_client import GoodClient, forget_peak, peak_bytes
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S

CORRUPT, TOO_LARGE, BAD_TIMESTAMP, NO_TRANSACTIONS, BAD_CODEC, INVALID = 2, 10, 32, 53, 76, 87
MEBIBYTE = 1024 * 1024
CAP_BYTES = 4 * MEBIBYTE
# Versions without texts, with texts, and flexible.
VERSIONS = (3, 8, 9)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {"max.decompressed.batch.bytes": CAP_BYTES}
    with BrokerProcess(tmp_path_factory.mktemp("hostile") / "data", overrides=overrides) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topic("good", 1, 1)
            admin.create_topic("bad", 1, 1, {"max.message.bytes": str(16 * MEBIBYTE)})
            admin.create_topic("compacted", 1, 1, {"cleanup.policy": "compact"})
            admin.create_topic(
                "dated", 1, 1, {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}
            )
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap, PATIENCE_S) as connected:
        yield connected


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def varint(number: int) -> bytes:
    """Zig-zag, as records have them."""
    number = (number << 1) ^ (number >> 63)
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(body: bytes, length: int | None = None) -> bytes:
    return varint(len(body) if length is None else length) + body


def body(
    *, offset_delta: int = 0, key: bytes = b"\x01", value: bytes = varint(1) + b"v", headers: bytes = b"\x00"
) -> bytes:
    """One record's body: attributes, timestamp delta 0, offset delta, key (null), value, header count."""
    return b"\x00\x00" + varint(offset_delta) + key + value + headers


def batch_of(section: bytes, codec: str = "none", count: int = 1, base_timestamp: int | None = None) -> bytearray:
    """A batch whose header is right about everything but, perhaps, its records."""
    at = now_ms() if base_timestamp is None else base_timestamp
    buffer = bytearray(layout.HEADER_BYTES) + section
    return assemble(buffer, SectionFacts(count, at, at), CODECS[codec])


def batch_with_section(section: bytes, codec: str) -> bytearray:
    """A batch whose records section is ``section`` as it stands: already compressed, or not what it says."""
    batch = batch_of(section)
    return with_field(batch, 21, "h", CODECS[codec])


def with_field(batch: bytearray, position: int, form: str, value: int, *, fix_crc: bool = True) -> bytearray:
    struct.pack_into(">" + form, batch, position, value)
    if fix_crc:
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def good(count: int = 2, codec: str = "none") -> bytearray:
    return make_batch(count, timestamp_ms=now_ms(), key=b"k", codec=codec)


def assert_refused(client: RawClient, make: Callable[[], bytes], code: int, topic: str = "bad") -> str:
    """Check the error in every version, that nothing was appended, and that the connection goes on."""
    text = ""
    for version in VERSIONS:
        before = client.fetch(topic, 0, max_wait_ms=0, partition_max_bytes=1).high_watermark
        outcome = client.produce(topic, make(), version=version)
        assert (outcome.error_code, outcome.base_offset) == (code, -1), (version, outcome)
        if version >= 8:
            text = outcome.error_message or ""
            assert text, "an error without a text"
        assert client.fetch(topic, 0, max_wait_ms=0, partition_max_bytes=1).high_watermark == before
    assert client.produce(topic, good()).error_code == 0
    return text


HEADER_LIES: list[tuple[str, int, int, str, int, bool]] = [
    # what, error, position, format, value, whether the CRC is made to fit
    ("wrong CRC", CORRUPT, 17, "I", 1, False),
    ("magic 0", INVALID, 16, "b", 0, True),
    ("magic 1", INVALID, 16, "b", 1, True),
    ("magic 3", INVALID, 16, "b", 3, True),
    ("no records", INVALID, 57, "i", 0, True),
    ("fewer than no records", INVALID, 57, "i", -1, True),
    ("more records than there are", INVALID, 57, "i", 3, True),
    ("fewer records than there are", INVALID, 57, "i", 1, True),
    ("two thousand million records", INVALID, 57, "i", 2**31 - 1, True),
    ("a last offset delta of its own", INVALID, 23, "i", 7, True),
    ("a negative last offset delta", INVALID, 23, "i", -5, True),
    ("an unknown codec", BAD_CODEC, 21, "h", 7, True),
    ("a control batch", INVALID, 21, "h", 0x20, True),
    ("log append time", BAD_TIMESTAMP, 21, "h", 0x08, True),
    ("an offset of its own", INVALID, 0, "q", 5, True),
    ("a transaction of nobody", NO_TRANSACTIONS, 21, "h", 0x10, True),
    ("a delete horizon", INVALID, 21, "h", 0x40, True),
    ("a producer without a sequence", INVALID, 43, "q", 7, True),
    ("a producer below all", INVALID, 43, "q", -2, True),
    ("a length beyond the data", CORRUPT, 8, "i", 10_000, True),
    ("a length before the data's end", INVALID, 8, "i", 55, True),
    ("no length", CORRUPT, 8, "i", 0, True),
    ("a negative length", CORRUPT, 8, "i", -1, True),
    ("the largest length", CORRUPT, 8, "i", 2**31 - 1, True),
]


@pytest.mark.parametrize(("what", "code", "position", "form", "value", "fix_crc"), HEADER_LIES)
def test_a_header_that_lies(
    client: RawClient, what: str, code: int, position: int, form: str, value: int, fix_crc: bool
) -> None:
    assert_refused(client, lambda: with_field(good(), position, form, value, fix_crc=fix_crc), code)


RECORD_LIES: list[tuple[str, bytes, int]] = [
    # what, the records section, the record count of the header
    ("no record at all", b"", 1),
    ("a record longer than the section", record(body(), 5_000), 1),
    ("a record of the largest length", record(body(), 2**31 - 1), 1),
    ("a length that passes 32 bits", record(body(), 2**40), 1),
    ("a negative length", record(body(), -1), 1),
    ("a length that never ends", b"\xff" * 20, 1),
    ("a record shorter than its fields", record(body(), 3), 1),
    ("bytes behind the last record", record(body()) + b"trailing", 1),
    ("one record more than announced", record(body()) + record(body(offset_delta=1)), 1),
    ("one record less than announced", record(body()), 2),
    ("a value longer than its record", record(body(value=varint(1000) + b"v")), 1),
    ("a value of the largest length", record(body(value=varint(2**31 - 1) + b"v")), 1),
    ("a key longer than its record", record(body(key=varint(1000) + b"k")), 1),
    ("a key of length -2", record(body(key=varint(-2))), 1),
    ("a thousand million headers", record(body(headers=varint(10**9))), 1),
    ("a negative number of headers", record(body(headers=varint(-1))), 1),
    ("a header key of no length", record(body(headers=varint(1) + varint(-1) + varint(0))), 1),
    ("a header value longer than its record", record(body(headers=varint(1) + varint(1) + b"h" + varint(99))), 1),
    ("offsets that go back", record(body()) + record(body(offset_delta=0)), 2),
    ("an offset below the batch", record(body(offset_delta=-1)), 1),
    ("a batch inside the batch", bytes(good()), 1),
]


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_lie(client: RawClient, codec: str) -> None:
    for what, section, count in RECORD_LIES:
        if codec != "none" and not section:
            continue
        outcome = client.produce("bad", batch_of(section, codec, count))
        assert outcome.error_code in (CORRUPT, INVALID), (what, outcome)
        assert outcome.error_message, what
        # Kafka answers a wrong count and what is left over with INVALID_RECORD.
        if "announced" in what or "behind" in what:
            assert outcome.error_code == INVALID, (what, outcome)
    assert client.produce("bad", good(codec=codec)).error_code == 0


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_compressed_sections_that_are_none(client: RawClient, codec: str) -> None:
    whole = compress(CODECS[codec], record(body(value=varint(5000) + bytes(5000))))
    broken = [b"", b"\x00", b"not compressed at all", bytes(whole[: len(whole) // 2]), bytes(whole[1:]), b"\xff" * 500]
    for section in broken:
        outcome = client.produce("bad", batch_with_section(section, codec))
        assert outcome.error_code in (CORRUPT, INVALID), (section[:20], outcome)
    assert client.produce("bad", batch_with_section(whole, codec)).error_code == 0


def bombs() -> dict[str, tuple[str, bytes]]:
    """Codec and compressed zeros, 64 MiB of them where nothing else is said, by how they hide it."""
    zeros = bytes(64 * MEBIBYTE)
    gzip = bytes(cramjam.gzip.compress(zeros[: 16 * MEBIBYTE]))
    frames = cramjam.zstd.Compressor()
    frames.compress(zeros)
    snappy = bytes(cramjam.snappy.compress_raw(bytes(65536)))
    xerial = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    lz4 = bytes(compress(CODECS["lz4"], zeros))
    return {
        "gzip that announces 10 bytes": ("gzip", gzip[:-4] + struct.pack("<I", 10)),
        "gzip that announces all there can be": ("gzip", gzip[:-4] + b"\xff\xff\xff\xff"),
        "gzip in many members": ("gzip", bytes(cramjam.gzip.compress(bytes(65536))) * 200),
        "zstd that announces nothing": ("zstd", bytes(frames.finish())),
        "zstd that announces it": ("zstd", bytes(cramjam.zstd.compress(zeros))),
        "zstd in many frames": ("zstd", bytes(cramjam.zstd.compress(bytes(65536))) * 200),
        "snappy in many blocks": ("snappy", xerial + (struct.pack(">i", len(snappy)) + snappy) * 200),
        "snappy in one block": ("snappy", bytes(cramjam.snappy.compress_raw(zeros))),
        "lz4 that announces nothing": ("lz4", lz4),
    }


def test_bombs_cost_no_more_than_the_cap(broker: BrokerProcess, client: RawClient) -> None:
    """Each is refused for what it unpacks to; another client goes on, and it takes the cap's memory, not its own."""
    made = bombs()
    with GoodClient(broker) as good:
        resident = broker.resident_bytes()
        forget_peak(broker)
        for _ in range(2):
            for what, (codec, section) in made.items():
                refused_for_its_size(client, what, batch_with_section(section, codec))
            good.goes_on()
        grown = peak_bytes(broker) - resident
        largest = max(len(section) for _, section in made.values())
        print(f"{grown / MEBIBYTE:.1f} MiB at most; the largest batch has {largest / MEBIBYTE:.1f}")
        assert grown < 2 * largest + CAP_BYTES + 16 * MEBIBYTE
    # What announces more than it holds is damaged, and costs what it holds.
    lies = [
        ("snappy", varint_plain(2**31 - 1) + b"\x00a"),
        ("snappy", b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 2**31 - 1) + b"abc"),
        ("lz4", b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 2**62) + b"\x00" + bytes(20)),
        ("zstd", b"\x28\xb5\x2f\xfd\xc0\x58" + struct.pack("<Q", 2**62) + bytes(20)),
        # The widest window.
        ("zstd", b"\x28\xb5\x2f\xfd\x00\xff" + bytes(50)),
    ]
    forget_peak(broker)
    before = peak_bytes(broker)
    for codec, section in lies:
        outcome = client.produce("bad", batch_with_section(section, codec))
        assert outcome.error_code in (CORRUPT, INVALID), (codec, section, outcome)
    assert peak_bytes(broker) - before < 8 * MEBIBYTE


def refused_for_its_size(client: RawClient, what: str, batch: bytes) -> None:
    """Send what unpacks to more than it may, and check that it is refused for that."""
    outcome = client.produce("bad", batch, timeout_ms=int(PATIENCE_S * 1000))
    assert (outcome.error_code, outcome.base_offset) == (INVALID, -1), (what, outcome)
    assert "max.decompressed.batch.bytes" in (outcome.error_message or ""), what


def varint_plain(number: int) -> bytes:
    """Without zig-zag, as snappy writes its length."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


@pytest.mark.parametrize("codec", CODECS)
def test_timestamps_out_of_range_name_the_record(client: RawClient, codec: str) -> None:
    now = now_ms()
    for timestamps, index in (
        ([now, now + 3_600_000], 1),
        ([now - 3_600_000, now], 0),
        ([0, now], 0),
    ):
        batch = make_batch(2, timestamps_ms=timestamps, codec=codec)
        outcome = client.produce("dated", batch)
        assert (outcome.error_code, [number for number, _ in outcome.record_errors]) == (BAD_TIMESTAMP, [index])
        assert "message.timestamp" in (outcome.error_message or ""), outcome
        assert client.produce("dated", batch, version=7).error_code == BAD_TIMESTAMP
    assert client.produce("dated", good(codec=codec)).error_code == 0


@pytest.mark.parametrize("base", [2**63 - 1, -(2**63), 2**63 - 2, -1, -2])
def test_timestamps_at_the_ends_of_what_fits(client: RawClient, base: int) -> None:
    """Beyond now and the allowed hour there is an error; before it, as in Kafka, whatever fits, and -1 is none."""
    for deltas in ((0, 0), (0, 1), (0, 2**40), (-1, 0)):
        section = b"".join(
            record(b"\x00" + varint(delta) + varint(number) + b"\x01" + varint(1) + b"v" + b"\x00")
            for number, delta in enumerate(deltas)
        )
        outcome = client.produce("bad", with_field(batch_of(section, count=2), 27, "q", base))
        if base > 0:
            assert outcome.error_code in (BAD_TIMESTAMP, CORRUPT, INVALID), (deltas, outcome)
        if outcome.error_code == 0:
            fetched = client.fetch("bad", outcome.base_offset)
            assert [value for _, value in values_of(fetched.records)][:2] == [b"v", b"v"]
    assert client.produce("bad", good()).error_code == 0


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_without_a_key_on_a_compacted_topic_is_named(client: RawClient, codec: str) -> None:
    keyed = record(body(key=varint(1) + b"k"))
    section = keyed + record(body(offset_delta=1, key=b"\x01"))
    outcome = client.produce("compacted", batch_of(section, codec, 2))
    assert (outcome.error_code, [number for number, _ in outcome.record_errors]) == (INVALID, [1])
    assert "key" in (outcome.error_message or "")
    assert client.produce("compacted", batch_of(section, codec, 2), version=7).error_code == INVALID
    assert client.produce("compacted", batch_of(keyed, codec, 1)).error_code == 0


def test_one_bad_partition_among_good_ones_in_a_pipeline(broker: BrokerProcess, client: RawClient) -> None:
    """A hundred requests in flight, every third one bad: each has its own outcome, in order; the good ones are in."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("mixed", 1, 1)
    bad = [
        lambda: with_field(good(), 17, "I", 1, fix_crc=False),
        lambda: batch_of(record(body()), "zstd", 2),
        lambda: with_field(good(), 21, "h", 0x20),
    ]
    for number in range(100):
        client.send_produce([("mixed", [(0, good(1) if number % 3 else bad[number // 3 % 3]())])])
    codes = [client.receive_produce().topics[0][1][0].error_code for _ in range(100)]
    assert all(code == 0 for number, code in enumerate(codes) if number % 3)
    assert all(code in (CORRUPT, INVALID) for number, code in enumerate(codes) if not number % 3)
    assert client.fetch("mixed", 0).high_watermark == sum(code == 0 for code in codes)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_a_time_is_found_in_a_batch_that_unpacks_to_much(broker: BrokerProcess, client: RawClient, codec: str) -> None:
    """It is unpacked by a thread: twenty look-ups in a pipeline keep their order."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(f"times-{codec}", 1, 1, {"max.message.bytes": str(CAP_BYTES)})
    first = now_ms() - 100
    batch = make_batch([bytes(CAP_BYTES // 4)] * 3, timestamps_ms=[first, first + 10, first + 20], codec=codec)
    assert client.produce(f"times-{codec}", batch).error_code == 0
    asked = [ListOffsetsPartition(partition_index=0, timestamp=first + number) for number in range(20)]
    for one in asked:
        topic = ListOffsetsTopic(name=f"times-{codec}", partitions=[one])
        client.send(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)
    found = [client.receive(2, 7).topics[0].partitions[0].offset for _ in asked]
    assert found == [0] + [1] * 10 + [2] * 9


def test_the_broker_has_logged_no_bug(broker: BrokerProcess, client: RawClient, tmp_path: Path) -> None:
    client.produce("bad", with_field(good(), 57, "i", -(2**31)))
    log = broker.stderr_path.read_text()
    assert "Traceback" not in log and "bug" not in log, log[-2000:]
