"""What a manifest must be to be believed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from spark_kafkalite.manifests.manifest import ManifestError
from spark_kafkalite.manifests.manifest_reader import read_manifest

ID = "AAAAAAAAQACAAAAAAAAAAQ"


def full_manifest() -> dict[str, Any]:
    return {
        "format": 3,
        "number": 3,
        "run": "r",
        "created": "2026-01-01T00:00:00+00:00",
        "kind": "load",
        "layout": {"format": "parquet"},
        "records": 5,
        "records_without_timestamp": 0,
        "event_time_fallbacks": 2,
        "topics": {
            "t": {
                "id": ID,
                "earlier_ids": [None],
                "next_offsets": {"0": 5},
                "passed_ms": {"0": 7},
                "open_directories": ["t/day=2026-01-01"],
                "layout": {"format": "parquet"},
            }
        },
        "ranges": [
            {
                "topic": "t",
                "partition": 0,
                "start": 0,
                "next_offset": 12,
                "lost": 3,
                "control": 1,
                "aborted": 2,
                "removed": 1,
                "records": 5,
                "quarantined": 0,
                "late": 0,
                "size_bytes": 100,
                "min_timestamp": 5,
                "max_timestamp": None,
            }
        ],
        "lost": [{"topic": "t", "partition": 0, "start": 2, "until": 5, "offsets": 3}],
        "recreated": [{"topic": "t", "earlier_id": None, "id": ID, "earlier_next_offsets": {"0": 7}}],
        "adopted_ids": ["t"],
        "completed": ["t/day=2025-12-31"],
        "reopened": ["t/day=2025-12-30"],
        "replaced": ["t/old"],
        "files": [
            {
                "staged": "_kafkalite/staging/r/a",
                "final": "t/a",
                "topic": "t",
                "records": 5,
                "size_bytes": 3,
                "late": False,
                "offsets": [{"partition": 0, "first": 0, "last": 4, "rows": 5}],
            }
        ],
        "quarantine": [
            {
                "staged": "_kafkalite/staging/r/q",
                "final": "_kafkalite/quarantine/t/b",
                "topic": "t",
                "records": 1,
                "size_bytes": 3,
                "late": False,
                "offsets": [{"partition": 0, "first": 0, "last": 0, "rows": 1}],
            }
        ],
    }


def format_2() -> dict[str, Any]:
    document = full_manifest() | {"format": 2}
    for name in ("kind", "layout", "ranges", "completed", "reopened", "replaced", "quarantine", "event_time_fallbacks"):
        del document[name]
    for name in ("passed_ms", "open_directories"):
        del document["topics"]["t"][name]
    (file,) = document["files"]
    del file["offsets"], file["late"]
    file |= {"partition": 0, "first_offset": 0, "last_offset": 4}
    return document


def format_1() -> dict[str, Any]:
    document = format_2() | {"format": 1, "next_offsets": {"t": {"0": 5}}}
    for name in ("topics", "lost", "recreated", "adopted_ids"):
        del document[name]
    del document["files"][0]["size_bytes"]
    return document


def test_older_formats_are_read() -> None:
    now, before, first = (
        read_manifest(json.dumps(document), "m.json") for document in (full_manifest(), format_2(), format_1())
    )
    assert (now.format, before.format, first.format) == (3, 2, 1)
    assert now.files == before.files
    assert first.files[0].parts == now.files[0].parts
    assert now.next_offsets == before.next_offsets == first.next_offsets
    assert (before.ranges, before.kind, before.topics["t"].passed_ms) == ((), "load", {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("topics.t.next_offsets.0", value) for value in (5.5, 5.0, "5", None, True, -5, 2**63, [5])],
        *[("topics.t.id", value) for value in (7, "", "short")],
        *[("topics.t.earlier_ids", value) for value in ("abc", None)],
        ("topics.t.earlier_ids[0]", 7),
        ("topics.t", None),
        *[("format", value) for value in (True, 1.0, "2", 0, None)],
        *[("number", value) for value in ("3", 0, 9, True)],
        *[("run", value) for value in ("", 3, "..", "a/b")],
        ("created", None),
        *[("records", value) for value in (-1, 1.5, None)],
        ("records_without_timestamp", "0"),
        *[("event_time_fallbacks", value) for value in (-1, "0", None)],
        ("quarantine", {}),
        *[("quarantine[0].final", value) for value in ("t/b", "_kafkalite/manifests/b", "_kafkalite/quarantine")],
        *[("lost[0].until", value) for value in (1, 2.5)],
        ("lost[0].offsets", 4),
        ("lost[0].partition", -1),
        ("lost", {}),
        ("recreated[0].earlier_next_offsets.0", 0.5),
        ("recreated[0].id", 1),
        ("adopted_ids[0]", "../t"),
        ("files", {}),
        ("files[0]", "t/a"),
        *[("files[0].final", value) for value in ("../../x", "/t/a", "a", "t/../../x", "t//a", 7, "t/\0", "\ud800/a")],
        ("files[0].final", "_kafkalite/manifests/00000000000000000009.json"),
        *[("files[0].staged", value) for value in ("/etc/passwd", "t/other", "_kafkalite/staging/../../x")],
        *[("files[0].topic", value) for value in ("", "a/b", "..", 1)],
        *[("files[0].offsets[0].partition", value) for value in (-1, 2**31, 0.0)],
        *[("files[0].offsets[0].last", value) for value in (-1, 4.0)],
        *[("files[0].offsets[0].first", value) for value in (-1, 2**64)],
        *[("files[0].offsets[0].rows", value) for value in (0, 6, "5")],
        *[("files[0].records", value) for value in (0, 6, "5")],
        *[("files[0].late", value) for value in (0, "no", None)],
        ("kind", "other"),
        ("layout.format", 3),
        ("topics.t.layout.format", 3),
        *[("completed[0]", value) for value in ("../x", "t", 3)],
        *[("topics.t.passed_ms.0", value) for value in (-1, "7")],
        *[("ranges[0].next_offset", value) for value in (-1, 2**63)],
        *[("ranges[0].control", value) for value in (-1, 1.5)],
        ("ranges[0].min_timestamp", -1),
        *[("files[0].size_bytes", value) for value in (-1, "3")],
    ],
)
def test_every_field_of_a_manifest_is_checked(field: str, value: object) -> None:
    document = full_manifest()
    assert read_manifest(json.dumps(document), "m.json", 3).number == 3
    at: Any = document
    *way, last = [
        int(part) if part.isdigit() and part != "0" else part for part in re.split(r"\.|\[|\]\.?", field) if part
    ]
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at[part]
    at[int(last) if isinstance(at, list) else last] = value
    shown = re.escape(json.dumps(value))
    with pytest.raises(
        ManifestError, match=rf"^hdfs://x/m\.json is not a manifest.*: {re.escape(field)} is {shown}, not "
    ) as caught:
        read_manifest(json.dumps(document), "hdfs://x/m.json", 3)
    assert str(caught.value).endswith("restore the file from a copy, or load into another destination")


@pytest.mark.parametrize("name", sorted(full_manifest()))
def test_every_field_of_a_manifest_is_needed(name: str) -> None:
    document = full_manifest()
    del document[name]
    with pytest.raises(ManifestError, match=f"m.json is not a manifest of this program: it has no {name}: restore"):
        read_manifest(json.dumps(document), "m.json")


@pytest.mark.parametrize("key", ["-1", "2147483648", "\u0663", "01", "x", ""])
def test_keys_of_a_manifest_are_checked(key: str) -> None:
    document = full_manifest()
    document["topics"]["t"]["next_offsets"] = {key: 5}
    with pytest.raises(ManifestError, match=r"a key of topics\.t\.next_offsets is .*, not a partition"):
        read_manifest(json.dumps(document), "m.json")
    with pytest.raises(ManifestError, match=r"a key of topics is \"a/b\", not a topic's name"):
        read_manifest(json.dumps(full_manifest() | {"topics": {"a/b": {}}}), "m.json")


@pytest.mark.parametrize("change", [{"hidden_final": "../../y"}, {"other": 1}])
def test_a_file_of_a_manifest_has_no_other_fields(change: dict[str, Any]) -> None:
    for text in (json.dumps(full_manifest()), json.dumps(format_2()), json.dumps(format_1())):
        document = json.loads(text)
        document["files"][0] |= change
        with pytest.raises(ManifestError, match=r"a field of files\[0\] is"):
            read_manifest(json.dumps(document), "m.json")


@pytest.mark.parametrize("name", ["lost", "control", "aborted", "removed", "records"])
def test_a_range_of_a_manifest_accounts_for_every_offset(name: str) -> None:
    document = full_manifest()
    document["ranges"][0][name] += 1
    with pytest.raises(ManifestError, match=r"ranges\[0\] is .* not a range that accounts for every offset"):
        read_manifest(json.dumps(document), "m.json")


def test_a_manifest_names_no_place_twice() -> None:
    document = full_manifest()
    document["files"] *= 2
    with pytest.raises(ManifestError, match='staged of two files is "_kafkalite/staging/r/a"'):
        read_manifest(json.dumps(document), "m.json")
    document["files"][1] = document["files"][1] | {"staged": "_kafkalite/staging/r/b"}
    with pytest.raises(ManifestError, match='final of two files is "t/a"'):
        read_manifest(json.dumps(document), "m.json")


def test_format_1_is_checked_as_strictly() -> None:
    for change in ({"next_offsets": {"t": {"0": 4.5}}}, {"next_offsets": {"t": 4}}, {"number": "1"}):
        document = format_1() | change
        with pytest.raises(ManifestError, match="is not a manifest of this program"):
            read_manifest(json.dumps(document), "m.json")
    with pytest.raises(ManifestError, match=r'files\[0\]\.final is "noslash"'):
        document = format_1()
        document["files"][0] |= {"topic": "_x", "final": "noslash"}
        read_manifest(json.dumps(document), "m.json")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 200_000, "it is nested too deeply"),
        (json.dumps(full_manifest())[:100], "it is not JSON from line 1, column"),
        (json.dumps(full_manifest()).replace('"records": 5', '"records": NaN'), "NaN is not a number"),
        (json.dumps(full_manifest())[:-1] + ', "topics": {}}', 'field "topics" appears twice'),
        ("\0", "it is not JSON from line 1, column 1 on"),
        ('{"records": ' + "9" * 5000 + "}", ""),
    ],
)
def test_a_manifest_that_is_no_json_is_damaged(text: str, problem: str) -> None:
    with pytest.raises(
        ManifestError, match=rf"^m\.json is damaged: {problem}.*: restore the file from a copy"
    ) as caught:
        read_manifest(text, "m.json")
    assert "Error(" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', '{"format": 2}', '{"format": 1, "number": 1, "files": 3}']
)
def test_what_is_no_manifest_is_refused_by_name(text: str) -> None:
    with pytest.raises(ManifestError, match=r"m\.json"):
        read_manifest(text, "m.json")


def test_manifest_of_a_newer_format_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"m\.json: format 4 is not 1, 2 or 3: a newer version"):
        read_manifest('{"format": 4}', "m.json")
