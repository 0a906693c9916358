from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from spark_kafkalite.jobs.formats.schema_merge import SchemaConflict
from spark_kafkalite.jobs.load.layout_changes import (
    LayoutChangeRefused,
    ValueForm,
    WrittenLayout,
    check_layouts,
    merged_type,
    written_layouts,
)
from spark_kafkalite.manifests.manifest import COMPACT, FilePart, Manifest, PublishedFile

TYPES: dict[str, DataType] = {
    "a": StructType().add("a", LongType()),
    "a,b": StructType().add("a", LongType()).add("b", StringType()),
    "a,c": StructType().add("a", LongType()).add("c", StringType()),
    "int": StructType().add("a", IntegerType()),
}
DAY = {"format": "parquet", "partition_by": "day", "time_zone": "UTC", "value": "json"}


def type_of(form: ValueForm) -> DataType:
    return BinaryType() if form[1] is None else TYPES[form[1]]


def written(*schemas: str, **layout: str) -> WrittenLayout:
    return WrittenLayout({**DAY, "value_schema": schemas[-1], **layout}, tuple(("json", each) for each in schemas))


def refusal(there: WrittenLayout, schema: str = "a", change_layout: bool = False, **layout: str) -> str | None:
    asked = {**DAY, "value_schema": schema, **layout}
    try:
        check_layouts("d", {"t": there}, {"t": asked, "new": asked}, type_of, change_layout=change_layout)
    except LayoutChangeRefused as error:
        return str(error)
    return None


def test_what_is_there_may_get_more_fields() -> None:
    assert refusal(written("a")) is None
    assert refusal(written("a"), "a,b") is None
    # An older version let a run leave fields out.
    assert refusal(written("a,b", "a"), "a,b") is None
    assert "field value.b of its files would not be in those of this run" in (refusal(written("a,b", "a")) or "")
    assert "Its files have values of type struct<a:bigint,b:string>" in (refusal(written("a,b", "a")) or "")
    told = refusal(written("a,b"), "a,c", change_layout=True)
    assert told is not None
    assert told.startswith("topic t in d: field value.b of its files would not be in those of this run; a run may only")
    assert told.endswith("or load the topic into a new destination; nothing was written")
    assert "field value.a is bigint in its files and int in this run" in (refusal(written("a"), "int") or "")
    # What was contradictory before goes on as the newest files.
    assert refusal(written("a", "int"), "int") is None


def test_a_topic_without_files_is_free() -> None:
    assert refusal(WrittenLayout.of({}), "int", format="orc") is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"partition_by": "hour"}, "written with --partition-by day, and this run has --partition-by hour: give"),
        ({"format": "orc"}, "written with --format parquet, and this run has --format orc: give --format parquet, or"),
        ({"time_zone": "Asia/Kolkata"}, "written with --time-zone UTC, and this run has --time-zone Asia/Kolkata"),
        ({"partition_by": "none", "time_zone": "x"}, "with --partition-by day, and this run has --partition-by none: "),
        ({"codec": "zstd", "event_time": "header:x"}, None),
    ],
)
def test_another_layout_needs_the_option(changed: dict[str, str], told: str | None) -> None:
    found = refusal(written("a"), **changed)
    assert found is None if told is None else told in (found or "")
    assert refusal(written("a"), change_layout=True, **changed) is None


def test_a_format_that_is_no_longer_written_is_not_recommended() -> None:
    told = refusal(written("a", format="avro")) or ""
    assert "written with --format avro, and this run has --format parquet: to write new files with" in told
    assert "leave the others as they are, give --change-layout" in told


@pytest.mark.parametrize("changed", [{"partition_by": "hour"}, {"format": "orc", "time_zone": "Asia/Kolkata"}])
def test_a_table_is_not_advised_to_change_what_it_keeps(changed: dict[str, str]) -> None:
    with pytest.raises(LayoutChangeRefused) as refused:
        check_layouts("d", {"x": written("a")}, {"x": {**DAY, "value_schema": "a", **changed}}, type_of, tables=["x"])
    assert "because a Delta table keeps its format and directories" in str(refused.value)
    assert "--change-layout" not in str(refused.value)


def test_the_zone_does_not_matter_without_directories_of_time() -> None:
    assert refusal(written("a", partition_by="none"), partition_by="none", time_zone="Asia/Kolkata") is None


def test_all_topics_that_are_refused_are_named() -> None:
    asked = {topic: {**DAY, "value_schema": "int"} for topic in "xyz"}
    with pytest.raises(LayoutChangeRefused, match=r"^topic x in d: .* \(refused as well: y, z\)$"):
        check_layouts("d", dict.fromkeys("xyz", written("a")), asked, type_of)


def test_values_of_another_form_have_no_common_type() -> None:
    with pytest.raises(SchemaConflict, match="field value is of --value json in one and of --value registry in the"):
        merged_type([("json", "a"), ("registry", "a")], type_of)
    both = StructType().add("a", LongType()).add("b", StringType()).add("c", StringType())
    assert merged_type([("json", "a,b"), ("json", "a,c")], type_of) == both


def run_of(number: int, path: str, kind: str = "load", **layout: str) -> tuple[Manifest, PublishedFile]:
    file = PublishedFile("_kafkalite/staging/r/f", path, path.split("/")[0], (FilePart(0, 0, 0, 1),))
    return Manifest(number, "r", "now", (file,), {}, 1, 0, layout=layout, kind=kind), file


def test_layouts_of_an_older_destination_come_from_its_manifests_and_paths() -> None:
    found = written_layouts(
        [
            run_of(1, "t/day=2026-01-01/hour=05/f.json.gz"),
            run_of(1, "u/f.txt"),
            run_of(2, "t/day=2026-01-01/f.parquet", **DAY, value_schema="a"),
            run_of(3, "t/day=2026-01-01/f.parquet", **{**DAY, "value_schema": "a", "t:value_schema": "a,b"}),
            # Of files of the first run, so the layout is not the newest.
            run_of(4, "t/day=2026-01-01/hour=05/m.json", COMPACT, format="json", partition_by="hour"),
        ]
    )
    assert found == {
        "t": WrittenLayout({**DAY, "value_schema": "a,b"}, (("bytes", None), ("json", "a"), ("json", "a,b"))),
        "u": WrittenLayout({"format": "text", "partition_by": "none", "value": "bytes"}, (("bytes", None),)),
    }
