"""Disasters in simulated time: no fault of a disk, of the power or of the registry loses or forks what a disk has.

``recorded_disasters.json`` has schedules that failed once, by what went wrong. ``KNOWN_FAILURES`` names those that fail
still; it may only become shorter. The soak plays 100,000 schedules of the kinds of fault that are in no known failure
(``KAFKALITE_DISASTERS`` sets another number). ``python -m tests.simulator SEED --disasters [KIND[:FILE]]`` repeats one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest

from spark_kafkalite.testing.memory_fs import CrashMode
from tests.lab.batches import make_stored_batch
from tests.seeds import SEED, SOAK
from tests.simulator.copies import whole_batches
from tests.simulator.disaster_run import DisasterSimulation
from tests.simulator.disaster_schedules import KINDS, disasters
from tests.simulator.disk import Disk, ReadFault
from tests.simulator.known_failures import KNOWN_FAILURES
from tests.simulator.schedule import DISASTERS, FaultKind, Schedule, random_schedule
from tests.simulator.search import problems_of, shrunk

RECORDED: Final = json.loads((Path(__file__).parent / "recorded_disasters.json").read_text())
FIRST: Final = SEED * 1_000 if SOAK else 0
SCHEDULES: Final = int(os.environ.get("KAFKALITE_DISASTERS", 100_000)) if SOAK else 3


def recorded(name: str) -> Schedule:
    return Schedule.decode(json.dumps(RECORDED[name]))


def kinds_that_hold() -> list[FaultKind]:
    """Return the kinds of disaster that no schedule has which is known to fail."""
    failing = {fault.kind for name in KNOWN_FAILURES for fault in recorded(name).faults}
    return [kind for kind in KINDS if kind not in failing]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_recorded_disasters_are_survived() -> None:
    for name in sorted(set(RECORDED) - set(KNOWN_FAILURES)):
        assert problems_of(recorded(name)) == [], name


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(KNOWN_FAILURES))
def test_a_known_failure_fails_still(name: str) -> None:
    """The list is kept true: what passes by now is taken out of it."""
    assert problems_of(recorded(name)), f"{name} passes: take it out of KNOWN_FAILURES"


def test_each_known_failure_is_recorded() -> None:
    assert set(KNOWN_FAILURES) <= set(RECORDED)


@pytest.mark.full
@pytest.mark.timeout(360_000 if SOAK else 600)
def test_other_disasters_are_survived() -> None:
    kinds = kinds_that_hold()
    for seed in range(FIRST, FIRST + SCHEDULES):
        schedule = disasters(seed, kinds[seed % len(kinds)])
        if problems_of(schedule):
            schedule = shrunk(schedule)
            pytest.fail("\n".join([f"seed {seed}: {schedule.encode()}", *problems_of(schedule)]))


def test_a_disaster_repeats_exactly() -> None:
    def trace() -> int:
        simulation = DisasterSimulation(disasters(1, FaultKind.FILE_CUT, ".timeindex"))
        simulation.run()
        return simulation.world.trace

    assert trace() == trace()


def test_schedules_without_disasters_are_written_as_ever() -> None:
    for seed in range(50):
        schedule = random_schedule(seed)
        assert not {fault.kind for fault in schedule.faults} & DISASTERS
        assert "has_disasters" not in schedule.encode()
        assert Schedule.decode(schedule.encode()) == schedule


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_of_disasters_survives_being_written_down(kind: FaultKind) -> None:
    schedule = disasters(7, kind)
    assert kind in {fault.kind for fault in schedule.faults}
    assert Schedule.decode(schedule.encode()) == schedule


# The disk ---------------------------------------------------------------------------------------------------------


def disk_with(data: bytes) -> Disk:
    disk = Disk()
    disk.put("/logs/t-0/a.log", data)
    return disk


def test_faults_of_reads_go_with_their_file() -> None:
    disk = disk_with(b"0123456789")
    disk.fail_reads("/logs/t-0/a.log", ReadFault(None, at=4))
    file = disk.open("/logs/t-0/a.log")
    assert file.pread(4, 0) == b"0123"
    with pytest.raises(OSError, match="Input/output"):
        file.pread(4, 2)
    after = disk.crash(CrashMode.PROCESS)
    with pytest.raises(OSError, match="Input/output"):
        after.open("/logs/t-0/a.log").pread(4, 2)
    after.unlink("/logs/t-0/a.log")
    after.put("/logs/t-0/a.log", b"0123456789")
    assert after.open("/logs/t-0/a.log").pread(4, 2) == b"2345"


def test_a_bad_sector_is_sound_again_once_it_is_written() -> None:
    disk = disk_with(b"0123456789")
    disk.fail_reads("/logs/t-0/a.log", ReadFault(None, at=4))
    file = disk.open("/logs/t-0/a.log")
    file.pwrite(b"xyz", 5)
    with pytest.raises(OSError, match="Input/output"):
        file.pread(4, 2)
    file.pwrite(b"wxyz", 4)
    assert file.pread(4, 2) == b"23wx"


def test_a_short_read_happens_once() -> None:
    disk = disk_with(b"0123456789")
    disk.fail_reads("/logs/t-0/a.log", ReadFault(1, is_short=True))
    file = disk.open("/logs/t-0/a.log")
    assert [file.pread(4, 0), file.pread(4, 0)] == [b"01", b"0123"]


def test_what_is_put_is_there_for_those_who_have_the_file_open_and_after_a_power_loss() -> None:
    disk = disk_with(b"old")
    file = disk.open("/logs/t-0/a.log")
    disk.put("/logs/t-0/a.log", b"newer")
    assert file.pread(9, 0) == b"newer"
    disk.sync_everything("/")
    assert disk.crash(CrashMode.POWER).content("/logs/t-0/a.log") == b"newer"


def test_batches_behind_a_damaged_one_are_found() -> None:
    data = bytearray()
    for offset in range(3):
        data += make_stored_batch(offset, 5, 1)
    size = len(data) // 3
    data[size + 65] ^= 1
    found = [batch.base_offset for _, _, batch in whole_batches(bytes(data))]
    assert found == [0, 2]
    assert [batch.leader_epoch for _, _, batch in whole_batches(bytes(data))] == [5, 5]
