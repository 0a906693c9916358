"""Rule R12: which earlier runs of a broker have lost nothing."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from spark_kafkalite.log.directories.runs import MOST_PROVEN, Run, boot_id, proven_runs, read_run, write_run
from spark_kafkalite.log.files.fs import read_whole, remove_tree, replace_file, write_whole
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID = bytes(range(16))
TWO = ("/a", "/b")


def run(incarnation: int, boot: str = "boot", directories: str = "ab", proven: tuple[int, ...] = ()) -> Run:
    return Run(Incarnation(incarnation), boot, frozenset(directories), tuple(map(Incarnation, proven)))


@pytest.mark.parametrize(
    ("found", "in_order", "proven"),
    [
        ({"a": run(7), "b": run(7)}, False, (7,)),
        ({"a": run(7, proven=(6, 5)), "b": run(7, proven=(6, 5))}, False, (7, 6, 5)),
        # The kernel has been started since: only what was stopped in order is all there.
        ({"a": run(7, "old"), "b": run(7, "old")}, False, ()),
        ({"a": run(7, "old"), "b": run(7, "old")}, True, (7,)),
        ({"a": run(7, ""), "b": run(7, "")}, True, (7,)),
        # One of them is new, was replaced, or was away for a run; one has gone.
        ({"a": run(7), "b": None}, True, ()),
        ({"a": run(7), "b": run(6)}, True, ()),
        ({"a": run(7, directories="a"), "b": run(7, directories="a")}, True, ()),
        ({"a": run(7)}, True, ()),
        ({"a": run(7, proven=(6,)), "b": run(7)}, True, ()),
        ({"a": None}, True, ()),
        ({}, True, ()),
    ],
)
def test_the_rule(found: dict[str, Run | None], in_order: bool, proven: tuple[int, ...]) -> None:
    assert proven_runs(found, "boot", stopped_in_order=in_order) == proven


def test_a_kernel_that_does_not_say_which_boot_it_is_proves_nothing() -> None:
    assert proven_runs({"a": run(7, "", "a")}, "", stopped_in_order=False) == ()


def test_the_boot_id_is_the_kernels() -> None:
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert boot_id() == file.read().strip() != ""


@pytest.fixture
def fs() -> MemoryFs:
    fs = MemoryFs()
    for path in TWO:
        fs.make_directories(path)
    fs.sync_directory("/")
    return fs


def test_a_file_that_cannot_be_read_proves_nothing(fs: MemoryFs, caplog: pytest.LogCaptureFixture) -> None:
    write_run(fs, "/a", run(7, proven=(6,)))
    assert read_run(fs, "/a") == run(7, proven=(6,))
    assert read_run(fs, "/b") is None
    assert not caplog.messages
    written = read_whole(fs, "/a/kafkalite-run")
    for damaged in (
        b"",
        b"{}",
        written[:-1],
        b"[1]",
        b"[" * 200_000,
        written.replace(b'"7"', b'"0"'),
        written.replace(b'"7"', b"null"),
    ):
        replace_file(fs, "/a/kafkalite-run", damaged)
        assert read_run(fs, "/a") is None
    assert "cannot be read" in caplog.messages[0]


class Broker:
    """Runs of a broker, of which only the logs are there."""

    def __init__(self, fs: MemoryFs, log_dirs: tuple[str, ...] = TWO) -> None:
        self.fs = fs
        self.log_dirs = log_dirs
        self.boot = "boot"
        self.incarnation = Incarnation(0)
        self.manager: LogManager

    def start(self, **settings: object) -> tuple[int, ...]:
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        self.manager = LogManager(self.fs, self.log_dirs, ManualClock(), config_of=lambda topic: config)
        self.manager.open()
        self.manager.claim(1, "cluster")
        self.manager.load()
        self.incarnation = Incarnation(self.incarnation + 1)
        proven = self.manager.runs.proven(self.boot, len(self.manager.not_whole()))
        self.manager.runs.begin(self.incarnation, self.boot, proven)
        return proven

    def append(self, key: TopicPartition = T0, count: int = 1) -> PartitionLog:
        log = self.manager.create(key, ID)
        data = make_batch(count)
        log.append_as_leader(data, header_of(data), 0)
        return log

    def kill(self) -> None:
        self.fs = self.fs.crash(CrashMode.PROCESS)

    def lose_power(self) -> None:
        self.fs = self.fs.crash(CrashMode.POWER_TORN, random.Random(1))
        self.boot += "'"

    def stop(self, *, reboot: bool = False) -> None:
        self.manager.shutdown()
        self.boot += "'" * reboot


@pytest.fixture
def broker(fs: MemoryFs) -> Broker:
    return Broker(fs)


def test_a_killed_run_has_lost_nothing(broker: Broker) -> None:
    assert broker.start() == ()
    for key in (T0, T1):
        broker.append(key, 3)
    broker.kill()
    assert broker.start() == (1,)
    assert broker.append().log_end_offset == 4
    broker.kill()
    assert broker.start() == (2, 1)


def test_a_run_that_lost_power_proves_nothing_and_neither_do_those_before_it(broker: Broker) -> None:
    broker.start()
    broker.append()
    broker.kill()
    assert broker.start() == (1,)
    broker.lose_power()
    assert broker.start() == ()
    broker.kill()
    assert broker.start() == (3,)


def test_a_run_that_was_stopped_in_order_has_lost_nothing(broker: Broker) -> None:
    broker.start()
    broker.append()
    broker.stop(reboot=True)
    assert broker.start() == (1,)
    # Killed before it had written anything, and then the power went: nobody knows what was written.
    broker.lose_power()
    assert broker.start() == ()


def test_a_power_cut_while_the_logs_are_loaded(broker: Broker) -> None:
    broker.start()
    broker.append()
    broker.stop()
    broker.manager = LogManager(broker.fs, TWO, ManualClock(), config_of=lambda topic: TopicConfig.from_properties())
    broker.manager.open()
    broker.manager.load()
    broker.lose_power()
    assert broker.start() == ()


def test_an_empty_log_directory_says_nothing_about_a_run(fs: MemoryFs) -> None:
    """What a power cut leaves of a directory whose logs have no synced name: no logs, and no marker."""
    broker = Broker(fs, ("/a",))
    broker.start()
    broker.lose_power()
    assert broker.start() == ()


def _copy(fs: MemoryFs, source: str, target: str) -> None:
    """Have a directory hold what another one does, in files of its own."""
    if fs.exists(target):
        remove_tree(fs, target)
    fs.make_directories(target)
    for entry in fs.entries(source):
        if entry.is_directory:
            _copy(fs, f"{source}/{entry.name}", f"{target}/{entry.name}")
        else:
            write_whole(fs.open(f"{target}/{entry.name}", create=True), read_whole(fs, f"{source}/{entry.name}"))


@pytest.mark.parametrize("log_dirs", [TWO, ("/a",)])
def test_a_copy_that_was_made_while_the_run_went_on_proves_nothing(fs: MemoryFs, log_dirs: tuple[str, ...]) -> None:
    broker = Broker(fs, log_dirs)
    broker.start()
    broker.append()
    _copy(fs, "/a", "/backup")
    broker.append()
    broker.kill()
    _copy(broker.fs, "/backup", "/a")
    assert broker.start() == ()
    # What the next run writes there is its own.
    broker.kill()
    assert broker.start() == (2,)


def test_what_was_stopped_in_order_may_be_copied_to_another_place(fs: MemoryFs) -> None:
    broker = Broker(fs, ("/a",))
    broker.start()
    broker.append()
    broker.stop(reboot=True)
    _copy(broker.fs, "/a", "/elsewhere")
    broker.log_dirs = ("/elsewhere",)
    assert broker.start() == (1,)


def test_the_chain_is_bounded(broker: Broker) -> None:
    for number in range(MOST_PROVEN + 5):
        assert len(broker.start()) == min(number, MOST_PROVEN)
        broker.kill()


def _replace_directory(broker: Broker) -> None:
    for path in ("/b/meta.properties", "/b/kafkalite-run", "/b/.kafka_cleanshutdown"):
        broker.fs.unlink(path)
    replace_file(broker.fs, "/a/meta.properties", b"version=0\nbroker.id=1\ncluster.id=cluster\ndirectory.id=A\n")


def _name_another(broker: Broker) -> None:
    broker.log_dirs = (*TWO, "/c")


def _leave_one_out(broker: Broker) -> None:
    broker.log_dirs = ("/a",)


@pytest.mark.parametrize("change", [_replace_directory, _name_another, _leave_one_out])
def test_other_directories_than_before_prove_nothing(
    broker: Broker, change: Callable[[Broker], None], caplog: pytest.LogCaptureFixture
) -> None:
    broker.start()
    broker.append()
    broker.stop()
    change(broker)
    assert broker.start() == ()
    assert "not proven to be whole" in caplog.text
    broker.stop()
    # The next run knows these.
    assert broker.start() == ((2,) if change is not _leave_one_out else ())


def test_a_directory_that_was_away_for_a_run_proves_nothing(broker: Broker) -> None:
    broker.start()
    broker.append()
    broker.kill()
    broker.log_dirs = ("/a",)
    broker.start()
    broker.kill()
    broker.log_dirs = TWO
    assert broker.start() == ()


@pytest.mark.parametrize("log_dirs", [TWO, ("/a",)])
def test_a_directory_that_failed_takes_the_proof_with_it(fs: MemoryFs, log_dirs: tuple[str, ...]) -> None:
    broker = Broker(fs, log_dirs)
    broker.start()
    broker.append()
    broker.manager.fail_directory("/a", "cannot sync it")
    broker.kill()
    assert broker.start() == ()


def test_a_stop_after_a_failed_directory_proves_nothing(broker: Broker) -> None:
    broker.start()
    broker.append()
    broker.manager.fail_directory("/b", "cannot sync it")
    broker.stop()
    assert broker.start() == ()


def test_a_run_that_cannot_be_noted_is_not_proven(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.start()
    broker.kill()
    broker.fs.fail("rename", errno.EIO, path_part="kafkalite-run")
    assert broker.start() == (1,)
    broker.kill()
    assert 2 not in broker.start()


# Damage under the same kernel ---------------------------------------------------------------------------------------

SEGMENT = "/t-0/00000000000000000000.log"


@pytest.fixture
def killed(broker: Broker) -> Broker:
    """Killed with three batches of one record in its log."""
    broker.start()
    for _ in range(3):
        broker.append()
    broker.kill()
    return broker


def _segment(broker: Broker) -> str:
    return next(path + SEGMENT for path in TWO if broker.fs.exists(path + SEGMENT))


def test_an_append_that_was_interrupted_is_no_damage(killed: Broker) -> None:
    file = killed.fs.open(_segment(killed))
    size = file.size()
    file.pwrite(memoryview(make_batch(1))[:-1], size)
    assert killed.start() == (1,)
    assert killed.manager.logs[T0].log_end_offset == 3


def test_a_batch_that_was_being_written_ahead_is_no_damage(killed: Broker) -> None:
    file = killed.fs.open(_segment(killed))
    file.pwrite(bytes(61) + bytes(make_batch(1))[61:], file.size())
    assert killed.start() == (1,)


@pytest.mark.parametrize("what", ["a record of the last batch", "a record of the first batch", "zeros", "rubbish"])
def test_damage_is_of_one_log(killed: Broker, what: str) -> None:
    file = killed.fs.open(_segment(killed))
    size = file.size()
    position = {"a record of the last batch": size - 3, "a record of the first batch": 70}.get(what, size)
    damage = {"zeros": bytes(5000), "rubbish": b"\x55" * 5000}.get(what, b"\x55")
    file.pwrite(damage, position)
    assert killed.start() == (1,)
    assert killed.manager.not_whole() == {T0: "lacks records, or has damage"}


@pytest.mark.parametrize(
    ("is_flushed", "line"),
    [
        (True, "1 offsets are missing in /a/t-0: 2 to 2 (the last segment has lost its end)"),
        (False, "the log ends at offset 2, but the checkpoints of its log directory name offset 3"),
    ],
)
def test_a_log_that_is_shorter_than_was_known_is_not_whole(
    broker: Broker, caplog: pytest.LogCaptureFixture, is_flushed: bool, line: str
) -> None:
    broker.start()
    for _ in range(3):
        log = broker.append()
    if is_flushed:
        log.flush()
    broker.manager.checkpoint({T0: 3})
    broker.kill()
    file = broker.fs.open(_segment(broker))
    file.truncate(file.size() * 2 // 3)
    assert broker.start() == (1,)
    assert broker.manager.not_whole() == {T0: "lacks records, or has damage"}
    assert line in caplog.text


def test_a_log_that_is_gone_is_not_whole(broker: Broker) -> None:
    broker.start()
    broker.append()
    broker.stop()
    broker.fs.rename(_segment(broker).removesuffix(SEGMENT) + "/t-0", "/elsewhere")
    assert broker.start() == (1,)
    assert broker.manager.not_whole() == {T0: "is missing"}


def test_a_log_that_cannot_be_opened_is_not_whole(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.start()
    broker.append()
    broker.stop()
    replace_file(broker.fs, _segment(broker).removesuffix(SEGMENT) + "/t-1", b"no directory")
    assert broker.start() == (1,)
    assert broker.manager.not_whole() == {T1: "could not be opened"}
