"""The audit agrees with what was loaded, and tells of whatever is not as it was published, with both numbers.

``KAFKALITE_SOAK=1`` also audits manifests of an older version.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import audit, compact
from spark_kafkalite.jobs.destination import folding
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.spark import read_published
from tests.seeds import SOAK

from .job_runs import NEW_YEAR_MS, data_files, load, manifests, run_alone
from .topics import Topics

pytestmark = pytest.mark.any_spark

HOUR_MS = 3_600_000


def audited(destination: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(audit.main, ["--destination", str(destination), *arguments, "--json"])
    assert result.exit_code in (0, 1), result.output
    document: dict[str, Any] = json.loads(result.output.strip().splitlines()[-1])
    return result.exit_code, document


def loaded(topics: Topics, destination: Path) -> str:
    """Load two partitions, two hours each, in two runs."""
    topic = topics.new(2)
    for run in range(2):
        for partition in range(2):
            for hour in range(2):
                topics.fill(topic, range(3), partition, timestamp_ms=NEW_YEAR_MS + hour * HOUR_MS + run)
        load(topics, topic, destination, "--partition-by", "hour")
    return topic


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def without_row(path: Path, row: int) -> None:
    """Take a row out of a Parquet file."""
    table = pq.read_table(path, partitioning=None, coerce_int96_timestamp_unit="us")
    pq.write_table(table.take([each for each in range(table.num_rows) if each != row]), path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def as_format_2(document: dict[str, Any]) -> None:
    """Make a manifest what an older version would have written of it."""
    document["format"] = 2
    for name in ("kind", "layout", "ranges", "completed", "reopened", "replaced"):
        del document[name]
    for topic in document["topics"].values():
        del topic["passed_ms"], topic["open_directories"]
    for file in document["files"]:
        (part,) = file.pop("offsets")
        del file["late"]
        file |= {"partition": part["partition"], "first_offset": part["first"], "last_offset": part["last"]}


def test_an_audit_of_what_was_loaded_agrees(topics: Topics, tmp_path: Path) -> None:
    topic = loaded(topics, tmp_path)
    bootstrap = ("--bootstrap-server", topics.bootstrap)
    counts = topics.new()
    code, found = audited(tmp_path, *bootstrap, "--audit-topic", counts)
    assert (code, found["mismatches"], found["not_compared"]) == (0, [], [])
    assert (found["records"], found["files"]) == (24, 4)
    assert [(row["number"], row["records"], row["in_files"], row["in_log"]) for row in found["runs"]] == [
        (1, 12, 12, 12),
        (2, 12, 12, 12),
    ]
    sent = [json.loads(value) for value in topics.values(counts)]
    assert len(sent) == 4
    assert {(each["tier"], each["topic"], each["records"], each["log_records"]) for each in sent} == {
        ("loader", topic, 6, 6)
    }
    assert sent[0]["directories"] == {"day=2013-01-01/hour=00": 3, "day=2013-01-01/hour=01": 3}
    # Both runs have files in every hour; of a run that was named, only its own.
    for arguments in (("--directory", "day=2013-01-01/hour=01"), ("--from", "2013-01-01T01:00:00Z")):
        code, found = audited(tmp_path, *bootstrap, *arguments)
        assert (code, found["files"], len(found["runs"]), found["mismatches"]) == (0, 2, 2, [])
    assert audited(tmp_path, "--run", "2")[1]["files"] == 2
    # What is merged is audited with the runs whose records it has.
    run_alone(compact, "--destination", str(tmp_path), "--min-files", "2", "--older-than", "0s")
    code, found = audited(tmp_path, *bootstrap, "--run", "1")
    assert (code, found["mismatches"]) == (0, [])
    assert [(row["kind"], row["in_files"], row["replaced_files"], row["in_log"]) for row in found["runs"]] == [
        ("load", 0, 2, 12),
        ("compact", 24, 0, None),
    ]
    # People read a table.
    shown = CliRunner().invoke(audit.main, ["--destination", str(tmp_path), *bootstrap])
    assert shown.exit_code == 0
    assert f"all that was compared agrees: 24 records in 2 files of file://{tmp_path}" in shown.output


def test_whatever_is_not_as_it_was_published_is_told(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    topic = loaded(topics, whole)
    (first, *_) = manifests(whole)
    final = first["files"][0]["final"]

    def mismatches(name: str, change: Callable[[Path], object], *arguments: str) -> list[str]:
        copy = tmp_path / name
        shutil.copytree(whole, copy)
        change(copy)
        code, found = audited(copy, *arguments)
        assert code == (1 if found["mismatches"] else 0)
        lines: list[str] = found["mismatches"]
        return lines

    assert mismatches("gone", lambda copy: (copy / final).unlink()) == [
        f"{final}, published by _kafkalite/manifests/{1:020d}.json (run {first['run']}) with 6 records, is not there"
    ]
    beside = f"{Path(final).parent}/somebody-s.parquet"
    assert mismatches("more", lambda copy: shutil.copy(copy / final, copy / beside)) == [
        f"{beside} exists, and no manifest names it"
    ]
    (size, rows) = mismatches("fewer", lambda copy: without_row(copy / final, 2))
    assert f"with {first['files'][0]['size_bytes']} bytes, has " in size
    assert "of partition 0 it has 2 records at offsets 0 to 1, the manifest 3 records at offsets 0 to 2" in rows
    (size, rows) = mismatches("cut", lambda copy: (copy / final).write_bytes((copy / final).read_bytes()[:50]))
    assert "cannot be read: " in rows
    assert "Traceback" not in rows

    def lie(copy: Path) -> None:
        """Make of a record that the reader lost one that the log never had: file and manifest agree on it."""
        without_row(copy / final, 2)

        def change(document: dict[str, Any]) -> None:
            (file,) = (each for each in document["files"] if each["final"] == final)
            file["size_bytes"], file["records"] = (copy / final).stat().st_size, 5
            file["offsets"][0] |= {"last": 1, "rows": 2}
            (range_,) = (each for each in document["ranges"] if each["partition"] == 0)
            range_ |= {"records": 5, "removed": 1}
            document["records"] = 11

        changed(copy / "_kafkalite" / "manifests" / f"{1:020d}.json", change)

    assert mismatches("lie without the log", lie) == []
    lines = mismatches("lie", lie, "--bootstrap-server", topics.bootstrap)
    where = f"{topic}-0, offsets 0 to 5, run {first['run']} (manifest 1): "
    assert lines == [
        f"{where}the log has 6 records, the manifest 5",
        f"{where}the log has 0 offsets that no batch holds, the manifest 1",
        f"{where}of day=2013-01-01/hour=00 the log has 3 records, the files by the manifest 2",
    ]


def test_what_cannot_be_compared_any_more_is_said(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = loaded(topics, tmp_path)
    folded = tmp_path.with_name(f"{tmp_path.name}-folded")
    shutil.copytree(tmp_path, folded)
    assert folding.fold(LocalFiles(folded), 0, every=2) == 2
    assert read_published(spark, str(folded), check_counts=True).count() == 24
    code, found = audited(folded, "--bootstrap-server", topics.bootstrap)
    assert (code, found["records"], [row["in_log"] for row in found["runs"]]) == (0, 24, [None, 12])
    (said,) = found["not_compared"]
    assert f"topic {topic}: with the log, because only a checkpoint has its manifest" in said
    code, found = audited(tmp_path)
    assert (code, found["not_compared"]) == (0, ["all with the log, because no --bootstrap-server is given"])
    topics.admin.delete_records({(topic, 0): 1})
    bootstrap = ("--bootstrap-server", topics.bootstrap)
    code, found = audited(tmp_path, *bootstrap)
    (said,) = found["not_compared"]
    assert (code, f"{topic}-0: offsets 0 to 5 with the log, which begins at 1 by now" in said) == (0, True)
    assert [row["in_log"] for row in found["runs"]] == [6, 12]
    topics.admin.delete_topics([topic])
    code, found = audited(tmp_path, *bootstrap)
    assert (code, [row["in_log"] for row in found["runs"]]) == (0, [None, None])
    assert f"topic {topic} with the log: " in found["not_compared"][0]
    topics.admin.create_topic(topic, 2)
    code, found = audited(tmp_path, *bootstrap)
    assert (code, len(found["not_compared"])) == (0, 2)
    assert "the topic was created again since: it had id " in found["not_compared"][0]


def test_an_audit_says_what_it_cannot_do_in_one_line(tmp_path: Path) -> None:
    for arguments, said in (
        ((), "no load run has published anything here"),
        (("--audit-topic", "t"), "--audit-topic needs --bootstrap-server"),
        (("--directory", "2013"), "'2013' is not a directory of time such as day=2026-01-31"),
    ):
        result = CliRunner().invoke(audit.main, ["--destination", str(tmp_path), *arguments])
        assert result.exit_code in (2, 5)
        assert said in result.output
        assert "Traceback" not in result.output
    assert data_files(tmp_path) == []


def test_counts_are_written_only_to_a_topic_that_is_there(topics: Topics, tmp_path: Path) -> None:
    given = ["--destination", str(tmp_path), "--bootstrap-server", topics.bootstrap, "--audit-topic", "mistyped"]
    result = CliRunner().invoke(audit.main, given)
    assert result.exit_code == 3
    assert "--audit-topic mistyped: " in result.output and "kafkalite topics create" in result.output
    assert "mistyped" not in topics.admin.list_topics()


if SOAK:

    def test_manifests_of_an_older_version_are_audited(topics: Topics, tmp_path: Path) -> None:
        topic = topics.new()
        for _ in range(2):
            topics.fill(topic, range(3), timestamp_ms=NEW_YEAR_MS)
            load(topics, topic, tmp_path)
        for path in (tmp_path / "_kafkalite" / "manifests").iterdir():
            changed(path, as_format_2)
        bootstrap = ("--bootstrap-server", topics.bootstrap)
        code, found = audited(tmp_path, *bootstrap)
        assert (code, found["mismatches"], [row["in_log"] for row in found["runs"]]) == (0, [], [3, 3])
