"""What both twins are given, good and bad, and how their outcomes are made comparable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from spark_kafkalite.records import batch_py
from spark_kafkalite.records.layout import BatchHeader
from tests.seeds import SOAK

settings.register_profile(
    "twins",
    max_examples=1_000 if SOAK else 40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
THOROUGH = settings.get_profile("twins")

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
OFFSETS = INT64 | st.integers(0, 10)
CELLS = st.none() | st.binary(max_size=12) | st.binary(min_size=60, max_size=300)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=4)
TIMESTAMPS = st.integers(-1, 2**41) | st.sampled_from([-1, 0, 2**62, 2**63 - 2])
RECORDS = st.tuples(TIMESTAMPS, CELLS, CELLS, HEADERS)


_COLUMNS = (
    "offsets",
    "timestamps",
    "timestamp_types",
    "key_offsets",
    "key_data",
    "key_validity",
    "value_offsets",
    "value_data",
    "value_validity",
)


def plain(value: Any) -> Any:
    if hasattr(value, "key_validity"):
        buffers = {name: plain(getattr(value, name)) for name in _COLUMNS}
        headers = None if value.headers is None else [plain(buffer) for buffer in value.headers]
        return value.count, value.next_offset, buffers, headers
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (int, str, bytes)):
        return value
    return bytes(memoryview(value).cast("B"))


def outcome(call: Callable[[], Any]) -> Any:
    """Return a call's result as plain values, or the type and text of its error."""
    try:
        return plain(call())
    except Exception as error:
        return type(error), str(error)


def built(records: list[Any], base_offset: int = 0) -> bytearray:
    batch = batch_py.OpenBatch(2**30)
    for record in records:
        assert batch.append(*record) >= 0
    data = batch.build()
    batch_py.stamp(data, 0, base_offset, 3)
    return data


@st.composite
def mutated(draw: Any) -> bytes:
    """A whole batch with some bytes changed, put in or taken out."""
    data = built(draw(st.lists(RECORDS, min_size=1, max_size=6)))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["set", "delete", "insert"]))
        byte = draw(st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        if kind == "set":
            data[position] = byte
        elif kind == "insert":
            data.insert(position, byte)
        elif len(data) > 1:
            del data[position]
    return bytes(data)


@st.composite
def sections(draw: Any) -> tuple[bytes, BatchHeader]:
    """A records section, good, mutated or made of varints at random, and a header that may lie about it."""
    if draw(st.booleans()):
        section = draw(mutated())[61:]
    else:
        pieces = st.binary(max_size=3) | st.sampled_from(
            [
                b"\x80\x80\x80\x80\x10",
                b"\xff\xff\xff\xff\x0f",
                b"\x80" * 9 + b"\x01",
                b"\x80" * 9 + b"\x02",
                b"\x80\x00",
            ]
        )
        body = b"".join(draw(st.lists(pieces, max_size=8)))
        section = bytes([2 * len(body) & 0xFF]) + body if draw(st.booleans()) else body
    count = draw(st.integers(0, 8) | INT32)
    header = BatchHeader(
        draw(st.integers(0, 2**40) | INT64),
        draw(st.just(49 + len(section)) | INT32),
        0,
        2,
        0,
        draw(st.sampled_from([0, 0, 0, 8, 16, 32, 1, 4]) | st.integers(-(2**15), 2**15 - 1)),
        draw(st.just(max(count - 1, 0)) | st.integers(-1, 20) | INT32),
        draw(TIMESTAMPS | INT64),
        draw(TIMESTAMPS | INT64),
        -1,
        -1,
        -1,
        count,
    )
    return section, header
