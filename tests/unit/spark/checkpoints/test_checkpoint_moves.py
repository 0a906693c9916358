"""Checkpoints as files, and what a move writes into them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.checkpoints.checkpoint_files import QueryCheckpoint, QueryCheckpointError
from spark_kafkalite.spark.checkpoints.checkpoint_moves import QUIET_MS, carry_out, moved, recently_changed, standing
from spark_kafkalite.spark.checkpoints.checkpoint_moves import without_initial as change_without_initial

NOW_MS = 1_800_000_000_000
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
FILE_SOURCE = '{"logOffset":3}'
METADATA = '{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"2"}}'


class Written:
    """A checkpoint's directory, as a query leaves it that wrote last an hour before NOW_MS."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def batch(self, batch_id: int, *sources: str | dict[str, Any], finished: bool = True) -> "Written":
        lines = [each if isinstance(each, str) else json.dumps(each) for each in sources]
        self._write("offsets", batch_id, "\n".join(("v1", METADATA, *lines)))
        if finished:
            self._write("commits", batch_id, 'v1\n{"nextBatchWatermarkMs":9}')
        return self

    def _write(self, log: str, batch_id: int, text: str) -> None:
        path = self.root / log / str(batch_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name(f".{batch_id}.crc").write_bytes(b"crc")
        self.age()

    def age(self, at_ms: int = NOW_MS - 3_600_000) -> None:
        for path in self.root.rglob("*"):
            os.utime(path, (at_ms / 1000, at_ms / 1000))

    def open(self) -> QueryCheckpoint:
        return QueryCheckpoint.open(LocalFiles(self.root))

    def sources(self, batch_id: int) -> list[Any]:
        version, _, *lines = (self.root / "offsets" / str(batch_id)).read_text().split("\n")
        assert version == "v1"
        return [json.loads(each) for each in lines]

    def tree(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "checkpoint")


def kafka(*offsets: int) -> dict[str, dict[str, int]]:
    return {"t": {str(number): offset for number, offset in enumerate(offsets)}}


def execute(
    written: Written,
    positions: dict[int, dict[TopicPartition, int]],
    *,
    drop_planned: bool = False,
    now_ms: int = NOW_MS,
) -> Path:
    checkpoint = written.open()
    change = moved(checkpoint, positions, drop_planned=drop_planned)
    return Path(carry_out(checkpoint, change, now_ms).removeprefix("file://"))


def test_a_move_adds_an_empty_batch_behind_the_last_one(written: Written) -> None:
    written.batch(0, kafka(4, 4)).batch(1, kafka(8, 9))
    before = (written.root / "offsets" / "1").read_text()
    copy = execute(written, {0: {ZERO: 2}})
    # Batch 2 begins where batch 1 ends: there is nothing in it. Nobody but the query marks it as finished.
    assert written.sources(1) == written.sources(2) == [kafka(2, 9)]
    # Checksums of what was replaced are gone: Hadoop's local file system would refuse the files.
    assert written.tree() == [
        *("commits/.0.crc", "commits/.1.crc", "commits/0", "commits/1"),
        *("offsets/.0.crc", "offsets/0", "offsets/1", "offsets/2"),
    ]
    assert (copy / "offsets" / "1").read_text() == before
    assert copy.parent == written.root.parent
    assert copy.name.startswith("checkpoint.copy-2027")
    after = written.open()
    assert (after.committed, after.planned) == (1, 2)
    assert json.loads(after.batch(2).metadata) == {**json.loads(METADATA), "batchWatermarkMs": 9}


def test_other_sources_and_partitions_stay_as_they_were_to_the_letter(written: Written) -> None:
    idle = '{"$initial":{"u":{"0":1}},"u":{"0":2}}'
    written.batch(0, FILE_SOURCE, kafka(8, 9), idle, "-")
    execute(written, {1: {ONE: 3}})
    for batch_id in (0, 1):
        lines = (written.root / "offsets" / str(batch_id)).read_text().split("\n")
        assert lines[2:] == [FILE_SOURCE, '{"t": {"0": 8, "1": 3}}', idle, "-"]


def test_the_first_batch_loses_its_initial_offsets_when_it_is_moved(written: Written) -> None:
    written.batch(0, {"$initial": kafka(4), **kafka(8)})
    execute(written, {0: {ZERO: 5}})
    assert written.sources(0) == written.sources(1) == [kafka(5)]


def test_a_planned_batch_is_emptied_and_its_number_is_not_used_again(written: Written) -> None:
    written.batch(0, kafka(4)).batch(1, kafka(8)).batch(2, kafka(20), finished=False)
    with pytest.raises(QueryCheckpointError, match=r"offsets/2: batch 2 is planned .* --drop-planned"):
        execute(written, {0: {ZERO: 5}})
    copy = execute(written, {}, drop_planned=True)
    assert (written.sources(1), written.sources(2)) == ([kafka(8)], [kafka(8)])
    assert [path.name for path in copy.rglob("?")] == ["2"]
    written.age()
    copy = execute(written, {0: {ZERO: 5}}, drop_planned=True, now_ms=NOW_MS + 1)
    assert (written.sources(1), written.sources(2)) == ([kafka(5)], [kafka(5)])
    assert sorted(path.name for path in copy.rglob("?")) == ["1", "2"]
    assert (written.open().committed, written.open().planned) == (1, 2)


def test_a_batch_that_a_move_has_left_is_moved_again_without_leave(written: Written) -> None:
    written.batch(0, kafka(4))
    execute(written, {0: {ZERO: 1}})
    written.age()
    execute(written, {0: {ZERO: 3}}, now_ms=NOW_MS + 1)
    assert (written.sources(0), written.sources(1), written.open().planned) == ([kafka(3)], [kafka(3)], 1)


def test_a_first_batch_that_never_finished_begins_where_the_query_began(written: Written) -> None:
    written.batch(0, {"$initial": kafka(4), **kafka(8)}, finished=False)
    assert standing(written.open())[0].offsets == {ZERO: 4}
    execute(written, {}, drop_planned=True)
    assert written.sources(0) == [{"$initial": kafka(4), **kafka(4)}]
    written.age()
    execute(written, {0: {ZERO: 1}}, drop_planned=True, now_ms=NOW_MS + 1)
    assert written.sources(0) == [{"$initial": kafka(1), **kafka(1)}]


def test_a_first_batch_of_sparks_own_source_does_not_say_where_it_began(written: Written) -> None:
    written.batch(0, kafka(4), finished=False)
    with pytest.raises(QueryCheckpointError, match="offsets/0: no batch was ever finished, and the offset of source 0"):
        standing(written.open())


def test_state_is_not_taken_back(written: Written) -> None:
    written.batch(0, kafka(4))
    (written.root / "state" / "0").mkdir(parents=True)
    with pytest.raises(QueryCheckpointError, match="checkpoint/state: the query keeps state"):
        execute(written, {0: {ZERO: 1}})


def test_a_checkpoint_that_changed_within_a_minute_is_left_alone(written: Written) -> None:
    written.batch(0, kafka(4))
    before = written.tree()
    for age_ms, told in ((QUIET_MS - 1000, "written 59 s ago"), (-9_000, "written 9 s ahead of this host's clock")):
        written.age(NOW_MS - age_ms)
        with pytest.raises(QueryCheckpointError, match=told):
            execute(written, {0: {ZERO: 1}})
    assert written.tree() == before
    assert written.sources(0) == [kafka(4)]
    assert not list(written.root.parent.glob("*.copy-*"))
    written.age(NOW_MS - QUIET_MS)
    assert recently_changed(written.open(), NOW_MS) is None


def test_whoever_plans_the_next_batch_first_has_it(written: Written) -> None:
    written.batch(0, kafka(4))
    checkpoint = written.open()
    change = moved(checkpoint, {0: {ZERO: 1}}, drop_planned=False)
    # The query, which has been idle for an hour, wakes up.
    written.batch(1, kafka(6), finished=False)
    with pytest.raises(QueryCheckpointError, match="offsets/1: written by the query meanwhile: it is running"):
        carry_out(checkpoint, change, NOW_MS)
    assert (written.sources(0), written.sources(1)) == ([kafka(4)], [kafka(6)])


def test_a_query_that_finishes_the_planned_batch_meanwhile_is_noticed(written: Written) -> None:
    written.batch(0, kafka(4)).batch(1, kafka(6), finished=False)
    checkpoint = written.open()
    change = moved(checkpoint, {}, drop_planned=True)
    written.batch(1, kafka(6))
    with pytest.raises(QueryCheckpointError, match="commits/1: written by the query meanwhile"):
        carry_out(checkpoint, change, NOW_MS)


def test_what_only_our_source_reads_is_taken_out_of_the_last_batch(written: Written) -> None:
    written.batch(0, {"$initial": kafka(1), **kafka(4)}, FILE_SOURCE)
    checkpoint = written.open()
    carry_out(checkpoint, change_without_initial(checkpoint), NOW_MS)
    assert written.sources(0) == [kafka(4), json.loads(FILE_SOURCE)]
    assert not change_without_initial(written.open()).replaced
    written.batch(1, kafka(6), FILE_SOURCE, finished=False)
    with pytest.raises(QueryCheckpointError, match="offsets/1: batch 1 is planned and not finished; run the"):
        change_without_initial(written.open())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "offsets/1: damaged, '' is not v1"),
        ("v1", "offsets/1: damaged, 'v1' is not v1, a line of metadata, and a line for each source"),
        (f"v1\n{METADATA}", "damaged"),
        (f"v1\n{METADATA}\n" + '{"t":{"0":', "damaged"),
        (f"v1\nno json\n{json.dumps(kafka(4))}", "damaged"),
        (f"v2\n{METADATA}\n{json.dumps(kafka(4))}", "offsets/1: written in version v2"),
        ("v1\n\udcff", "damaged, it is not UTF-8"),
    ],
)
def test_a_damaged_batch_is_named_with_a_remedy(written: Written, text: str, told: str) -> None:
    written.batch(0, kafka(4)).batch(1, kafka(8))
    (written.root / "offsets" / "1").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(QueryCheckpointError) as caught:
        written.open().batch(1)
    assert told in str(caught.value)
    if "v2" not in text:
        assert "'kafkalite offsets export --checkpoint DIR --batch N'" in str(caught.value)


