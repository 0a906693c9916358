"""``kafkalite offsets`` where a group and a streaming query meet: their offsets compared, and a group's as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_kafkalite import Admin, Producer
from spark_kafkalite.cli.main import run
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader

RECORDS = 10
_numbers = count()
Command = Callable[..., tuple[str, str]]


@pytest.fixture
def kafkalite(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    def kafkalite(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        ended = run(["offsets", *arguments, "--bootstrap-server", bootstrap])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return out, err

    return kafkalite


@pytest.fixture
def group() -> str:
    return f"hourly-{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin, bootstrap: str, group: str) -> str:
    """Two partitions of ten records, and a group that has committed 4 and 7."""
    name = f"topic-of-{group}"
    admin.create_topic(name, 2, 1)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(2 * RECORDS):
            producer.send(name, b"%d" % number, partition=number % 2)
    admin.alter_group_offsets(group, {TopicPartition(name, 0): 4, TopicPartition(name, 1): 7})
    return name


@pytest.fixture
def checkpoint(tmp_path: Path, topic: str) -> Path:
    """Two finished batches of a query over the topic and a second source; the group stands where the first ended."""
    root = tmp_path / "checkpoint"
    for log in ("offsets", "commits"):
        (root / log).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"the-query"}')
    for batch_id, offsets in enumerate(({"0": 4, "1": 7}, {"0": 9, "1": 7})):
        lines = ("v1", "{}", json.dumps({topic: offsets}), json.dumps({"other": {"0": 3}}))
        (root / "offsets" / str(batch_id)).write_text("\n".join(lines))
        (root / "commits" / str(batch_id)).write_text("v1\n{}")
    return root


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()[1:]]


def test_a_query_is_compared_with_a_group(
    kafkalite: Command, admin: Admin, checkpoint: Path, topic: str, group: str
) -> None:
    diff = ("diff", "--checkpoint", str(checkpoint), "--with-group", group)
    out, _ = kafkalite(*diff, "--topic", topic, code=1)
    assert out.splitlines()[0].split("  ")[-1].strip() == "DIFFERENCE"
    assert f"OFFSET IN group {group}" in out and "OFFSET IN batch 1" in out
    assert rows(out) == [["0", topic, "0", "4", "9", "+5"]]
    # What the group has not committed differs too; its offsets of topics that the query does not read do not count.
    admin.create_topic(f"{topic}-unread", 1, 1)
    admin.alter_group_offsets(group, {TopicPartition(f"{topic}-unread", 0): 0})
    out, _ = kafkalite(*diff, "--json", code=1)
    names = (f"group {group}", "batch 1")
    assert [(each["source"], each["topic"], *(each[name] for name in names)) for each in json.loads(out)] == [
        (0, topic, 4, 9),
        (1, "other", None, 3),
    ]
    out, _ = kafkalite(*diff, "--topic", topic, "--batch", "0")
    assert out == f"The offsets in group {group} and batch 0 are the same.\n"
    _, err = kafkalite("diff", "--checkpoint", str(checkpoint), "--with-group", "nobody", code=1)
    assert "there is no group 'nobody'" in err


def test_a_groups_offsets_are_exported_as_a_new_query_takes_them(
    kafkalite: Command, bootstrap: str, topic: str, group: str
) -> None:
    out, _ = kafkalite("export", "--group", group)
    assert out == f'{{"{topic}":{{"0":4,"1":7}}}}\n'
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": out}
    tasks = KafkaliteBatchReader(reader_options(given), READ_SCHEMA).partitions()
    assert sorted(str(each) for task in tasks for each in task.ranges) == [f"{topic}-0[4, 10)", f"{topic}-1[7, 10)"]
    out, _ = kafkalite("export", "--group", group, "--topic", f"{topic}:1")
    assert out == f'{{"{topic}":{{"1":7}}}}\n'
    _, err = kafkalite("export", "--group", group, "--topic", "none", code=1)
    assert f"group '{group}' has no such offsets" in err
    _, err = kafkalite("export", "--group", "nobody", code=1)
    assert "there is no group 'nobody'" in err
    for option in (("--batch", "1"), ("--source", "0")):
        _, err = kafkalite("export", "--group", group, *option, code=2)
        assert option[0] in err and "--checkpoint" in err
