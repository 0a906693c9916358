"""Topic ids in a checkpoint: when they count, and how a source and the application share them."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.manifests.files import LocalFiles, local_files
from spark_kafkalite.spark.checkpoints import checkpoint_ids, checkpoint_service
from spark_kafkalite.spark.checkpoints.checkpoint_access import CheckpointIds
from spark_kafkalite.spark.checkpoints.checkpoint_ids import known_ids, offset_digest, source_name, write_ids
from spark_kafkalite.spark.checkpoints.checkpoint_service import ApplicationAccess, CheckpointService, ServiceError
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.topic_id import topic_id_of, topic_id_text

ONE, TWO, THREE = (topic_id_text(bytes([number]) * 16) or "" for number in (1, 2, 3))
NINE = {"t": {"0": 9}}


def batch(directory: Path, number: int, *offsets: object, blanks: bool = True) -> None:
    """Write a batch as our source's process does, or without blanks as Spark's own source."""
    separators = (", ", ": ") if blanks else (",", ":")
    lines = [each if isinstance(each, str) else json.dumps(each, separators=separators) for each in offsets]
    (directory / "offsets").mkdir(exist_ok=True)
    (directory / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *lines]))


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    (tmp_path / "metadata").write_text("{}")
    return local_files(str(tmp_path))


def test_an_id_is_text_and_back() -> None:
    assert topic_id_of(ONE) == b"\1" * 16
    assert topic_id_text(bytes(16)) is None
    assert [topic_id_of(text) for text in (None, "", "AAAA", ONE + "A", 5, "ä" * 22)] == [None] * 6


def test_the_ids_of_all_sources_count_together(files: LocalFiles, tmp_path: Path) -> None:
    batch(tmp_path, 7, NINE, {"u": {"0": 1}}, "-")
    write_ids(files, "a", "subscribe=t", {"t": ONE, "u": TWO})
    write_ids(files, "b", "subscribe=t,v", {"t": THREE})
    assert known_ids(files, offset_digest(NINE)) == {"t": {ONE, THREE}, "u": {TWO}}
    assert known_ids(files, offset_digest({"t": {"0": 8}})) is None


def test_only_the_newest_batches_are_where_a_query_can_go_on(files: LocalFiles, tmp_path: Path) -> None:
    for number in (8, 9, 10):
        batch(tmp_path, number, {"t": {"0": number}})
    (tmp_path / "offsets" / ".10.crc").write_text("")
    at = [number for number in (8, 9, 10) if checkpoint_ids.is_at(files, offset_digest({"t": {"0": number}}))]
    assert at == [9, 10]


def test_ids_do_not_count_behind_a_batch_of_another_source(files: LocalFiles, tmp_path: Path) -> None:
    write_ids(files, "a", "subscribe=t", {"t": ONE})
    batch(tmp_path, 1, NINE, blanks=False)
    assert known_ids(files, offset_digest(NINE)) == {}
    batch(tmp_path, 2, NINE)
    assert known_ids(files, offset_digest(NINE)) == {"t": {ONE}}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"topics": 5}', '{"topics": {"t": "short"}}', '{"topics": {"t": 5}}'])
def test_a_damaged_file_names_no_ids(files: LocalFiles, tmp_path: Path, text: str) -> None:
    batch(tmp_path, 1, NINE)
    write_ids(files, "a", "subscribe=t", {"t": ONE})
    (tmp_path / checkpoint_ids.DIRECTORY / "a").write_text(text)
    assert known_ids(files, offset_digest(NINE)) == {}


# A source ------------------------------------------------------------------------------------------------------------


def source(directory: Path | None, subscribe: str = "t") -> CheckpointIds:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": subscribe}
    if directory is not None:
        options["checkpointLocation"] = str(directory)
    return CheckpointIds(reader_options(options))


def test_a_source_remembers_what_it_has_not_written_yet(files: LocalFiles, tmp_path: Path) -> None:
    batch(tmp_path, 1, NINE)
    ids = source(tmp_path)
    ids.remember(NINE, {"t": ONE})
    name = source_name("h:1", "subscribe=t")
    path = tmp_path / checkpoint_ids.DIRECTORY / name
    assert json.loads(path.read_text()) == {"source": "subscribe=t", "topics": {"t": ONE}}
    path.unlink()
    ids.remember(NINE, {"t": ONE})
    assert not path.exists()
    # A topic that is gone for now keeps its id.
    ids.remember(NINE, {"u": TWO})
    assert source(tmp_path).known(NINE) == {"t": {ONE}, "u": {TWO}}


def test_a_restarted_source_keeps_the_ids_of_topics_that_are_gone(files: LocalFiles, tmp_path: Path) -> None:
    batch(tmp_path, 1, NINE)
    source(tmp_path).remember(NINE, {"t": ONE, "u": TWO})
    again = source(tmp_path)
    again.known(NINE)
    again.remember(NINE, {"t": THREE})
    assert source(tmp_path).known(NINE) == {"t": {THREE}, "u": {TWO}}


def test_nothing_is_written_into_the_checkpoint_of_another_query(files: LocalFiles, tmp_path: Path) -> None:
    batch(tmp_path, 1, {"t": {"0": 5}})
    ids = source(tmp_path)
    ids.remember(NINE, {"t": ONE})
    assert files.names(checkpoint_ids.DIRECTORY) == []
    with pytest.raises(SparkConditionError, match=r"checkpointLocation=.* is the checkpoint of another query"):
        ids.known(NINE)


def test_a_checkpoint_that_nothing_reaches_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert source(tmp_path / "absent").known(NINE) == {}
    assert "is no checkpoint on this host, and the application has not called install_listener" in caplog.text
    caplog.clear()
    nowhere = source(None)
    nowhere.remember(NINE, {"t": ONE})
    assert (nowhere.known(NINE), caplog.text) == ({}, "")


@pytest.mark.parametrize("text", ["v2\n{}\nname", "", "\xff"])
def test_an_offset_log_of_another_form_is_a_warning(
    files: LocalFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    batch(tmp_path, 1)
    (tmp_path / "offsets" / "1").write_bytes(text.encode("latin-1"))
    assert source(tmp_path).known(NINE) == {}
    assert "cannot read the topic ids in the query's checkpoint" in caplog.text


def test_a_file_that_cannot_be_written_is_a_warning(
    files: LocalFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch(tmp_path, 1, NINE)
    (tmp_path / "_kafkalite").write_text("a file is in the way")
    source(tmp_path).remember(NINE, {"t": ONE})
    assert "cannot write the topic ids in the query's checkpoint" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


# The application -----------------------------------------------------------------------------------------------------


class Application:
    """Queries with their checkpoints, and the service that answers their sources."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names = ["one", "two"]
        self.broken = False
        path = checkpoint_service.socket_path(os.getppid())
        path.parent.mkdir(mode=0o700)
        self.service = CheckpointService(path, self.checkpoints)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            self.service.answer_next()

    def checkpoints(self) -> Iterator[LocalFiles]:
        if self.broken:
            raise RuntimeError("the name node\nis away")
        return (local_files(str(self.directory / name)) for name in self.names)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.service.close()


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = Application(tmp_path)
    for name, offset in (("one", NINE), ("two", {"t": {"0": 5}})):
        (tmp_path / name).mkdir()
        batch(tmp_path / name, 1, offset)
    yield made
    made.end()


