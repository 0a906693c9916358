"""Records that are gone while the broker was stopped: what a start says, and that the log goes on behind them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite.errors import KafkaStorageError, OffsetOutOfRange
from spark_kafkalite.log.files.awaiting_logs import AWAITS_TOPIC_FILE
from spark_kafkalite.log.files.fs import replace_file, write_whole
from spark_kafkalite.log.files.offset_checkpoint import OffsetCheckpoint
from spark_kafkalite.log.files.small_files import CheckpointError, write_own_starts
from spark_kafkalite.log.loading.holes import StoppedLog, marker_text, read_marker
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_to
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.kernel import check_crc
from spark_kafkalite.records.layout import MAX_INT32
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import end_of, header_of, make_batch, values_of

KEY = TopicPartition("t", 0)
OTHER = TopicPartition("other", 0)
ID = bytes(range(16))
# A batch of one record of 60 bytes has 131, so a segment takes two.
SETTINGS = {"segment.bytes": "300"}
MARKER = "/data/.kafka_cleanshutdown"


def segment(base: int) -> str:
    return f"/data/t-0/{base:020d}.log"


def append(log: PartitionLog, count: int = 1, **batch: int) -> None:
    for _ in range(count):
        data = make_batch([b"x" * 60], **batch)  # type: ignore[arg-type]
        log.append_as_leader(data, header_of(data), 0)


def offsets(log: PartitionLog) -> list[int]:
    """Read as a consumer of the only replica does, whose position moves by the ends of batches."""
    log.local.known_damage.accept()
    found: list[int] = []
    position = int(log.log_start_offset)
    while (piece := log.read(position, 1 << 20, log.log_end_offset)) is not None:
        found += [offset for offset, _ in values_of(piece.read())]
        position = end_of(piece.read())
    assert position == log.log_end_offset, f"a reader stays at {position} for ever"
    return found


@pytest.fixture
def start(clock: ManualClock, fs: MemoryFs) -> Callable[..., LogManager]:
    running: list[LogManager] = []

    def starter(on: MemoryFs | None = None, **settings: str) -> LogManager:
        while running:
            running.pop().abandon()
        config = TopicConfig.from_properties(SETTINGS | {name.replace("_", "."): it for name, it in settings.items()})
        manager = LogManager(on or fs, ["/data"], clock, config_of=lambda _: config)
        manager.open()
        manager.load()
        running.append(manager)
        return manager

    return starter


@pytest.fixture
def stopped(start: Callable[..., LogManager], fs: MemoryFs) -> Iterator[MemoryFs]:
    """Offsets 0 to 9 in segments of two, and another log, after a clean stop."""
    manager = start()
    append(manager.create(KEY, ID), 10)
    append(manager.create(OTHER, ID), 3)
    assert [each.base_offset for each in manager.logs[KEY].segments] == [0, 2, 4, 6, 8]
    manager.shutdown()
    yield fs


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def remove(fs: MemoryFs, base: int) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        fs.unlink(segment(base).removesuffix(".log") + suffix)


def cut(fs: MemoryFs, base: int, size_bytes: int) -> None:
    fs.open(segment(base)).truncate(size_bytes)


@pytest.mark.parametrize("first_touch", ["append", "time", "none"])
@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda fs: remove(fs, 8), (8, 9)),
        (lambda fs: fs.unlink(segment(8)), (8, 9)),
        (lambda fs: cut(fs, 8, 0), (8, 9)),
        (lambda fs: cut(fs, 8, 131), (9, 9)),
        (lambda fs: cut(fs, 8, 140), (9, 9)),
        (lambda fs: cut(fs, 8, 100), (8, 9)),
        (lambda fs: [remove(fs, 8), remove(fs, 6)], (6, 9)),
        (lambda fs: [remove(fs, base) for base in range(0, 10, 2)], (0, 9)),
        # Of the same length, so only who reads it finds out.
        (lambda fs: write_whole(fs.open(segment(8)), bytes(131), 131), (9, 9)),
        (lambda fs: write_whole(fs.open(segment(8)), bytes(262), 0), (8, 9)),
    ],
)
def test_end_that_is_gone_costs_its_records_and_nothing_else(
    start: Callable[..., LogManager],
    stopped: MemoryFs,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[MemoryFs], object],
    lost: tuple[int, int],
    first_touch: str,
) -> None:
    damage(stopped)
    manager = start()
    log = manager.logs[KEY]
    assert log.log_end_offset == 10, "an offset is never given twice"
    if first_touch == "time":
        log.offset_of_max_timestamp(10)
        assert offsets(log) == [*range(lost[0])], "a reader comes to the end before anybody appends"
    if first_touch != "none":
        append(log)
        found = lines(caplog)
        assert len(found) >= 1
        told = [line for line in found if f"{lost[0]} to {lost[1]} (" in line or "6 to 7 (" in line]
        assert told and all("t-0: " in line and "offsets are missing" in line for line in told)
        assert offsets(log) == [*range(lost[0]), 10]
        assert log.failure is None and manager.directories["/data"].offline is None
        append(manager.logs[OTHER])
    killed = stopped.crash(CrashMode.PROCESS)
    manager.shutdown()
    caplog.clear()
    again = start()
    append(again.logs[KEY])
    assert again.was_clean
    if first_touch != "none":
        assert offsets(again.logs[KEY]) == [*range(lost[0]), 10, 11]
        assert lines(caplog) == [], "a hole is told of once"
        # What was appended since survives a crash before anything was flushed, too.
        again = start(on=killed)
        assert offsets(again.logs[KEY]) == [*range(lost[0]), 10]
        assert again.logs[KEY].log_end_offset == 11


@pytest.mark.parametrize(
    ("damage", "holes"),
    [
        (lambda fs: remove(fs, 4), ["4 to 5"]),
        (lambda fs: fs.unlink(segment(4)), ["4 to 5"]),
        (lambda fs: cut(fs, 4, 0), ["4 to 5"]),
        (lambda fs: cut(fs, 4, 131), ["5 to 5"]),
        (lambda fs: cut(fs, 4, 180), ["5 to 5"]),
        (lambda fs: [remove(fs, 2), cut(fs, 6, 131)], ["2 to 3", "7 to 7"]),
        (lambda fs: [remove(fs, 2), remove(fs, 4)], ["2 to 3", "4 to 5"]),
    ],
)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_hole_in_the_middle_is_told_of_at_the_start(
    start: Callable[..., LogManager],
    stopped: MemoryFs,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[MemoryFs], object],
    holes: list[str],
    policy: str,
) -> None:
    damage(stopped)
    log = start(cleanup_policy=policy).logs[KEY]
    count = sum(int(last) - int(first) + 1 for first, last in (hole.split(" to ") for hole in holes))
    (line,) = lines(caplog)
    assert line.startswith(f"t-0: {count} offsets are missing in /data/t-0: ")
    assert all(f"{hole} (" in line for hole in holes)
    missing = {offset for hole in holes for offset in range(int(hole.split(" ")[0]), int(hole.split(" ")[2]) + 1)}
    assert offsets(log) == [offset for offset in range(10) if offset not in missing]
    append(log)
    assert log.log_end_offset == 11


@pytest.mark.parametrize("clean", [True, False])
def test_holes_without_a_list_of_segments_are_found_by_reading(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    """As Apache Kafka, an older broker or a crash leaves a directory."""
    stopped.unlink(MARKER)
    if clean:
        write_whole(stopped.open(MARKER, create=True), b'{"version":0,"brokerEpoch":7}')
    remove(stopped, 2)
    cut(stopped, 4, 131)
    manager = start()
    (line,) = lines(caplog)
    assert "t-0: 3 offsets are missing" in line and "2 to 3 (" in line and "5 to 5 (" in line
    assert offsets(manager.logs[KEY]) == [0, 1, 4, 6, 7, 8, 9]


def test_gaps_of_compaction_are_no_holes(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.unlink(MARKER)
    remove(stopped, 2)
    start(cleanup_policy="compact")
    assert lines(caplog) == []
    cleaned = OffsetCheckpoint(stopped, "/data/cleaner-offset-checkpoint")
    cleaned.set({KEY: 4})
    cleaned.write()
    start()
    assert lines(caplog) == []


def test_directory_that_has_vanished(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.rename("/data/t-0", "/elsewhere")
    manager = start()
    (line,) = lines(caplog)
    assert "t-0: 10 offsets are missing in /data/t-0: 0 to 9 (the directory is missing)" in line
    log = manager.create(KEY, ID)
    assert (log.log_start_offset, log.log_end_offset) == (10, 10), "an offset is never given twice"
    append(log)
    manager.shutdown()
    caplog.clear()
    assert offsets(start().logs[KEY]) == [10]
    assert lines(caplog) == []


def crashed(fs: MemoryFs) -> None:
    """Make the clean stop of ``stopped`` a crash, which knows its checkpoints."""
    fs.unlink(MARKER)
    high_watermarks = OffsetCheckpoint(fs, "/data/replication-offset-checkpoint")
    high_watermarks.set({KEY: 10})
    high_watermarks.write()


def test_all_segments_are_gone_after_a_crash(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    crashed(stopped)
    for base in range(0, 10, 2):
        remove(stopped, base)
    log = start().logs[KEY]
    (line,) = lines(caplog)
    assert "t-0: 10 offsets are missing in /data/t-0: 0 to 9 (all segments are missing)" in line
    append(log)
    assert (log.log_start_offset, log.log_end_offset, offsets(log)) == (10, 11, [10])
    caplog.clear()
    assert offsets(start().logs[KEY]) == [10]
    assert lines(caplog) == []


@pytest.mark.parametrize("file", ["recovery-point-offset-checkpoint", "t-0/00000000000000000010.snapshot"])
def test_any_file_tells_where_a_log_without_segments_had_come_to(
    start: Callable[..., LogManager], stopped: MemoryFs, file: str
) -> None:
    stopped.unlink(MARKER)
    for name in ("recovery-point-offset-checkpoint", "t-0/00000000000000000010.snapshot"):
        if name != file:
            stopped.unlink(f"/data/{name}")
    for base in range(0, 10, 2):
        remove(stopped, base)
    assert start().logs[KEY].log_end_offset == 10


@pytest.mark.parametrize("gone", [1, 4])
def test_first_segments_are_gone_after_a_crash(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture, gone: int
) -> None:
    crashed(stopped)
    for number in range(gone):
        remove(stopped, 2 * number)
    log = start().logs[KEY]
    (line,) = lines(caplog)
    text = f"t-0: {2 * gone} offsets are missing in /data/t-0: 0 to {2 * gone - 1} (the segments before the first one"
    assert text in line
    # They were not deleted: other replicas keep theirs, and readers do not pass over them before they are accepted.
    assert (log.log_start_offset, log.undeleted_start_offset) == (2 * gone, 0)
    with pytest.raises(KafkaStorageError, match="offset 1 is among 0 to"):
        log.read(1, 100, 10)
    with pytest.raises(OffsetOutOfRange):
        log.read(-1, 100, 10)
    log.local.known_damage.accept(1, 2 * gone)
    found = log.read(1, 100, 10)
    assert found is not None and found.start_offset == 2 * gone
    assert offsets(log) == list(range(2 * gone, 10))
    assert log.undeleted_start_offset == 2 * gone
    caplog.clear()
    start()
    assert lines(caplog) == []


def test_end_that_is_gone_after_a_crash_is_not_given_again(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    crashed(stopped)
    cut(stopped, 8, 131)
    log = start().logs[KEY]
    (line,) = lines(caplog)
    assert "t-0: 1 offsets are missing in /data/t-0: 9 to 9 (00000000000000000008.log: cut at position" in line
    append(log)
    assert offsets(log) == [*range(9), 10]


def test_records_that_were_deleted_are_not_missed_after_a_crash(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start()
    log = manager.logs[KEY]
    job = manager.log_starts.promise({log: 5})
    job.run()
    assert not manager.log_starts.finish(job)
    assert log.hidden_segments == 2
    log.drop_hidden(2)
    for path in list(stopped.files()):
        if path.endswith(".deleted"):
            stopped.unlink(path)
    assert start().logs[KEY].log_start_offset == 5
    assert lines(caplog) == []


@pytest.mark.parametrize("file", ["recovery-point-offset-checkpoint", None])
def test_directory_that_has_vanished_is_known_by_any_file(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture, file: str | None
) -> None:
    if file:
        write_whole(stopped.open(f"/data/{file}"), bytes(100))
    else:
        crashed(stopped)
    for path in list(stopped.files()):
        if path.startswith("/data/t-0/"):
            stopped.unlink(path)
    stopped.remove_directory("/data/t-0")
    manager = start()
    (line,) = lines(caplog)
    # The marker names the last segment and how long it was, not where it ended.
    end = 9 if file else 10
    assert f"{end} offsets are missing in /data/t-0: 0 to {end - 1} (the directory is missing)" in line
    assert manager.create(KEY, ID).log_end_offset == end


def test_logs_whose_directories_were_exchanged_are_left_as_they_are(
    clock: ManualClock, start: Callable[..., LogManager], fs: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    ids = {"t": ID, "other": bytes(reversed(ID))}
    manager = start()
    for key, count in ((KEY, 4), (OTHER, 10)):
        append(manager.create(key, ids[key.topic]), count)
    manager.shutdown()

    def rename(old: str, new: str) -> None:
        fs.rename(f"/data/{old}", f"/data/{new}")

    def exchange() -> None:
        rename("t-0", "x")
        rename("other-0", "t-0")
        rename("x", "other-0")

    def started() -> LogManager:
        manager = LogManager(
            fs, ["/data"], clock, config_of=lambda _: TopicConfig.from_properties(SETTINGS), topic_id_of=ids.get
        )
        manager.open()
        manager.load()
        return manager

    before = {path: data for path, data in fs.files().items() if "-0/" in path}
    exchange()
    manager = started()
    assert not manager.logs
    remedy = "by the topic id in its partition.metadata: give the directory its name back while the broker is stopped"
    assert [line.partition(" is not served: ")[2] for line in lines(caplog)] == [
        f"/data/{directory} holds a log of topic {owner}, {remedy}"
        for directory, owner in (("other-0", "t"), ("t-0", "other"))
    ]
    for key in (KEY, OTHER):
        with pytest.raises(KafkaStorageError, match="holds a log of topic"):
            manager.create(key, ids[key.topic])
    manager.shutdown()
    exchange()
    assert {path: data for path, data in fs.files().items() if "-0/" in path} == before
    manager = started()
    assert [manager.logs[key].log_end_offset for key in (KEY, OTHER)] == [4, 10]
    manager.abandon()


def test_a_segment_that_was_cut_and_has_lost_its_indexes(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.open(segment(4)).truncate(131)
    for suffix in (".index", ".timeindex"):
        stopped.unlink(segment(4).replace(".log", suffix))
    log = start().logs[KEY]
    assert log.log_end_offset == 10
    assert "1 offsets are missing in /data/t-0: 5 to 5" in lines(caplog)[0]


@pytest.mark.parametrize("is_killed", [False, True])
def test_partitions_of_a_topic_whose_directories_were_exchanged_are_not_served(
    clock: ManualClock,
    start: Callable[..., LogManager],
    fs: MemoryFs,
    caplog: pytest.LogCaptureFixture,
    is_killed: bool,
) -> None:
    manager = start()
    for number, count in ((0, 4), (1, 10)):
        append(manager.create(TopicPartition("t", number), ID), count)
    if is_killed:
        manager.abandon()
    else:
        manager.shutdown()
    for old, new in (("t-0", "x"), ("t-1", "t-0"), ("x", "t-1")):
        fs.rename(f"/data/{old}", f"/data/{new}")
    manager = LogManager(
        fs,
        ["/data"],
        clock,
        config_of=lambda _: TopicConfig.from_properties(SETTINGS),
        topic_id_of={"t": ID}.get,
    )
    manager.open()
    manager.load()
    assert not manager.logs
    assert [line.partition(" is not served: ")[2] for line in lines(caplog)] == [
        f"/data/t-{number} holds a log of partition t-{1 - number}, by the number in its partition.metadata: give the "
        "directory its name back while the broker is stopped"
        for number in (0, 1)
    ]
    manager.abandon()


@pytest.mark.parametrize("content", [b"", b"whatever"])
def test_segment_that_was_not_there_at_the_stop(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    write_whole(stopped.open(segment(5000), create=True), content)
    log = start().logs[KEY]
    (line,) = lines(caplog)
    assert "t-0: segment 5000 was not there when the broker was stopped" in line
    assert (log.log_end_offset, offsets(log)) == (10, list(range(10)))
    assert not stopped.exists(segment(5000))
    assert stopped.exists(segment(5000) + ".torn") == bool(content)


def test_log_of_an_older_topic_is_kept_whole(
    clock: ManualClock, stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = sorted(len(data) for path, data in stopped.files().items() if path.startswith("/data/t-0/"))
    marker = OffsetCheckpoint(stopped, "/data/log-start-offset-checkpoint")
    # Of the newer topic, as far as anybody knows: it must not be measured by this.
    marker.set({KEY: 6})
    marker.write()
    newer = bytes(reversed(ID))
    config = TopicConfig.from_properties(SETTINGS)
    manager = LogManager(stopped, ["/data"], clock, config_of=lambda _: config, topic_id_of={"t": newer}.get)
    manager.open()
    manager.load()
    assert KEY not in manager.logs
    (kept,) = [entry.name for entry in stopped.entries("/data") if entry.name.endswith("-stray")]
    kept_files = {path: data for path, data in stopped.files().items() if f"/{kept}/" in path}
    # How it comes into use again.
    del kept_files[f"/data/{kept}/{AWAITS_TOPIC_FILE}"]
    assert sorted(map(len, kept_files.values())) == sizes
    assert kept in caplog.text and "older topic of the same name" in caplog.text
    assert manager.create(KEY, newer).log_end_offset == 0
    manager.abandon()


def test_directories_that_were_deleted_are_not_missed(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start()
    manager.checkpoint()
    manager.retiring.delete(KEY)
    manager.retiring.set_aside(OTHER)
    left = stopped.crash(CrashMode.PROCESS)
    assert b"t 0 10" in left.open("/data/recovery-point-offset-checkpoint").pread(1000, 0)
    start(on=left)
    assert lines(caplog) == []


@pytest.mark.parametrize("clean", [True, False])
def test_log_start_beyond_the_end(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    starts = OffsetCheckpoint(stopped, "/data/log-start-offset-checkpoint")
    starts.set({KEY: 500})
    starts.write()
    if not clean:
        stopped.unlink(MARKER)
    log = start().logs[KEY]
    (line,) = lines(caplog)
    assert "t-0: the log start offset in log-start-offset-checkpoint is 500, beyond the log end" in line
    # A log that has come to 10 never had a start of 500.
    assert "10 offsets 0 to 9 stay" in line
    assert offsets(log) == list(range(10))
    append(log)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("start_offset", [10**30, 2**63 - 1, 2**63 - 2, 2**62, -5])
def test_log_start_that_cannot_be_costs_nothing(
    start: Callable[..., LogManager],
    stopped: MemoryFs,
    caplog: pytest.LogCaptureFixture,
    clean: bool,
    start_offset: int,
) -> None:
    replace_file(stopped, "/data/log-start-offset-checkpoint", f"0\n2\nt 0 {start_offset}\nother 0 1\n".encode())
    write_own_starts(stopped, "/data/kafkalite-log-starts", {OTHER: 1})
    if not clean:
        stopped.unlink(MARKER)
    manager = start()
    assert str(start_offset) in caplog.text
    append(manager.logs[KEY])
    assert offsets(manager.logs[KEY]) == list(range(11))
    assert offsets(manager.logs[OTHER]) == [1, 2], "another partition's entry counts as ever"
    assert offsets(start().logs[KEY]) == list(range(11))


@pytest.mark.parametrize("power", [False, True])
def test_reader_comes_to_the_end_before_anybody_produces(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture, power: bool
) -> None:
    crashed(stopped)
    cut(stopped, 8, 131)
    manager = start()
    log = manager.logs[KEY]
    assert offsets(log) == list(range(9))
    piece = log.read(9, 1 << 20, 10)
    assert piece is not None
    filler = header_of(piece.read())
    assert (filler.base_offset, filler.next_offset, filler.record_count, filler.producer_id) == (9, 10, 0, -1)
    assert (filler.max_timestamp, filler.base_timestamp, filler.partition_leader_epoch) == (-1, -1, 0)
    check_crc(piece.read(), 0, filler.size_bytes)
    assert log.offset_of_max_timestamp(10) is not None
    assert log.recovery_point == 10 and not log.local.has_sealed_unflushed
    caplog.clear()
    # Neither a crash nor a stop in order finds a hole where the batch is.
    after = stopped.crash(CrashMode.POWER if power else CrashMode.PROCESS)
    log = start(on=after).logs[KEY]
    assert (log.log_end_offset, offsets(log), lines(caplog)) == (10, list(range(9)), [])
    manager = start(on=after)
    manager.shutdown()
    log = start(on=after).logs[KEY]
    assert (log.log_end_offset, offsets(log), lines(caplog)) == (10, list(range(9)), [])
    append(log, 3)
    assert offsets(log) == [*range(9), 10, 11, 12]


def test_truncation_into_a_hole_takes_all_of_it(start: Callable[..., LogManager], stopped: MemoryFs) -> None:
    remove(stopped, 8)
    log = start().logs[KEY]
    append(log)
    assert log.damaged_ranges == ((8, 10),)
    truncate_to(log, 9)
    assert log.damaged_ranges == ()
    assert (log.log_end_offset, offsets(log)) == (8, list(range(8)))
    append(log)
    assert offsets(log) == list(range(9))


def test_hole_that_no_batch_spans_moves_the_next_segment(
    start: Callable[..., LogManager], stopped: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.unlink(MARKER)
    end = 10 + MAX_INT32 + 1
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        checkpoint = OffsetCheckpoint(stopped, f"/data/{name}")
        checkpoint.set({KEY: end, OTHER: 3})
        checkpoint.write()
    log = start().logs[KEY]
    assert (log.log_end_offset, log.segments.active.base_offset, log.segments.active.size_bytes) == (end, end, 0)
    assert f"10 to {end - 1} (" in lines(caplog)[0]
    append(log)
    assert offsets(log) == [*range(10), end]


@pytest.mark.parametrize("checkpoint", ["never written", "written", "damaged"])
def test_a_lost_last_segment_is_noticed_before_the_first_flush(
    start: Callable[..., LogManager], fs: MemoryFs, caplog: pytest.LogCaptureFixture, checkpoint: str
) -> None:
    manager = start()
    append(manager.create(KEY, ID), 10)
    if checkpoint != "never written":
        manager.checkpoint({KEY: 0})
    killed = fs.crash(CrashMode.PROCESS)
    killed.unlink(segment(8))
    if checkpoint == "damaged":
        # It may have had the end of a clean stop.
        write_whole(killed.open("/data/recovery-point-offset-checkpoint"), b"x")
    assert start(killed).logs[KEY].log_end_offset == 8
    told = [each for each in lines(caplog) if "the last segment is missing, which began at offset 8" in each]
    assert len(told) == (checkpoint != "damaged")


def test_no_offset_is_given_twice_where_a_hole_cannot_be_written(
    start: Callable[..., LogManager], stopped: MemoryFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(stopped, 8)
    log = start().logs[KEY]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(ActiveSegment, "append", full)
    with pytest.raises(KafkaStorageError):
        append(log)
    monkeypatch.undo()
    with pytest.raises(KafkaStorageError):
        append(log)
    assert offsets(start().logs[KEY])[-1] == 7


def test_producers_are_known_behind_a_hole(start: Callable[..., LogManager], fs: MemoryFs) -> None:
    manager = start()
    log = manager.create(KEY, ID)
    for sequence in range(4):
        append(log, producer_id=7, producer_epoch=0, base_sequence=sequence)
    manager.shutdown()
    cut(fs, 2, 131)
    log = start().logs[KEY]
    append(log, producer_id=7, producer_epoch=0, base_sequence=3)
    assert log.log_end_offset == 4, "written before, and lost; its producer was told that it is there"
    crashed_here = fs.crash(CrashMode.PROCESS)
    append(log, producer_id=7, producer_epoch=0, base_sequence=4)
    assert offsets(log) == [0, 1, 2, 4]
    log = start(on=crashed_here).logs[KEY]
    append(log, producer_id=7, producer_epoch=0, base_sequence=4)
    assert offsets(log) == [0, 1, 2, 4]


def test_marker_names_the_segments_beside_kafka_s_fields() -> None:
    logs = {"t-0": StoppedLog({0: 10, 7: 20}, 3), "u-1": StoppedLog({})}
    text = marker_text(logs)
    assert text.startswith(b'{"version":0,"brokerEpoch":-1,')
    assert read_marker(text) == logs


def test_marker_of_a_broker_that_named_no_epochs_names_the_segments() -> None:
    assert read_marker(b'{"version":0,"segments":{"t-0":[[0,10]]}}') == {"t-0": StoppedLog({0: 10})}


@pytest.mark.parametrize(
    "data",
    [
        *[b"", b"{}", b"null", b"[1]", b'{"segments":1}', b'{"segments":{"t-0":[[1]]}}'],
        *[
            b'{"segments":{"t-0":[[0,%s]]}}' % number
            for number in (b"1e999", b"NaN", b"-1", b"1.5", b"true", b"1" * 19 + b"0")
        ],
    ],
)
def test_marker_of_others_names_none(data: bytes) -> None:
    assert read_marker(data) == {}


@pytest.mark.parametrize("data", [b"\xff", b"rubbish", b"\0" * 100, b"[" * 100_000])
def test_rubbish_is_no_marker(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="are not JSON"):
        read_marker(data)


def test_a_hole_that_a_scan_after_a_clean_stop_meets_again_is_told_of_once(
    stopped: MemoryFs, start: Callable[..., LogManager], caplog: pytest.LogCaptureFixture
) -> None:
    remove(stopped, 4)
    stopped.unlink(segment(2).replace(".log", ".index"))
    log = start().logs[KEY]
    (line,) = lines(caplog)
    assert "t-0: 2 offsets are missing in /data/t-0: 4 to 5 (" in line
    assert log.recovered_segments > 1, "nothing was scanned"
    assert log.damaged_ranges == ((4, 6),)
    assert offsets(log) == [0, 1, 2, 3, 6, 7, 8, 9]
