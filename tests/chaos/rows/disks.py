"""Rows in which disks are full or fail, or give back other bytes than they were given."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Final

from spark_kafkalite import Admin, Consumer
from spark_kafkalite.client.admin.configs import ConfigChange
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.records.kernel import scan_headers
from spark_kafkalite.records.layout import CRC_POSITION
from tests.chaos.broker_program import DISK_FULL, DISK_READ_ONLY, SYNCS_FAIL, WRITES_FAIL
from tests.chaos.history import Client, Poll, Seek
from tests.chaos.our_cluster import DisksOfBroker
from tests.chaos.power import synced_bytes
from tests.chaos.rows.stage import FAILOVER_S, ISR_WITHIN_S, LAGGARD_OUT_S, SLACK_S, Row, Stage
from tests.chaos.values import name_of
from tests.chaos.workload import RunFailed

# A broker that goes on hands over what a disk of its own has lost.
_HANDOVER_S: Final = 1.0 + SLACK_S
_READ_WITHIN_S: Final = 20.0
_SEGMENT_BYTES: Final = 32 << 10


def fill_disks(stage: Stage) -> None:
    """The leader's disk is full, then a follower's, and each has space again."""
    cluster = stage.cluster
    broker = stage.leader
    with stage.fault("fill leader's disk", broker, isr_within_s=ISR_WITHIN_S), cluster.disk(broker, DISK_FULL):
        time.sleep(4)
    broker = stage.follower
    asked = stage.fault("fill follower's disk", broker, isr_within_s=ISR_WITHIN_S)
    with asked, cluster.disk(broker, DISK_FULL):
        time.sleep(LAGGARD_OUT_S + SLACK_S)


def break_the_leaders_disk(stage: Stage) -> None:
    """The leader's only disk fails: its writes, and then another leader's fsync, whose records nobody is told to be
    safe. A broker without a disk ends. And a disk that can only be read for a while is like a full one."""
    for condition, name in ((WRITES_FAIL, "fail leader's writes"), (SYNCS_FAIL, "fail leader's fsync")):
        _break_the_disk(stage, stage.leader, condition, name)
    number = stage.leader
    asked = stage.fault("make leader's disk read-only", number, longest_gap_s=_HANDOVER_S, isr_within_s=ISR_WITHIN_S)
    with asked, stage.cluster.disk(number, DISK_READ_ONLY):
        time.sleep(4)


def _break_the_disk(stage: Stage, number: int, condition: str, name: str) -> None:
    broker = stage.brokers[number]
    with stage.fault(name, number, longest_gap_s=FAILOVER_S, isr_within_s=ISR_WITHIN_S):
        with stage.cluster.disk(number, condition):
            stage.wait_until(f"broker {number} ended", lambda: not broker.running)
        time.sleep(1)
        broker.start()


def break_one_of_two_disks(stage: Stage) -> None:
    """One of the two log directories of the leader, and then of a follower, fails: others lead what it led there at
    once, and its other directory goes on. The disk is whole again for the next start."""
    for role in ("leader", "follower"):
        _break_one_disk(stage, role, stage.leader if role == "leader" else stage.follower)


def _break_one_disk(stage: Stage, role: str, number: int) -> None:
    broken, lost = _directory_of(stage, number, 0)
    kept = tuple(each for each in stage.partitions if each not in lost)
    if not kept:
        raise RunFailed(f"all partitions lie in {broken}")
    led_and_kept = tuple(each for each in stage.led_by(number) if each in kept)
    state_of, topic = stage.cluster.cluster.state_of, stage.place.topic

    def is_left() -> bool:
        states = [state_of(topic, each) for each in lost]
        return all(state.leader not in (-1, number) and number not in state.isr for state in states)

    with stage.fault(f"fail one of {role}'s disks", number, isr_within_s=ISR_WITHIN_S, elections=2) as fault:
        with stage.cluster.disk(number, WRITES_FAIL, broken):
            stage.wait_until("left to others", is_left)
            stage.note_measure(f"leaving what lies on the broken disk of broker {number}", fault.begun, _HANDOVER_S)
            time.sleep(3)
            if not stage.brokers[number].running:
                raise RunFailed(f"broker {number} ends, although one of its disks is whole")
            if (now := stage.led_by(number)) != led_and_kept:
                raise RunFailed(f"broker {number} leads {now} in its other directory, and led {led_and_kept}")
            for partitions, where in ((lost, "broken"), (kept, "other")):
                stage.note_fault(
                    fault.begun, time.monotonic(), f"partitions on {role}'s {where} disk", number,
                    partitions=partitions, longest_gap_s=_HANDOVER_S,
                )  # fmt: skip
        stage.brokers[number].restart()


def _directory_of(stage: Stage, number: int, partition: int) -> tuple[Path, tuple[int, ...]]:
    """Return a broker's log directory that has a partition, and all partitions that lie there."""
    topic = stage.place.topic
    for directory in stage.cluster.log_directories(number):
        if (directory / f"{topic}-{partition}").exists():
            return directory, tuple(each for each in stage.partitions if (directory / f"{topic}-{each}").exists())
    raise RunFailed(f"broker {number} has no directory {topic}-{partition}")