def test_the_application_finds_the_checkpoint_by_the_offset(application: Application, tmp_path: Path) -> None:
    source(None).remember(NINE, {"t": ONE})
    assert source(None).known(NINE) == {"t": {ONE}}
    assert source(None).known({"t": {"0": 5}}) == {}
    assert source(None).known({"t": {"0": 4}}) == {}
    assert not (tmp_path / "two" / "_kafkalite").exists()


def test_queries_at_the_same_offset_know_what_all_of_them_know(application: Application, tmp_path: Path) -> None:
    batch(tmp_path / "two", 2, NINE)
    write_ids(local_files(str(tmp_path / "one")), "a", "subscribe=t", {"t": ONE, "u": ONE})
    assert source(None).known(NINE) == {}
    write_ids(local_files(str(tmp_path / "two")), "a", "subscribe=t", {"t": TWO})
    assert source(None).known(NINE) == {"t": {ONE, TWO}}
    source(None).remember(NINE, {"t": THREE})
    assert [len(list((tmp_path / name / checkpoint_ids.DIRECTORY).iterdir())) for name in ("one", "two")] == [2, 2]


def test_a_checkpoint_that_cannot_be_read_is_no_obstacle_for_other_queries(
    application: Application, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "two" / "offsets" / "1").write_text("v2\n{}\nname")
    source(None).remember(NINE, {"t": ONE})
    assert source(None).known(NINE) == {"t": {ONE}}
    assert source(None).known({"t": {"0": 5}}) == {}
    assert "offsets/1 is not v1 of Spark's offset log" in caplog.text


def test_an_error_of_the_application_is_a_warning_of_the_source(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    application.broken = True
    access = ApplicationAccess.of_this_process()
    assert access is not None
    with pytest.raises(ServiceError, match=r"RuntimeError: the name node$"):
        access.known("digest")
    assert source(None).known(NINE) == {}
    assert "cannot read the topic ids in the query's checkpoint: RuntimeError: the name node; the query" in caplog.text


def test_an_application_that_was_killed_is_none(application: Application, caplog: pytest.LogCaptureFixture) -> None:
    path = checkpoint_service.socket_path(os.getppid())
    application.end()
    path.touch()
    assert source(None).known(NINE) == {}
    assert caplog.text == ""