def test_what_is_no_checkpoint_or_lacks_files_is_told_apart(written: Written) -> None:
    with pytest.raises(QueryCheckpointError, match="no checkpoint of a streaming query, it has no directory offsets"):
        written.open()
    (written.root / "offsets").mkdir(parents=True)
    with pytest.raises(QueryCheckpointError, match="has planned no batch yet"):
        written.open()
    written.batch(0, kafka(1)).batch(1, kafka(2))
    with pytest.raises(QueryCheckpointError, match="offsets/7: there is no such batch; the checkpoint holds 0 to 1"):
        written.open().batch(7)
    (written.root / "commits" / "1").write_text("v1")
    with pytest.raises(QueryCheckpointError, match="commits/1: damaged"):
        execute(written, {0: {ZERO: 0}})
    (written.root / "offsets" / "1").unlink()
    with pytest.raises(QueryCheckpointError, match="offsets/1: does not exist, but commits/1 marks the batch"):
        written.open()
    (written.root / "commits" / "1").unlink()
    written.batch(2, kafka(3), finished=False)
    with pytest.raises(QueryCheckpointError, match="offsets/2: more than one batch is planned"):
        written.open()


def test_a_query_is_named_where_its_metadata_is_there(written: Written) -> None:
    written.batch(0, kafka(1))
    assert written.open().query_id is None
    (written.root / "metadata").write_text('{"id":"an-id"}')
    assert written.open().query_id == "an-id"
