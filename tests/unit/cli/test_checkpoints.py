"""``kafkalite offsets ... --checkpoint`` where no broker is needed; tests/spark/test_checkpoints.py has one."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.cli.main import run

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{}}'
Command = Callable[..., tuple[str, str]]


@pytest.fixture
def kafkalite(capsys: pytest.CaptureFixture[str]) -> Command:
    def kafkalite(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        ended = run(["offsets", *arguments])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return out, err

    return kafkalite


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Three batches of two Kafka sources and another one; the last is planned and not finished."""
    root = tmp_path / "checkpoint"
    for log in ("offsets", "commits"):
        (root / log).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"the-query"}')
    write(root, 0, {"$initial": {"a": {"0": 1}}, "a": {"0": 2, "1": 0}}, {"b": {"0": 5}}, {"logOffset": 0})
    write(root, 1, {"a": {"0": 4, "1": 3}}, {"b": {"0": 5}}, {"logOffset": 0})
    write(root, 2, {"a": {"0": 9, "1": 3}}, {"b": {"0": 7}}, {"logOffset": 1})
    (root / "commits" / "2").unlink()
    return root


def write(root: Path, batch_id: int, *sources: Any) -> None:
    lines = "\n".join(("v1", METADATA, *(json.dumps(each) for each in sources)))
    (root / "offsets" / str(batch_id)).write_text(lines)
    (root / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    for path in root.rglob("*"):
        os.utime(path, (1, 1))


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_both_ends_are_shown_and_other_sources_named(kafkalite: Command, checkpoint: Path) -> None:
    out, err = kafkalite("show", "--checkpoint", str(checkpoint))
    assert rows(out) == [
        ["SOURCE", "TOPIC", "PARTITION", "COMMITTED-OFFSET", "PLANNED-OFFSET"],
        ["0", "a", "0", "4", "9"],
        ["0", "a", "1", "3", "3"],
        ["1", "b", "0", "5", "7"],
    ]
    assert "query the-query: batch 1 is finished, batch 2 is planned and not finished" in err
    assert 'source 2 is not Kafka\'s and is left alone; its offset is {"logOffset": 0}' in err
    out, _ = kafkalite("show", "--checkpoint", f"file://{checkpoint}", "--topic", "b", "--json")
    assert json.loads(out) == {
        "query_id": "the-query",
        "committed_batch": 1,
        "planned_batch": 2,
        "offsets": [{"source": 1, "topic": "b", "partition": 0, "committed_offset": 5, "planned_offset": 7}],
        "other_sources": [{"source": 2, "offset": '{"logOffset": 0}'}],
    }


def test_batches_are_compared(kafkalite: Command, checkpoint: Path) -> None:
    out, _ = kafkalite("diff", "--checkpoint", str(checkpoint), code=1)
    assert rows(out)[1:] == [["0", "a", "0", "4", "9", "+5"], ["1", "b", "0", "5", "7", "+2"]]
    out, _ = kafkalite("diff", "--checkpoint", str(checkpoint), "--batch", "1", "--with-batch", "0", "--json", code=1)
    assert json.loads(out) == [
        {"source": 0, "topic": "a", "partition": 0, "batch 0": 2, "batch 1": 4},
        {"source": 0, "topic": "a", "partition": 1, "batch 0": 0, "batch 1": 3},
    ]
    out, _ = kafkalite("diff", "--checkpoint", str(checkpoint), "--batch", "1", "--with-batch", "0", "--topic", "b")
    assert out == "The offsets in batch 0 and batch 1 are the same.\n"


def test_offsets_are_exported_for_a_new_query(kafkalite: Command, checkpoint: Path) -> None:
    out, _ = kafkalite("export", "--checkpoint", str(checkpoint))
    assert out == '{"a":{"0":4,"1":3}}\n{"b":{"0":5}}\n'
    out, _ = kafkalite("export", "--checkpoint", str(checkpoint), "--source", "0", "--batch", "0")
    assert out == '{"a":{"0":2,"1":0}}\n'
    _, err = kafkalite("export", "--checkpoint", str(checkpoint), "--source", "2", code=2)
    assert "--source 2: not a Kafka source of" in err
    assert err.endswith("; those are 0, 1\n")


def test_a_planned_batch_is_dropped_when_that_is_executed(kafkalite: Command, checkpoint: Path) -> None:
    planned = (checkpoint / "offsets" / "2").read_text()
    drop = ("rewind", "--checkpoint", str(checkpoint), "--drop-planned", "--json")
    out, err = kafkalite(*drop)
    assert json.loads(out) == {"executed": False, "empty_batch": 2, "copy": None, "offsets": []}
    assert "this was a dry run" in err
    assert (checkpoint / "offsets" / "2").read_text() == planned
    out, err = kafkalite(*drop, "--execute")
    copy = Path(json.loads(out)["copy"].removeprefix("file://"))
    assert f"copies of the files that were replaced are in file://{copy}" in err
    assert (copy / "offsets" / "2").read_text() == planned
    _, err = kafkalite(*drop, "--execute", code=1)
    assert "so its query may be running; stop the query" in err
    _, err = kafkalite(*drop)
    assert "--execute would be refused" in err


def test_the_last_batch_is_rewritten_for_sparks_own_source(kafkalite: Command, checkpoint: Path) -> None:
    export = ("export", "--checkpoint", str(checkpoint), "--to-kafka")
    _, err = kafkalite(*export, code=1)
    assert "offsets/2: batch 2 is planned and not finished" in err
    for batch_id in (1, 2):
        (checkpoint / "offsets" / str(batch_id)).unlink()
    (checkpoint / "commits" / "1").unlink()
    out, err = kafkalite(*export)
    assert (out, "this was a dry run" in err) == ('{"a":{"0":2,"1":0}}\n{"b":{"0":5}}\n', True)
    assert "$initial" in (checkpoint / "offsets" / "0").read_text()
    _, err = kafkalite(*export, "--execute")
    assert "a copy of the file is in" in err
    assert "$initial" not in (checkpoint / "offsets" / "0").read_text()
    _, err = kafkalite(*export, "--execute")
    assert 'format("kafka") can go on from' in err


def test_wrong_usage_is_told(kafkalite: Command, checkpoint: Path) -> None:
    here = ("--checkpoint", str(checkpoint))
    for arguments, told in (
        (("show",), "name the group with --group NAME, or the query with --checkpoint DIR"),
        (("show", "--group", "g", *here), "name the group with --group NAME, or the query with --checkpoint DIR"),
        (("show", *here, "--zookeeper", "127.0.0.1:1"), "--checkpoint and --zookeeper exclude each other"),
        (("diff", "--group", "g", "--batch", "1"), "--batch needs --checkpoint DIR"),
        (("diff", *here, "--with-batch", "1", "--with-group", "g"), "--with-batch and --with-group exclude each other"),
        (("rewind", "--group", "g", "--all-topics", "--to-earliest", "--drop-planned"), "--drop-planned needs"),
        (("rewind", *here, "--all-topics"), "name a new position"),
        (("rewind", *here, "--drop-planned", "--all-topics"), "--drop-planned alone moves no partition"),
        (("export", "--group", "g", "--to-kafka"), "--to-kafka needs --checkpoint DIR"),
        (("export", *here, "--execute"), "--execute and --dry-run belong to --to-kafka"),
        (("export", *here, "--to-kafka", "--batch", "1"), "--to-kafka is for the whole checkpoint"),
    ):
        _, err = kafkalite(*arguments, code=2)
        assert told in err, arguments
    # Before any broker is asked.
    _, err = kafkalite("rewind", *here, "--drop-planned", "--topic", "c", "--to-earliest", code=2)
    assert "--topic c: the query of" in err
    _, err = kafkalite("show", "--checkpoint", str(checkpoint / "offsets"), code=1)
    assert "no checkpoint of a streaming query" in err
