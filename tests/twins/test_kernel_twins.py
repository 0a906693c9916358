"""The native kernel and the Python one: same bytes in, same values or same errors out.

Hypothesis prints the falsifying example and, in CI, the seed to repeat it with (``--hypothesis-seed``).
"""

from __future__ import annotations

import inspect
import struct
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_kafkalite.records import batch_py
from spark_kafkalite.records.buffers import HeaderColumns
from spark_kafkalite.records.layout import BatchHeader
from tests.twins.cases import (
    CELLS,
    HEADERS,
    INT32,
    INT64,
    RECORDS,
    THOROUGH,
    TIMESTAMPS,
    built,
    mutated,
    outcome,
    plain,
    sections,
)

pytestmark = pytest.mark.filterwarnings("error")


@THOROUGH
@given(data=mutated() | st.binary(max_size=130), position=st.integers(-1, 3), cut=st.integers(0, 4))
def test_headers(native: ModuleType, data: bytes, position: int, cut: int) -> None:
    data = data + data[: max(0, len(data) - cut)]
    for kernel_call in (
        lambda kernel: kernel.read_header(data, position),
        lambda kernel: kernel.scan_headers(data, position),
        lambda kernel: kernel.scan_headers(memoryview(data), 0, len(data) - cut),
        lambda kernel: kernel.scan_headers(data, 0, cut - 1),
        lambda kernel: kernel.check_crc(data, position, len(data) // 2),
        lambda kernel: kernel.check_crc(data, position, cut),
    ):
        assert outcome(lambda call=kernel_call: call(native)) == outcome(lambda call=kernel_call: call(batch_py))


@THOROUGH
@given(data=mutated(), position=st.integers(-1, 1), base=INT64, epoch=INT32, time=st.none() | INT64)
def test_stamp(native: ModuleType, data: bytes, position: int, base: int, epoch: int, time: int | None) -> None:
    ours, theirs = bytearray(data), bytearray(data)
    assert outcome(lambda: native.stamp(ours, position, base, epoch, time)) == outcome(
        lambda: batch_py.stamp(theirs, position, base, epoch, time)
    )
    assert ours == theirs
    assert outcome(lambda: native.stamp(data, 0, 1, 1)) == outcome(lambda: batch_py.stamp(data, 0, 1, 1))


@THOROUGH
@given(
    case=sections(),
    keys_required=st.booleans(),
    limits=st.none() | st.tuples(TIMESTAMPS, TIMESTAMPS),
)
@example(case=(b"", BatchHeader(0, 49, 0, 2, 0, 0, -1, 0, 0, -1, -1, -1, 0)), keys_required=False, limits=None)
def test_walk(native: ModuleType, case: tuple[bytes, BatchHeader], keys_required: bool, limits: Any) -> None:
    section, header = case
    more = {} if limits is None else {"earliest_timestamp": limits[0], "latest_timestamp": limits[1]}

    def walk(kernel: ModuleType) -> Any:
        return kernel.walk_records(section, header, keys_required=keys_required, **more)

    assert outcome(lambda: walk(native)) == outcome(lambda: walk(batch_py))


@THOROUGH
@given(
    cases=st.lists(
        st.tuples(sections(), st.booleans(), INT64 | st.integers(0, 10), INT64 | st.integers(0, 10)), max_size=4
    ),
    with_headers=st.booleans(),
    max_rows=st.integers(0, 9) | st.just(2**31 - 2),
    max_bytes=st.integers(0, 400) | st.just(2**31 - 1),
)
def test_decode(native: ModuleType, cases: list[Any], with_headers: bool, max_rows: int, max_bytes: int) -> None:
    def decode(kernel: ModuleType) -> list[Any]:
        seen: list[Any] = []
        builder = kernel.ColumnBuilder(with_headers, max_rows, max_bytes)
        for (section, header), as_payload, first, until in cases:
            buffer = b"" if as_payload else bytes(61) + section
            payload = section if as_payload else None
            seen.append(outcome(lambda: builder.add_batch(buffer, 0, header, payload, first, until)))  # noqa: B023
            seen.append((builder.count, builder.size_bytes, builder.next_offset, builder.is_full))
        seen.append(plain(builder.finish()))
        seen.append((builder.count, builder.size_bytes, builder.next_offset, builder.is_full))
        return seen

    assert outcome(lambda: decode(native)) == outcome(lambda: decode(batch_py))


@THOROUGH
@given(
    batches=st.lists(st.lists(RECORDS, min_size=1, max_size=12), min_size=1, max_size=4),
    first=st.integers(0, 20),
    until=st.integers(0, 50),
    max_rows=st.integers(1, 30),
)
def test_good_batches_decode_to_equal_columns_and_rows(
    native: ModuleType, batches: list[Any], first: int, until: int, max_rows: int
) -> None:
    def decode(kernel: ModuleType) -> Any:
        builder = kernel.ColumnBuilder(True, max_rows)
        base = 0
        for records in batches:
            data = built(records, base)
            builder.add_batch(data, 0, kernel.read_header(data), None, first, until)
            base += len(records) + 1
        columns = builder.finish()
        rows = [
            (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)
            for record in columns.records("t", 0, 0, columns.count)
        ]
        return plain(columns), rows

    assert decode(native) == decode(batch_py)


ODD = st.sampled_from(
    [
        lambda: "text",
        lambda: 5,
        lambda: 1.5,
        lambda: memoryview(b"abcdef")[::2],
        lambda: memoryview(array("i", [1, 2])),
        lambda: bytearray(b"xy"),
        dict,
    ]
).map(lambda make: make())


@THOROUGH
@given(
    records=st.lists(
        st.tuples(
            TIMESTAMPS | INT64 | st.sampled_from([2**63 - 1, 2**63, 1.5, "1", True]),
            CELLS | ODD,
            CELLS | ODD,
            HEADERS
            | ODD
            | st.lists(st.tuples(st.text(max_size=3) | ODD | st.just("\ud800"), CELLS | ODD), max_size=2)
            | st.just([("a",)])
            | st.just(["ab"]),
        ),
        max_size=6,
    ),
    max_bytes=st.integers(-5, 700) | st.just(2**70),
    codec=st.sampled_from([0, 0, 1, 2, 3, 4]),
)
def test_open_batch(native: ModuleType, records: list[Any], max_bytes: int, codec: int) -> None:
    def fill(kernel: ModuleType) -> list[Any]:
        batch = kernel.OpenBatch(max_bytes)
        seen = [
            (
                outcome(lambda: batch.append(*record)),  # noqa: B023
                batch.count,
                batch.size_bytes,
                batch.base_timestamp,
                batch.max_timestamp,
            )
            for record in records
        ]
        numbers = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 5, "transactional": True}
        return [*seen, outcome(lambda: batch.build(codec)), outcome(lambda: batch.build(codec, **numbers))]

    assert fill(native) == fill(batch_py)


