import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.cli.record_text import BadRecordText, ParsedRecord, record_from_json, record_to_json
from spark_kafkalite.model import Record
from spark_kafkalite.records import kernel
from spark_kafkalite.records.kernel import OpenBatch

CELLS = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=10).map(str.encode))
HEADERS = st.lists(st.tuples(st.text(max_size=5), CELLS), max_size=3)


def record(value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int) -> Record:
    batch = OpenBatch(1 << 20)
    batch.append(timestamp, key, value, headers)
    data = batch.build(0, None)
    builder = kernel.ColumnBuilder(True)
    builder.add_batch(data, 0, kernel.read_header(data), None)
    return Record(builder.finish(), 0, "t", 3)


@given(CELLS, CELLS, HEADERS, st.integers(0, 2**40))
def test_every_record_survives_the_way_through_json(value, key, headers, timestamp) -> None:
    line = record_to_json(record(value, key, headers, timestamp))
    assert "\n" not in line
    assert record_from_json(line.encode()) == ParsedRecord(value, key, headers, "t", 3, timestamp)


def test_the_form_of_a_record() -> None:
    fields = json.loads(record_to_json(record(b"v", b"\xff", [("h", b"x"), ("n", None)], 5)))
    assert fields == {
        "topic": "t",
        "partition": 3,
        "offset": 0,
        "timestamp": 5,
        "timestampType": "CreateTime",
        "keyBase64": "/w==",
        "value": "v",
        "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
    }


def test_a_value_may_be_json_itself() -> None:
    assert record_from_json(b'{"value":{"a": [1, true]}}').value == b'{"a":[1,true]}'
    assert record_from_json(b'{"key":7}') == ParsedRecord(None, b"7", [])


def test_no_timestamp_is_now() -> None:
    assert record_from_json(b'{"value":"v","timestamp":-1}').timestamp_ms is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"vlaue":"x"}', "unknown field 'vlaue'"),
        (b'{"value":"a","valueBase64":"YQ=="}', "both value and valueBase64"),
        (b'{"valueBase64":"*"}', "valueBase64 is not base64"),
        (b'{"valueBase64":7}', "valueBase64 is not base64"),
        (b'{"value":"\\ud800"}', "lone surrogate"),
        (b'{"partition":"0"}', "partition is '0'"),
        (b'{"timestamp":true}', "timestamp is True"),
        (b'{"topic":5}', "topic is 5"),
        (b'{"headers":{}}', None),
        (b'{"headers":{"a":1}}', "headers is not a list"),
        (b'{"headers":[{"value":"x"}]}', 'not of the form {"key"'),
    ],
)
def test_what_is_no_record_says_why(line: bytes, reason: str | None) -> None:
    if reason is None:
        assert record_from_json(line).headers == []
        return
    with pytest.raises(BadRecordText, match=reason):
        record_from_json(line)
