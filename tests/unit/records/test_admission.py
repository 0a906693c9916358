"""What a broker lets in: every rule with a batch that breaks just it, and the text that the client sees."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from crc32c import crc32c

from spark_kafkalite.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from spark_kafkalite.model import TimestampType
from spark_kafkalite.records import layout
from spark_kafkalite.records.admission import INLINE_BATCH_BYTES, AdmissionRules, admit, needs_thread, walk
from spark_kafkalite.records.assemble import SectionFacts, assemble
from spark_kafkalite.records.kernel import OpenBatch, check_crc, read_header

NOW = 1_700_000_000_000


def rules(**changes: Any) -> AdmissionRules:
    return AdmissionRules(now_ms=NOW, **changes)


def batch(
    count: int = 3, codec: int = 0, value: bytes = b"value", key: bytes | None = b"key", at: int = NOW, **build: Any
) -> bytearray:
    open_batch = OpenBatch(2**30)
    for i in range(count):
        open_batch.append(at + i, key, value)
    return open_batch.build(codec, **build)


def with_field(data: bytearray, position: int, form: str, value: int) -> bytearray:
    """Change a header field and make the CRC fit again."""
    struct.pack_into(">" + form, data, position, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


def refused(
    data: bytes, kind: type[KafkaError], text: str, using: AdmissionRules | None = None, version: int = 9
) -> Any:
    with pytest.raises(kind, match=text) as caught:
        admit(data, 0, len(data), using or rules(), produce_version=version)
    return caught.value


@pytest.mark.parametrize("codec", range(5))
def test_good_batch(codec: int) -> None:
    data = batch(codec=codec)
    before = bytes(data)
    admission = admit(memoryview(before), 0, len(before), rules(), produce_version=9)
    assert admission.header == read_header(data)
    assert not admission.needs_thread


def test_batch_inside_a_larger_buffer() -> None:
    data = b"before" + batch() + b"after"
    assert admit(data, 6, len(data) - 5, rules(), produce_version=9).header.record_count == 3


def test_nothing() -> None:
    refused(b"", InvalidRecord, "empty")


@pytest.mark.parametrize("length", [1, 16, 17, 60])
def test_cut_header(length: int) -> None:
    refused(batch()[:length], CorruptMessage, "header takes 61 bytes")


def test_cut_batch() -> None:
    refused(batch()[:-1], CorruptMessage, "the buffer holds")


def test_two_batches() -> None:
    refused(batch() + batch(), InvalidRecord, "exactly one batch")


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_magic(magic: int) -> None:
    refused(with_field(batch(), 16, "b", magic), InvalidRecord, f"magic {magic}")
    refused(with_field(batch(), 16, "b", magic)[:30], InvalidRecord, f"magic {magic}")


def test_size_limit_counts_the_whole_batch() -> None:
    data = batch()
    admit(data, 0, len(data), rules(max_message_bytes=len(data)), produce_version=9)
    refused(data, MessageTooLarge, f"{len(data)} bytes", rules(max_message_bytes=len(data) - 1))


def test_largest_batch_of_the_default_limit() -> None:
    limit = AdmissionRules().max_message_bytes
    overhead = len(batch(1, value=bytes(limit - 100))) - (limit - 100)
    exact = batch(1, value=bytes(limit - overhead))
    assert len(exact) == limit == 1_048_588
    assert admit(exact, 0, limit, rules(), produce_version=3).header.size_bytes == limit
    refused(batch(1, value=bytes(limit - overhead + 1)), MessageTooLarge, "max.message.bytes")


def test_zstd_needs_version_7() -> None:
    data = batch(codec=4)
    refused(data, UnsupportedCompressionType, "version 6", version=6)
    assert admit(data, 0, len(data), rules(), produce_version=7).header.codec == 4


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    refused(with_field(batch(), 21, "h", codec), UnsupportedCompressionType, f"codec {codec}")


def test_wrong_crc() -> None:
    data = batch()
    data[-3] ^= 1
    refused(data, CorruptMessage, "CRC")


def test_record_count() -> None:
    refused(with_field(batch(), 57, "i", 0), InvalidRecord, "record count 0")
    refused(with_field(batch(), 57, "i", -1), InvalidRecord, "record count -1")
    refused(with_field(batch(), 57, "i", 2), InvalidRecord, "last offset delta 2")
    refused(with_field(with_field(batch(), 57, "i", 2**31 - 1), 23, "i", 2**31 - 2), InvalidRecord, "record count")


def test_last_offset_delta() -> None:
    refused(with_field(batch(), 23, "i", 3), InvalidRecord, "last offset delta 3 is not one less")


def test_control_batch() -> None:
    refused(with_field(batch(), 21, "h", 0x20), InvalidRecord, "control")


def test_log_append_time_from_a_client() -> None:
    refused(with_field(batch(), 21, "h", 0x08), InvalidTimestamp, "log append time")


def test_delete_horizon_from_a_client() -> None:
    refused(with_field(batch(), 21, "h", 0x40), InvalidRecord, "delete horizon")


def test_producer_fields() -> None:
    refused(batch(producer_id=5, producer_epoch=0), InvalidRecord, "base sequence -1")
    refused(batch(producer_id=5, base_sequence=0), InvalidRecord, "epoch -1")
    refused(batch(producer_id=-2), InvalidRecord, "producer id -2")
    good = batch(producer_id=5, producer_epoch=0, base_sequence=0)
    assert admit(good, 0, len(good), rules(), produce_version=9).header.producer_id == 5


def test_transactional_batch() -> None:
    for data in (
        batch(transactional=True),
        batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
    ):
        refused(data, TransactionalIdAuthorizationFailed, "transactions are not served")


def test_base_offset_from_a_client() -> None:
    for offset in (1, -1, 2**40):
        refused(
            with_field(batch(), 0, "q", offset), InvalidRecord, f"base offset {offset}: a produced batch begins at 0"
        )


def test_base_sequence_0_without_a_producer_id_is_what_aiokafka_sends() -> None:
    data = batch(base_sequence=0)
    assert admit(data, 0, len(data), rules(), produce_version=9).header.base_sequence == 0


def test_timestamps_out_of_range() -> None:
    late = refused(batch(at=NOW + 3_600_000), InvalidTimestamp, "record 1: timestamp .* is after")
    assert late.record_index == 1
    early = refused(batch(at=NOW - 11), InvalidTimestamp, "record 0", rules(timestamp_before_max_ms=10))
    assert early.record_index == 0
    for none in (batch(1, at=-1), batch(at=NOW - 2**40)):
        admit(none, 0, len(none), rules(), produce_version=9)
    append_time = rules(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_before_max_ms=0)
    data = batch(at=5)
    admit(data, 0, len(data), append_time, produce_version=9)


def test_null_key_on_a_compacted_topic() -> None:
    error = refused(batch(key=None), InvalidRecord, "record 0: it has no key", rules(keys_required=True))
    assert error.record_index == 0
    data = batch(key=b"")
    admit(data, 0, len(data), rules(keys_required=True), produce_version=9)


@pytest.mark.parametrize("codec", range(5))
def test_records_are_walked(codec: int) -> None:
    # The second record's offset delta is made 0, as the first one's is.
    plain = batch(2, value=b"v")
    second = bytes(plain[61:]).index(b"\x02\x06key", 5)
    plain[61 + second] = 0
    data = assemble(plain, SectionFacts(2, NOW, NOW + 1), codec)
    error = refused(data, InvalidRecord, "record 1: offset delta 0 is not above the one before it, 0")
    assert error.record_index == 1


def test_large_compressed_batches_go_to_a_thread() -> None:
    value = random.Random(3).randbytes(70_000)
    data = batch(1, codec=4, value=value)
    admission = admit(data, 0, len(data), rules(), produce_version=9)
    assert admission.needs_thread and needs_thread(admission.header)
    assert walk(data, 0, admission.header, rules()) == admission.header
    assert not needs_thread(read_header(batch(1, value=value)))


def test_large_batches_go_to_a_thread_with_all_that_is_to_be_checked() -> None:
    data = batch(1, value=bytes(INLINE_BATCH_BYTES))
    admission = admit(data, 0, len(data), rules(max_message_bytes=1 << 23), produce_version=9)
    assert admission.needs_thread
    assert walk(data, 0, admission.header, rules()) == admission.header
    data[-1] ^= 1
    assert admit(data, 0, len(data), rules(max_message_bytes=1 << 23), produce_version=9) == admission
    with pytest.raises(CorruptMessage, match="CRC"):
        walk(data, 0, admission.header, rules())
    refused(data, MessageTooLarge, "max.message.bytes")


def test_much_output_goes_to_a_thread() -> None:
    data = batch(1, codec=1, value=bytes(300_000))
    admission = admit(data, 0, len(data), rules(), produce_version=9)
    assert admission.needs_thread and not needs_thread(admission.header)
    with pytest.raises(InvalidRecord, match="record 0: it has no key"):
        without_key = batch(1, codec=1, value=bytes(300_000), key=None)
        walk(without_key, 0, read_header(without_key), rules(keys_required=True))


def test_output_limit() -> None:
    data = batch(1, codec=1, value=bytes(300_000))
    with pytest.raises(InvalidRecord, match=r"max\.decompressed\.batch\.bytes"):
        walk(data, 0, read_header(data), rules(max_decompressed_bytes=300_000))
    refused(batch(1, codec=1, value=bytes(3000)), InvalidRecord, "3000 bytes", rules(max_decompressed_bytes=3000))


def test_wrong_max_timestamp_is_set_right_in_place() -> None:
    data = with_field(batch(), layout.MAX_TIMESTAMP_POSITION, "q", NOW + 999_999)
    admission = admit(data, 0, len(data), rules(), produce_version=9)
    assert admission.header.max_timestamp == NOW + 2
    assert read_header(data) == admission.header
    check_crc(data, 0, len(data))
    wrong = bytes(with_field(batch(), layout.MAX_TIMESTAMP_POSITION, "q", 1))
    refused(wrong, CorruptMessage, "max timestamp 1 ")


def test_damaged_batches_give_errors_of_the_protocol_only() -> None:
    source = random.Random(7)
    outcomes: set[str | int] = set()
    for _ in range(3000):
        data = batch(codec=source.choice([0, 0, 1, 2, 3, 4]))
        for _ in range(source.randint(1, 3)):
            data[source.randrange(len(data))] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
        if source.random() < 0.8:
            struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        try:
            admit(data, 0, len(data), rules(), produce_version=9)
            outcomes.add("admitted")
        except KafkaError as error:
            outcomes.add(error.code)
    assert outcomes <= {"admitted", 2, 32, 53, 76, 87}
    assert {2, 87} < outcomes