@st.composite
def column_arguments(draw: Any) -> dict[str, Any]:
    """Arguments for Columns, mostly sound, some with offsets or sizes that are wrong."""
    count = draw(st.integers(0, 8))

    def cells(rows: int) -> tuple[bytes, bytes, bytes | None]:
        lengths = draw(st.lists(st.integers(0, 9) | st.just(200), min_size=rows, max_size=rows))
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        data = bytes(i & 0xFF for i in range(offsets[-1]))
        if draw(st.integers(0, 9)) == 0 and rows:
            offsets[draw(st.integers(0, rows))] = draw(st.integers(-3, 300) | INT32)
        bitmap_bytes = (rows + 7) // 8
        validity = draw(st.none() | st.binary(min_size=bitmap_bytes, max_size=bitmap_bytes + 1))
        return array("i", offsets).tobytes(), data, validity

    arguments: dict[str, Any] = {"count": count}
    if draw(st.booleans()):
        arguments["timestamps"] = array(
            "q", draw(st.lists(TIMESTAMPS | INT64, min_size=count, max_size=count))
        ).tobytes()
    if draw(st.booleans()):
        arguments["key_offsets"], arguments["key_data"], arguments["key_validity"] = cells(count)
    if draw(st.integers(0, 5)):
        arguments["value_offsets"], arguments["value_data"], arguments["value_validity"] = cells(count)
    if draw(st.booleans()):
        counts = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        list_offsets = [0]
        for number in counts:
            list_offsets.append(list_offsets[-1] + number)
        keys, values = cells(list_offsets[-1]), cells(list_offsets[-1])
        if draw(st.integers(0, 9)) == 0:
            list_offsets[draw(st.integers(0, count))] = draw(INT32)
        list_validity = draw(st.none() | st.binary(min_size=1, max_size=1))
        arguments["headers"] = HeaderColumns(
            array("i", list_offsets).tobytes(), list_validity, keys[0], keys[1], *values
        )
    return arguments


def make_columns(kernel: ModuleType, arguments: dict[str, Any]) -> Any:
    arguments = dict(arguments)
    return kernel.Columns(arguments.pop("count"), **arguments)


@THOROUGH
@given(
    arguments=column_arguments(),
    rows=st.none() | st.lists(st.integers(0, 7) | st.integers(-1, 9), max_size=12),
    first=st.integers(-1, 4),
    until=st.integers(-1, 12),
    max_bytes=st.integers(0, 500) | st.just(2**80),
    now_ms=st.integers(0, 2**41) | st.sampled_from([-2, -1, 2**63 - 1]),
)
def test_encode_columns(
    native: ModuleType, arguments: dict[str, Any], rows: Any, first: int, until: int, max_bytes: int, now_ms: int
) -> None:
    def encode(kernel: ModuleType) -> Any:
        columns = make_columns(kernel, arguments)
        selection = None if rows is None else array("i", rows)
        return kernel.encode_columns(columns, selection, first, until, max_bytes, now_ms=now_ms)

    assert outcome(lambda: encode(native)) == outcome(lambda: encode(batch_py))


