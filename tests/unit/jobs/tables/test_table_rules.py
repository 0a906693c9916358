"""The pure rules of tables: schemas, partition values, statistics, states and marks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafkalite.jobs.tables import delta_actions
from spark_kafkalite.jobs.tables.delta_actions import TableFile
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.jobs.tables.table_mark import TableMark
from spark_kafkalite.jobs.tables.table_schema import merged, table_schema
from spark_kafkalite.jobs.tables.table_state import LogReplay, TableState, actions_in, files_of
from spark_kafkalite.manifests.manifest import FilePart, PublishedFile

Fields = list[tuple[str, Any]]


def struct(fields: Fields) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": False}


def pairs(value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": False}


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ([("a", "long")], [("a", "long"), ("b", "string")], ["a", "b"]),
        ([("a", "long"), ("b", "string")], [("b", "string")], ["a", "b"]),
        ([("v", struct([("a", "long")]))], [("v", struct([("b", "date"), ("a", "long")]))], ["v", "v.a", "v.b"]),
        ([("v", array(struct([("a", "long")])))], [("v", array(struct([("b", "long")])))], ["v", "v.a", "v.b"]),
        ([("v", pairs(struct([("a", "long")])))], [("v", pairs(struct([("b", "long")])))], ["v", "v.a", "v.b"]),
    ],
)
def test_columns_are_added_at_any_depth(before: Fields, after: Fields, names: list[str]) -> None:
    found = merged(table_schema(struct(before), ()), table_schema(struct(after), ()))
    assert names_in(found) == names
    assert '"containsNull": false' not in json.dumps(found) and '"nullable": false' not in json.dumps(found)


def names_in(schema: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for field in schema["fields"]:
        found.append(f"{path}{field['name']}")
        kind = field["type"]
        while isinstance(kind, dict):
            if kind["type"] == "struct":
                found += names_in(kind, f"{path}{field['name']}.")
            kind = kind.get("elementType") or kind.get("valueType")
    return found


def test_a_schema_that_adds_nothing_is_the_table_s_own() -> None:
    table = table_schema(struct([("a", "long"), ("b", "string")]), ("day",))
    assert merged(table, table_schema(struct([("b", "string")]), ("day",))) is table


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([("a", "integer")], [("a", "long")], "column a is integer in the table and long in this run"),
        ([("a", "long")], [("A", "long")], "column a of the table is A in this run"),
        ([("v", array("long"))], [("v", "long")], r"column v is array<long> in the table and long"),
        ([("v", array("long"))], [("v", array("string"))], r"column v\[\] is long in the table and string"),
        (
            [("v", struct([("a", "long")]))],
            [("v", struct([("a", "date")]))],
            r"column v\.a is long in the table",
        ),
        (
            [("v", struct([("a", "long")]))],
            [("v", pairs("long"))],
            r"column v is struct<a: long> in the table",
        ),
        ([("a", "decimal(6,2)")], [("a", "decimal(20,2)")], r"column a is decimal\(6,2\) in the table"),
    ],
)
def test_every_other_change_is_refused(before: Fields, after: Fields, message: str) -> None:
    with pytest.raises(TableError, match=message):
        merged(table_schema(struct(before), ()), table_schema(struct(after), ()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("a", "timestamp_ntz")], "column a has type timestamp_ntz"),
        ([("v", struct([("a", "variant")]))], r"column v\.a has type variant"),
        ([("v", array("interval day"))], r"column v\[\] has type interval day"),
        ([("a b", "long")], "column 'a b': a Delta table cannot have"),
        ([("v", struct([("", "long")]))], r"column 'v\.': a Delta table cannot have"),
        ([("a", "long"), ("A", "long")], "columns a and A have the same name"),
        ([("a", "long"), ("a", "long")], "columns a and a have the same name"),
    ],
)
def test_what_needs_a_table_feature_is_refused(fields: Fields, message: str) -> None:
    with pytest.raises(TableError, match=message):
        table_schema(struct(fields), ())


# Actions --------------------------------------------------------------------------------------------------------------


def file(final: str) -> PublishedFile:
    parts = (FilePart(3, 10, 19, 10), FilePart(1, 50, 59, 9))
    return PublishedFile("_kafkalite/staging/r/x", final, "t", parts, 100)


@pytest.mark.parametrize(
    ("final", "values"),
    [
        ("t/t-0.parquet", {}),
        ("t/day=2013-01-31/t-0.parquet", {"day": "2013-01-31"}),
        ("t/day=2013-01-31/hour=05/t-0.parquet", {"day": "2013-01-31", "hour": "5"}),
        ("t/_late/day=2013-01-31/t-0.parquet", {"day": "2013-01-31"}),
    ],
)
def test_partition_values_come_from_directories(final: str, values: dict[str, str]) -> None:
    assert delta_actions.partition_values(file(final)) == values


@pytest.mark.parametrize("directory", ["day=20130131x", "day=+10000-01-01", "hour=05", "day=2013-01-31/hour=24", "x"])
def test_another_directory_is_refused(directory: str) -> None:
    with pytest.raises(TableError, match="is not the directory of a day or an hour"):
        delta_actions.partition_values(file(f"t/{directory}/t-0.parquet"))


def test_an_added_file_has_an_encoded_path_and_statistics() -> None:
    made = delta_actions.add(TableFile(file("t/day=2013-01-31/t%ab+1 x.parquet"), 100, 5, -1000, 1_356_998_400_123_456))
    found = made["add"]
    assert found["path"] == "day=2013-01-31/t%25ab+1%20x.parquet"
    assert (found["size"], found["modificationTime"], found["dataChange"]) == (100, 5, True)
    assert json.loads(found["stats"]) == {
        "numRecords": 19,
        "minValues": {"partition": 1, "offset": 10, "timestamp": "1969-12-31T23:59:59.999000Z"},
        "maxValues": {"partition": 3, "offset": 59, "timestamp": "2013-01-01T00:00:00.123456Z"},
        "nullCount": {"partition": 0, "offset": 0, "timestamp": 0},
    }


@pytest.mark.parametrize("times", [(None, None), (0, None), (0, 2**62), (-(2**62), 0)])
def test_times_that_are_unknown_or_outside_of_the_calendar_have_no_statistics(times: tuple[Any, Any]) -> None:
    stats = json.loads(delta_actions.add(TableFile(file("t/t-0.parquet"), 100, 5, *times))["add"]["stats"])
    assert list(stats["minValues"]) == ["partition", "offset"]


# States ---------------------------------------------------------------------------------------------------------------

METADATA = delta_actions.metadata("id", table_schema(struct([("a", "long")]), ("day",)), ("day",), 0)


def replayed(*actions: dict[str, Any]) -> TableState:
    replay = LogReplay()
    for action in (METADATA, delta_actions.protocol(), *actions):
        replay.take(action)
    return replay.state(7, "the log")


def protocol(reader: int, writer: int, *features: str) -> dict[str, Any]:
    listed = {"writerFeatures": list(features)} if writer == 7 else {}
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **listed}}


def test_a_state_has_what_the_last_actions_have() -> None:
    state = replayed(
        delta_actions.transaction("app", 1, 0),
        {"add": {"path": "x"}},
        delta_actions.transaction("other", 9, 0),
        delta_actions.transaction("app", 2, 0),
        protocol(1, 7, "appendOnly", "invariants"),
    )
    assert (state.version, state.table_id, state.partition_columns) == (7, "id", ("day",))
    assert (state.transactions, state.commits_after_checkpoint) == ({"app": 2, "other": 9}, 8)


def with_metadata(**field: Any) -> dict[str, Any]:
    schema = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": field}]}
    return delta_actions.metadata("id", {"type": "struct", "fields": [{"name": "v", "type": array(schema)}]}, (), 0)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (protocol(1, 4), "asks for writers of version 4"),
        (protocol(2, 5), "asks for readers of version 2"),
        (protocol(1, 7, "appendOnly", "rowTracking"), "asks for the table feature rowTracking"),
        (with_metadata(**{"delta.invariants": "x"}), r"asks for delta\.invariants of column v\.a"),
        ({"metaData": {"id": "x"}}, "is damaged: its metaData cannot be read"),
    ],
)
def test_a_table_that_asks_for_more_is_refused(action: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=message):
        replayed(action)


def test_a_log_without_metadata_is_damaged() -> None:
    with pytest.raises(TableError, match="its log has no protocol or no metaData"):
        LogReplay().state(0, "the log")


def test_actions_of_files_are_read_only_where_asked_for() -> None:
    text = '{"commitInfo":{}}\n{"add":{"path":"x"}}\n{"remove":{"path":"x"}}\n{"add":{"path":"y"}}\n'
    assert list(actions_in(text, "w")) == [{"commitInfo": {}}]
    assert list(files_of(actions_in(text, "w", with_files=True))) == ["y"]


@pytest.mark.parametrize(
    "change", [lambda d: d.pop("app_id"), lambda d: d.update(published="1"), lambda d: d.update(format=2)]
)
def test_a_mark_that_cannot_be_read_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    mark = TableMark.new(3, "old")
    assert TableMark.from_json(mark.to_json(), "w") == mark
    document = json.loads(mark.to_json())
    change(document)
    for text in (json.dumps(document), "{", "[]"):
        with pytest.raises(TableError, match=r"^w"):
            TableMark.from_json(text, "w")
