"""What files can be made as."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_kafkalite.jobs.formats.file_layout import CODECS, FileLayout
from spark_kafkalite.jobs.formats.lines import make_lines


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (FileLayout(codec="bogus"), "--codec bogus: --format parquet has none, snappy, gzip, lz4_raw, zstd"),
        (
            FileLayout(file_format="text", codec="zstd"),
            "--codec zstd: --format text has none, bzip2, deflate, ",
        ),
        (FileLayout(file_format="text", value="registry"), "--value registry: a line of text is the value's bytes"),
        (FileLayout(value="json"), "--value json needs --value-schema"),
        (FileLayout(value_schema="a INT"), "--value-schema needs --value json or --value registry"),
        (
            FileLayout(value="json", value_schema="`\u200b` INT"),
            "--value-schema holds characters that cannot be printed",
        ),
        *[
            (FileLayout(event_time=text), f"--event-time {text}: not record, header:NAME or json:FIELD")
            for text in (
                "",
                "Record",
                "header:",
                "json:",
                "json:a..b",
                "json:.a",
                "json:a[0]",
                "json:a.*",
                "time:x",
                "header:\u200b",
            )
        ],
    ],
)
def test_options_that_cannot_be_are_told(layout: FileLayout, told: str) -> None:
    assert (layout.problem() or "").startswith(told)


@pytest.mark.parametrize(
    "layout",
    [
        *(FileLayout(file_format=each, codec=codec) for each, codecs in CODECS.items() for codec in (None, *codecs)),
        FileLayout(value="registry"),
        FileLayout(value="json", value_schema="a INT"),
        *(FileLayout(event_time=text) for text in ("record", "header:a b:c", "json:at", "json:a-b.c_d.e")),
    ],
)
def test_options_that_can_be_are_taken(layout: FileLayout) -> None:
    assert layout.problem() is None


def test_published_names_end_as_readers_expect() -> None:
    staged = "part-00000-b415.c000"
    assert FileLayout().ending(f"{staged}.snappy.parquet") == "parquet"
    assert FileLayout(file_format="orc").ending(f"{staged}.zlib.orc") == "orc"
    assert FileLayout(file_format="text").ending(f"{staged}.txt") == "txt"
    assert FileLayout(file_format="text").ending(f"{staged}.txt.bz2") == "txt.bz2"


def test_a_manifest_says_what_was_asked_for() -> None:
    assert FileLayout().document() == {
        "partition_by": "day",
        "format": "parquet",
        "time_zone": "UTC",
        "value": "bytes",
        "event_time": "record",
    }
    asked = FileLayout("hour", "text", "snappy", "Asia/Kolkata", 5, "json", "a INT", "header:at").document()
    assert (asked["codec"], asked["value_schema"], asked["event_time"]) == ("snappy", "a INT", "header:at")


SCHEMA = pa.schema(
    [
        ("kafkalite_group", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


def rows(group: str, partition: int, first: int, values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    columns = [[group] * count, [None] * count, values, [partition] * count, range(first, first + count), [7] * count]
    return pa.RecordBatch.from_arrays(
        [pa.array(cells, each.type) for cells, each in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def test_lines_keep_their_order_and_are_reported_by_file_and_partition() -> None:
    batches = [
        rows("t@", 0, 0, [b"a", b"b"]),
        rows("u@", 0, 0, [b"x"]),
        rows("t@", 0, 5, [b"c"]),
        rows("t@", 1, 9, [b"d"]),
    ]
    made = pa.Table.from_batches(make_lines(iter(batches)))
    assert made.column("kafkalite_sequence").to_pylist() == list(range(len(made)))
    lines: dict[str, list[bytes]] = {}
    for group, line in zip(
        *(made.column(name).to_pylist() for name in ("kafkalite_group", "kafkalite_data")), strict=True
    ):
        lines.setdefault(group, []).append(line)
    assert (lines["t@"], lines["u@"]) == ([b"a", b"b", b"c", b"d"], [b"x"])
    facts = [json.loads(line) for line in lines["@facts"]]
    assert [(each["group"], each["partition"], each["first"], each["last"], each["records"]) for each in facts] == [
        ("t@", 0, 0, 5, 3),
        ("u@", 0, 0, 0, 1),
        ("t@", 1, 9, 9, 1),
    ]
