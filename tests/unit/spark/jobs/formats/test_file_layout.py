"""What files can be made as, and what their schemas in Avro are."""

from __future__ import annotations

import io

import fastavro
import pyarrow as pa
import pytest

from spark_kafkalite.spark.jobs.formats import file_layout
from spark_kafkalite.spark.jobs.formats.avro_schema import avro_schema
from spark_kafkalite.spark.jobs.formats.file_layout import CODECS, FileLayout
from spark_kafkalite.spark.jobs.formats.lines import LineMaker, count_blocks, new_separator
from spark_kafkalite.spark.read_schema import spark_schema


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (FileLayout(codec="bogus"), "--codec bogus: --format parquet has none, snappy, gzip, lz4_raw, zstd"),
        (
            FileLayout(file_format="avro", codec="zstd"),
            "--codec zstd: --format avro has none, deflate, snappy, ",
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


def test_avro_without_its_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_layout, "find_spec", lambda name: None)
    assert FileLayout(file_format="avro").problem() == ("--format avro needs fastavro: pip install 'fastavro>=1.10'")
    assert FileLayout().problem() is None


def test_published_names_end_as_readers_expect() -> None:
    staged = "part-00000-b415.c000"
    assert FileLayout().ending(f"{staged}.snappy.parquet") == "parquet"
    assert FileLayout(file_format="json").ending(f"{staged}.json.gz") == "json.gz"
    assert FileLayout(file_format="text").ending(f"{staged}.txt") == "txt"
    assert FileLayout(file_format="text").ending(f"{staged}.txt.bz2") == "txt.bz2"
    assert FileLayout(file_format="avro").ending(f"{staged}.txt") == "avro"


def test_a_manifest_says_what_was_asked_for() -> None:
    assert FileLayout().document() == {
        "partition_by": "day",
        "format": "parquet",
        "time_zone": "UTC",
        "value": "bytes",
        "event_time": "record",
    }
    asked = FileLayout("hour", "avro", "snappy", "Asia/Kolkata", 5, "json", "a INT", "header:at").document()
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


def test_the_lines_of_a_container_with_its_marker_are_the_container() -> None:
    marker = new_separator(FileLayout(file_format="avro"))
    values = [bytes([number % 256]) * 1000 for number in range(1000)]
    batches = [rows("t@", 0, 0, values[:700]), rows("u@", 0, 0, [b"x"]), rows("t@", 0, 700, values[700:])]
    made = pa.Table.from_batches(LineMaker(True, "deflate", marker)(iter(batches)))
    assert made.column("kafkalite_sequence").to_pylist() == list(range(len(made)))
    lines: dict[str, list[bytes]] = {}
    for group, line in zip(
        *(made.column(name).to_pylist() for name in ("kafkalite_group", "kafkalite_data")), strict=True
    ):
        lines.setdefault(group, []).append(line)
    assert (len(lines["u@"]), len(lines["@facts"])) == (2, 2)
    content = b"".join(line + marker.encode() for line in lines["t@"])
    found = list(fastavro.reader(io.BytesIO(content)))
    assert [(row["offset"], row["value"]) for row in found] == list(enumerate(values))
    header, *blocks = counted(lines["t@"])
    assert (header, len(blocks) > 1) == ((0, 0, 1), True)
    assert (sum(block[0] for block in blocks), {block[1:] for block in blocks}) == (1000, {(0, 0)})
    cut = [lines["t@"][1][:-1], b"", b"\x80", lines["t@"][1] + b"\0"]
    assert counted(cut) == [(0, 1, 0)] * 4


def counted(lines: list[bytes]) -> list[tuple[int, int, int]]:
    """Return records, damaged blocks and headers of each line."""
    count = len(lines)
    batch = pa.record_batch(
        {
            "kafkalite_group": ["g"] * count,
            "file": ["f"] * count,
            "size": pa.array([1] * count, pa.int64()),
            "begins": [line[:20] for line in lines],
            "length": pa.array(map(len, lines), pa.int32()),
        }
    )
    (found,) = count_blocks(iter([batch]))
    return [(row["records"], row["damaged"], row["headers"]) for row in found.to_pylist()]


def test_rows_of_all_kinds_have_a_schema_that_fastavro_takes() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    of_source = avro_schema(to_arrow_schema(spark_schema(include_headers=True), timezone="UTC"))
    assert [field["name"] for field in of_source["fields"]] == [*spark_schema(include_headers=True).names]
    fastavro.parse_schema(of_source)
    every = pa.struct(
        [
            ("flag", pa.bool_()),
            ("small", pa.int16()),
            ("ratio", pa.float32()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("price", pa.decimal128(10, 2)),
            ("list", pa.list_(pa.struct([("x", pa.list_(pa.float64()))]))),
        ]
    )
    fastavro.parse_schema(avro_schema(pa.schema([("value", every), ("other", every)])))


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (pa.field("m", pa.map_(pa.string(), pa.int32())), "field m is map"),
        (pa.field("s", pa.struct([("a-b", pa.int32())])), "field s.a-b: names in Avro are"),
        (pa.field("l", pa.list_(pa.struct([("d", pa.duration("us"))]))), r"field l\[\].d is duration"),
    ],
)
def test_what_avro_does_not_have_is_named(field: pa.Field, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        avro_schema(pa.schema([field]))