@THOROUGH
@given(
    arguments=column_arguments(),
    row=st.integers(-1, 9),
    short=st.none() | st.sampled_from(["key_offsets", "timestamps"]),
)
def test_columns_rows(native: ModuleType, arguments: dict[str, Any], row: int, short: str | None) -> None:
    if short in arguments:
        arguments[short] = arguments[short][:-1]

    def look(kernel: ModuleType) -> list[Any]:
        columns = make_columns(kernel, arguments)
        names = ("offset_at", "timestamp_at", "timestamp_type_at", "key_at", "value_at", "headers_at")
        return [len(columns), *(outcome(lambda: getattr(columns, name)(row)) for name in names)]  # noqa: B023

    assert outcome(lambda: look(native)) == outcome(lambda: look(batch_py))


@THOROUGH
@given(arguments=column_arguments(), partition_count=st.integers(-1, 5) | st.sampled_from([2**31 - 1, 2**31]))
def test_partition_by_key(native: ModuleType, arguments: dict[str, Any], partition_count: int) -> None:
    def partition(kernel: ModuleType) -> Any:
        return kernel.partition_by_key(make_columns(kernel, arguments), partition_count)

    assert outcome(lambda: partition(native)) == outcome(lambda: partition(batch_py))


@given(partitions=st.lists(st.integers(0, 4) | st.integers(-1, 6), max_size=30), partition_count=st.integers(-1, 6))
def test_group_rows(native: ModuleType, partitions: list[int], partition_count: int) -> None:
    numbers = array("i", partitions)
    assert outcome(lambda: native.group_rows(numbers, partition_count)) == outcome(
        lambda: batch_py.group_rows(numbers, partition_count)
    )


@given(data=st.binary(max_size=40))
def test_murmur2(native: ModuleType, data: bytes) -> None:
    assert native.murmur2(data) == native.murmur2(bytearray(data)) == batch_py.murmur2(data)


@given(payload=st.binary(min_size=1, max_size=9), count=st.integers(20_000, 22_000))
@settings(max_examples=4, deadline=None)
def test_large_sections_take_the_path_without_the_gil(native: ModuleType, payload: bytes, count: int) -> None:
    batch = native.OpenBatch(2**30)
    for i in range(count):
        batch.append(i, None if i % 3 else payload, payload, [("h", payload)] if i % 7 == 0 else None)
    data = batch.build()
    header = native.read_header(data)
    assert len(data) > 2 * 65536
    assert native.walk_records(data[61:], header) == batch_py.walk_records(data[61:], header) == count - 1

    def decode(kernel: ModuleType) -> Any:
        builder = kernel.ColumnBuilder(True)
        builder.add_batch(data, 0, header)
        return builder.finish()

    columns = decode(native)
    assert plain(columns) == plain(decode(batch_py))
    buffer, facts, until = native.encode_columns(columns, None, 0, count, 2**30, now_ms=0)
    assert (buffer[61:], facts.record_count, until) == (data[61:], count, count)


FUNCTIONS = [name for name in batch_py.__all__ if inspect.isfunction(getattr(batch_py, name))]
CLASSES = ("Columns", "ColumnBuilder", "KeyMap", "OpenBatch")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_equal_parameters(native: ModuleType, name: str) -> None:
    assert _parameters(getattr(native, name)) == _parameters(getattr(batch_py, name))


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_equal_members_and_parameters(native: ModuleType, name: str) -> None:
    ours, theirs = getattr(native, name), getattr(batch_py, name)
    members = sorted(each for each in vars(theirs) if not each.startswith("_") or each == "__len__")
    assert members == sorted(each for each in vars(ours) if not each.startswith("_") or each == "__len__")
    for member in members:
        if inspect.isfunction(vars(theirs)[member]) and member != "__len__":
            assert _parameters(getattr(ours, member)) == _parameters(getattr(theirs, member)), member


def _parameters(function: Any) -> list[tuple[str, Any, bool]]:
    """Names, kinds and whether there is a default; the values of defaults differ in how they are written down."""
    return [
        (each.name, each.kind, each.default is not inspect.Parameter.empty)
        for each in inspect.signature(function).parameters.values()
    ]


def test_golden_header_layout(native: ModuleType) -> None:
    data = struct.pack(">qiibIhiqqqhii", 1, 49, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    for kernel in (native, batch_py):
        assert tuple(kernel.read_header(data)) == (1, 49, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