def damage_tails(stage: Stage) -> None:
    """A follower is killed, and then a leader, and while it is down a byte changes in each log behind what was synced:
    the damage is found at its start, and it copies what it lacks."""
    for role in ("follower", "leader"):
        number = stage.leader if role == "leader" else stage.follower
        broker = stage.brokers[number]
        with stage.fault(f"damage {role}'s tails", number, longest_gap_s=FAILOVER_S, isr_within_s=ISR_WITHIN_S):
            broker.kill()
            (directory,) = stage.cluster.log_directories(number)
            synced = synced_bytes(directory)
            for partition in stage.partitions:
                path = max((directory / f"{stage.place.topic}-{partition}").glob("*.log"))
                _damage(path, synced.get(str(path), 0), stage.chance)
            broker.start()


def damage_an_old_segment(stage: Stage) -> None:
    """A byte changes in a sealed segment of a leader that runs: who reads there gets an error and no other record than
    was sent. Somebody removes the log, the broker copies it anew, and it can be read."""
    cluster, place = stage.cluster, stage.place
    number = stage.leader
    (log_directory,) = cluster.log_directories(number)
    directory = log_directory / f"{place.topic}-0"
    stage.wait_until("some segments sealed", lambda: len(list(directory.glob("*.log"))) > 2)
    # Each segment is an open file, of which brokers are not to have many more in the end.
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.incremental_alter_configs([ConfigChange("segment.bytes", "delete")], topic=place.topic)
    damaged = sorted(directory.glob("*.log"))[1]
    stage.place.history.note(Client(who="late-reader", kind="poller"))
    with stage.fault("damage leader's old segment", number, longest_gap_s=_HANDOVER_S, isr_within_s=ISR_WITHIN_S):
        _damage(damaged, 0, stage.chance)
        first, end = int(damaged.stem), int(sorted(directory.glob("*.log"))[2].stem)
        if (found := _read(stage, first, end)) is None:
            raise RunFailed(f"offsets {first} to {end} of {place.topic}-0 can be read, although {damaged} is damaged")
        stage.brokers[number].stop()
        shutil.rmtree(directory)
        stage.brokers[number].start()
        cluster.wait_in_sync(place)
        if (found := _read(stage, first, end)) is not None:
            raise RunFailed(f"offsets {first} to {end} of {place.topic}-0 cannot be read from a new copy: {found}")


def _damage(path: Path, position: int, chance: random.Random) -> None:
    """Change a bit of a batch of a log file, from a position on that is a batch's, where its CRC covers it: what a
    broker has added, base offset and leader epoch, can be told from nothing else."""
    with path.open("r+b") as file:
        file.seek(position)
        headers = scan_headers(file.read())
        if not headers:
            return
        damaged = chance.randrange(len(headers))
        position += sum(header.size_bytes for header in headers[:damaged])
        position += chance.randrange(CRC_POSITION, headers[damaged].size_bytes)
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))


def _read(stage: Stage, first: int, end: int) -> KafkaliteError | None:
    """Read partition 0 from one offset up to another, noting what is shown; return the error that ends it."""
    place, at = stage.place, (stage.place.topic, 0)
    with Consumer(bootstrap_servers=place.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([at])
        consumer.seek(at, first)
        now = time.monotonic()
        place.history.note(
            Seek(who="late-reader", begun=now, ended=now, topic=place.topic_id, partition=0, offset=first)
        )
        until = now + _READ_WITHIN_S
        position = first
        while position < end:
            begun = time.monotonic()
            if begun > until:
                raise RunFailed(f"neither records nor an error from offset {position} on")
            try:
                records = consumer.poll(1000)
            except KafkaliteError as error:
                return error
            if records:
                place.history.note(
                    Poll(
                        who="late-reader", begun=begun, ended=time.monotonic(), topic=place.topic_id, partition=0,
                        records=[(record.offset, name_of(record.value)) for record in records],
                    )
                )  # fmt: skip
                position = records[-1].offset + 1
    return None


MORE_ROWS: Final = (
    Row("19", fill_disks),
    Row("20", break_the_leaders_disk, {"flush.before.ack": "true"}),
    Row("21a", damage_tails),
    Row("21b", damage_an_old_segment, {"segment.bytes": str(_SEGMENT_BYTES)}),
    Row("35", break_one_of_two_disks, disks=DisksOfBroker.TWO),
)
