"""The key map and the filter of compaction in both twins: same bytes in, same values or same errors out."""

from __future__ import annotations

from hashlib import blake2b
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafkalite.records import batch_py
from spark_kafkalite.records.layout import BatchHeader
from tests.twins.cases import INT64, RECORDS, THOROUGH, TIMESTAMPS, built, outcome, sections

pytestmark = pytest.mark.filterwarnings("error")

SALT = bytes(range(16))
# Few keys, so that there are later records of them; the long ones take more than one block of the hash.
KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d" * 127, b"d" * 128, b"d" * 129, b"e" * 256, b"f" * 300])
KEYED = st.tuples(TIMESTAMPS, KEYS, st.none() | st.binary(max_size=4), st.none() | st.just([("h", b"x"), ("n", None)]))


@st.composite
def keyed_sections(draw: Any) -> tuple[bytes, BatchHeader]:
    """A sound records section of few keys, and its header."""
    data = built(draw(st.lists(KEYED, min_size=1, max_size=8)), draw(st.integers(0, 30)))
    return bytes(data[61:]), batch_py.read_header(data)


@THOROUGH
@given(key=st.binary(max_size=400), salt=st.binary(min_size=16, max_size=16))
@example(key=b"", salt=SALT)
@example(key=bytes(128), salt=SALT)
@example(key=bytes(129), salt=SALT)
@example(key=bytes(256), salt=SALT)
def test_digest_is_blake2b(native: ModuleType, key: bytes, salt: bytes) -> None:
    expected = blake2b(key, digest_size=16, salt=salt).digest()
    assert native.KeyMap(48, salt).digest(key) == batch_py.KeyMap(48, salt).digest(key) == expected


@THOROUGH
@given(
    cases=st.lists(keyed_sections() | sections(), max_size=5),
    slots=st.integers(2, 12),
    first=st.integers(0, 20) | INT64,
    until=st.integers(0, 40) | INT64,
    tombstones_until=st.integers(0, 40) | INT64,
    horizon=st.just(-1) | st.integers(0, 2**42) | INT64,
)
def test_put_and_filter(
    native: ModuleType, cases: list[Any], slots: int, first: int, until: int, tombstones_until: int, horizon: int
) -> None:
    def run(kernel: ModuleType) -> list[Any]:
        keys = kernel.KeyMap(24 * slots + 5, SALT)
        seen: list[Any] = [keys.capacity]
        for section, header in cases:
            seen.append(outcome(lambda: keys.put_records(section, header, first)))  # noqa: B023
            seen.append(keys.count)
        seen += [keys.offset_of(key) for key in (b"", b"a", b"b", b"c", b"d" * 127, b"d" * 128, b"d" * 129, b"none")]
        for section, header in cases:
            seen.append(
                outcome(
                    lambda: keys.filter_records(
                        section,  # noqa: B023
                        header,  # noqa: B023
                        first,
                        until,
                        tombstones_until_offset=tombstones_until,
                        delete_horizon_ms=horizon,
                    )
                )
            )
        return seen

    assert run(native) == run(batch_py)


@THOROUGH
@given(records=st.lists(RECORDS, min_size=1, max_size=20), horizon=st.integers(0, 2**42))
def test_records_rewritten_for_a_horizon_are_the_same_records(
    native: ModuleType, records: list[Any], horizon: int
) -> None:
    records = [(timestamp, key or b"k", None, headers) for timestamp, key, _, headers in records]
    data = built(records, 7)
    header = batch_py.read_header(data)

    def rows(kernel: ModuleType, section: bytes, header: BatchHeader) -> list[Any]:
        builder = kernel.ColumnBuilder(True)
        builder.add_batch(b"", 0, header, section)
        columns = builder.finish()
        return [
            (columns.offset_at(row), columns.timestamp_at(row), columns.key_at(row), columns.headers_at(row))
            for row in range(columns.count)
        ]

    for kernel in (native, batch_py):
        retained = kernel.KeyMap(48).filter_records(data[61:], header, delete_horizon_ms=horizon)
        assert retained.has_new_horizon and retained.record_count == retained.tombstone_count == len(records)
        rewritten = rows(kernel, retained.buffer[61:], header._replace(base_timestamp=horizon))
        assert rewritten == rows(kernel, data[61:], header)


@pytest.mark.parametrize("size_bytes", [-1, 0, 24, 47])
def test_map_without_room_for_a_key_is_refused(native: ModuleType, size_bytes: int) -> None:
    assert outcome(lambda: native.KeyMap(size_bytes)) == outcome(lambda: batch_py.KeyMap(size_bytes))
    assert outcome(lambda: native.KeyMap(size_bytes))[0] is ValueError
    assert outcome(lambda: native.KeyMap(48, b"short")) == outcome(lambda: batch_py.KeyMap(48, b"short"))


def test_full_map_finds_every_key_and_takes_later_offsets_of_those_it_has(native: ModuleType) -> None:
    records = [(0, b"%d" % (n % 900), b"", None) for n in range(2000)]
    data = built(records)
    header = batch_py.read_header(data)
    for kernel in (native, batch_py):
        keys = kernel.KeyMap(24 * 1000)
        assert keys.put_records(data[61:], header) == 2000
        assert keys.count == keys.capacity == 900
        assert [keys.offset_of(b"%d" % n) for n in range(901)] == [*range(1800, 2000), *range(1100, 1800), -1]
        more = built([(0, b"5", b"", None), (0, b"x", b"", None), (0, b"6", b"", None)], 2000)
        assert keys.put_records(more[61:], batch_py.read_header(more)) == 2001
        assert (keys.offset_of(b"5"), keys.offset_of(b"x"), keys.offset_of(b"6")) == (2000, -1, 1806)


def test_a_megabyte_of_records_goes_through_both_alike(native: ModuleType) -> None:
    """As large as lets the kernel work without the GIL."""
    records = [(n, b"%d" % (n % 5000), None if n % 7 == 0 else bytes(60), None) for n in range(12_000)]
    data = built(records, 100)
    header = batch_py.read_header(data)

    def run(kernel: ModuleType) -> Any:
        keys = kernel.KeyMap(24 * 8000)
        return (
            keys.put_records(data[61:], header),
            outcome(lambda: keys.filter_records(data[61:], header)),
            outcome(lambda: keys.filter_records(data[61:], header, delete_horizon_ms=2**41)),
        )

    assert run(native) == run(batch_py)
    assert run(native)[1][0] == 5000
