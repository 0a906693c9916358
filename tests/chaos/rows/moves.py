"""Rows in which partitions move to other brokers while something fails. Four brokers have three replicas of each; what
is copied is slow, so that the fault meets the copy."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from spark_kafkalite import Admin
from spark_kafkalite.errors import KafkaliteError, UnknownTopicOrPartition
from tests.chaos.broker_program import DISK_FULL
from tests.chaos.clients.client import HARD_END_S
from tests.chaos.history import Topic
from tests.chaos.lines import REGISTRY
from tests.chaos.our_cluster import SESSION_S
from tests.chaos.rows.moving import Mover, Replicas
from tests.chaos.rows.stage import FAILOVER_S, ISR_WITHIN_S, REQUEST_TIMEOUT_S, Row, Stage
from tests.chaos.rows.troubles import FILL_DISK, ISOLATE, KILL, PAUSE, trouble_brokers
from tests.chaos.workload import RunFailed
from tests.seeds import SOAK

_LOG: Final = logging.getLogger(__name__)
_BROKERS: Final = 4
# Of the workload's topic, which a dozen readers read.
_BYTES: Final = (48 if SOAK else 24) << 20
# Of another topic, which moves as well.
_MANY_BYTES: Final = (2 << 30) if SOAK else (256 << 20)
_PARTITIONS: Final = 3
_OVERRIDES: Final = {
    # Files that are to go go at once.
    "log.segment.delete.delay.ms": 100,
    "log.retention.check.interval.ms": 1_000,
    "log.initial.task.delay.ms": 0,
}
_BOUNDS: Final = {"longest_gap_s": FAILOVER_S, "isr_within_s": ISR_WITHIN_S}
_SILENT: Final = {"longest_gap_s": FAILOVER_S + REQUEST_TIMEOUT_S, "isr_within_s": ISR_WITHIN_S}
_TROUBLES: Final = dict.fromkeys((PAUSE, KILL, ISOLATE, FILL_DISK), (0.2, 10.0))
# When a fault comes, counted from the beginning of the copy.
_INTO_COPY_S: Final = 0.5

_ROLES: Final[dict[str, Callable[[Mover, Replicas], int]]] = {
    "target": lambda mover, plan: mover.added(plan),
    "leader": lambda mover, plan: mover.stage.leader,
    "leaving replica": lambda mover, plan: mover.leaving(plan),
    "controller": lambda mover, plan: mover.stage.wait_for_controller(),
}


def _mover(stage: Stage, size_bytes: int = _BYTES) -> Mover:
    """Return who moves the workload's topic, once there is something to copy."""
    mover = Mover(stage)
    mover.load(stage.place.topic, stage.place.topic_id, stage.place.partitions, size_bytes)
    return mover


@contextlib.contextmanager
def _move(mover: Mover, name: str, role: str, **asked: Any) -> Iterator[int]:
    """Begin to move every partition, have the block do something to the broker of a role during the copy, and wait
    until all have moved and former replicas have no files."""
    stage, plan = mover.stage, mover.plan()
    broker = _ROLES[role](mover, plan)
    with stage.fault(f"{name} {role} of a move", broker, **asked):
        mover.begin(plan)
        mover.wait_for_copy(plan)
        time.sleep(stage.chance.uniform(0, _INTO_COPY_S))
        _LOG.info("%s %s (%d): %d partitions are moving", name, role, broker, len(mover.moving()))
        yield broker
        mover.wait_until_moved(plan)
    mover.check_files()


def _kill(stage: Stage, broker: int) -> None:
    """Kill a broker, and start it before or after its session is over."""
    stage.brokers[broker].kill()
    time.sleep(stage.chance.uniform(0, SESSION_S + 1))
    stage.brokers[broker].start()


def move_under_kills(stage: Stage) -> None:
    """All partitions move while the broker is killed that copies partition 0, and then while the controller is."""
    mover = _mover(stage)
    for role in ("target", "controller"):
        with _move(mover, "kill", role, **_BOUNDS) as broker:
            _kill(stage, broker)


def move_while_one_is_killed(stage: Stage) -> None:
    """All partitions move while one broker is killed: one that copies, the leader, one that leaves, the controller."""
    mover = _mover(stage)
    for role in _ROLES:
        with _move(mover, "kill", role, **_BOUNDS) as broker:
            _kill(stage, broker)


def move_while_one_is_paused(stage: Stage) -> None:
    """The same while one stands still for longer than its session."""
    mover = _mover(stage)
    for role in _ROLES:
        with _move(mover, "pause", role, **_SILENT) as broker:
            stage.brokers[broker].pause()
            time.sleep(SESSION_S + stage.chance.uniform(1, 4))
            stage.brokers[broker].resume()


def move_while_one_is_cut_off(stage: Stage) -> None:
    """The same while one reaches no other broker and no registry, and then while one reaches everybody but the
    registry."""
    mover, lines = _mover(stage), stage.cluster.lines
    for role in _ROLES:
        with _move(mover, "isolate", role, **_SILENT) as broker:
            lines.isolate(broker)
            time.sleep(SESSION_S + 2)
            lines.heal()
    for role in ("target", "controller"):
        with _move(mover, "cut from the registry", role, **_SILENT) as broker:
            lines.hold(broker, REGISTRY)
            time.sleep(SESSION_S + 2)
            lines.heal()


def cancel_and_replace_moves(stage: Stage) -> None:
    """A move is cancelled during its copy, and one is replaced by another. Then both are done while a broker is dead
    that copies; it comes back to partitions that it is not to have."""
    mover = _mover(stage)
    for what in ("cancel", "replace"):
        for dies in (False, True):
            origin, plan = mover.origin(), mover.plan()
            broker = mover.added(plan)
            name = f"{what} a move{' without its target' if dies else ''}"
            with stage.fault(name, broker, **_BOUNDS):
                mover.begin(plan)
                mover.wait_for_copy(plan)
                time.sleep(stage.chance.uniform(0, _INTO_COPY_S))
                if dies:
                    stage.brokers[broker].kill()
                if what == "cancel":
                    mover.cancel()
                    after = mover.origin()
                    # What has moved already is not undone by it; the order of replicas may be another, as in Kafka.
                    if wrong := {at for at in after if set(after[at]) not in (set(origin[at]), set(plan[at]))}:
                        raise RunFailed(f"after a cancellation partitions {wrong} have replicas {after}, not {origin}")
                else:
                    after = mover.plan(without=broker if dies else None)
                    mover.begin(after)
                if dies:
                    stage.brokers[broker].start()
                mover.wait_until_moved(after)
            mover.check_files()


def fill_the_targets_disk(stage: Stage) -> None:
    """The disk of a broker that copies is full for a while. The move ends when it has space again."""
    mover = _mover(stage)
    asked = _move(mover, "fill the disk of the", "target", isr_within_s=ISR_WITHIN_S)
    with asked as broker, stage.cluster.disk(broker, DISK_FULL):
        time.sleep(SESSION_S)


def delete_a_moving_topic(stage: Stage) -> None:
    """A topic is deleted during its move, and made again under its name: first all brokers live, then one that copies
    is killed before the deletion, and then the controller right after it. The new topic moves, and has nothing of the
    old one."""
    topic = f"{stage.place.topic}-again"
    mover = Mover(stage, topic)
    for dies in ("nobody", "target", "controller"):
        topic_id = stage.make_topic(topic, _PARTITIONS)
        mover.load(topic, topic_id, _PARTITIONS, _BYTES)
        plan = mover.plan(topic)
        origin = mover.origin(topic)[0]
        target = next(each for each in plan[0] if each not in origin)
        victim = {"target": target, "controller": stage.wait_for_controller()}.get(dies)
        with stage.fault(f"delete a topic during its move, {dies} dies", victim or "", **_BOUNDS):
            mover.begin(plan, topic)
            mover.wait_for_copy(plan, topic)
            time.sleep(stage.chance.uniform(0, _INTO_COPY_S))
            if dies == "target":
                stage.brokers[target].kill()
            _delete(stage, topic)
            stage.note_topic(topic_id, topic, _PARTITIONS, is_kept=False)
            if dies == "controller" and victim is not None:
                stage.brokers[victim].kill()
            if victim is not None:
                stage.brokers[victim].start()
        mover.check_files()
    topic_id = stage.make_topic(topic, _PARTITIONS)
    mover.load(topic, topic_id, _PARTITIONS, _BYTES)
    plan = mover.plan(topic)
    mover.begin(plan, topic)
    mover.wait_until_moved(plan, topic)
    mover.check_files()
    stage.note_topic(topic_id, topic, _PARTITIONS, is_kept=True)


def _delete(stage: Stage, topic: str) -> None:
    def is_gone() -> bool:
        with Admin(bootstrap_servers=stage.cluster.bootstrap, reconnect_backoff_max_ms=200) as admin:
            try:
                admin.delete_topics([topic])
            except UnknownTopicOrPartition:
                return True
            except KafkaliteError:
                return False
        return True

    stage.wait_until(f"{topic} deleted", is_gone)


def add_replicas(stage: Stage) -> None:
    """A topic of one replica gets three, and one again, while a target is killed, and while the only replica is: no
    producer with acks=all is refused in the first case, and nothing is lost in either."""
    mover = _mover(stage)
    for name in ("target", "only replica"):
        before = mover.origin()
        plan = {
            number: (*replicas, *stage.chance.sample(sorted(stage.brokers.keys() - set(replicas)), 2))
            for number, replicas in before.items()
        }
        broker = mover.added(plan) if name == "target" else before[0][0]
        # What a dead broker leads alone waits for it.
        with stage.fault(f"kill {name} while replicas are added", broker):
            mover.begin(plan)
            mover.wait_for_copy(plan)
            time.sleep(stage.chance.uniform(0, _INTO_COPY_S))
            _kill(stage, broker)
            mover.wait_until_moved(plan)
        mover.check_files()
        fewer = {number: (stage.chance.choice(replicas),) for number, replicas in plan.items()}
        mover.begin(fewer)
        mover.wait_until_moved(fewer)
        mover.check_files()
    mover.begin(plan)
    mover.wait_until_moved(plan)
    mover.check_files()
    place = stage.place
    place.history.note(Topic(topic=place.topic_id, name=place.topic, partitions=place.partitions, replicas=3))


def mix_moves_and_faults(stage: Stage) -> None:
    """Partitions of two topics, one of 2 GB, are moved, and moves replaced and cancelled, every few seconds, while
    random brokers are killed, paused, cut off or full. The row's length is an option."""
    chance, topic = stage.chance, f"{stage.place.topic}-large"
    mover = _mover(stage)
    mover.topics.append(topic)
    topic_id = stage.make_topic(topic, _PARTITIONS, {"segment.bytes": str(64 << 20)})
    mover.load(topic, topic_id, _PARTITIONS, _MANY_BYTES)
    # That everything comes back is asked for, and not when: bytes are copied as fast as the host can.
    with stage.fault("moves and faults", isr_within_s=HARD_END_S, resumes_within_s=HARD_END_S, acks_at_least=100):
        move_at = 0.0

        def move(now: float) -> None:
            nonlocal move_at
            if now >= move_at:
                move_at = now + chance.uniform(1, 8)
                _move_something(mover, chance.choice(mover.topics))

        trouble_brokers(stage, _TROUBLES, (4, 12), move)
        for each in mover.topics:
            mover.cancel(each)
            plan = mover.plan(each)
            mover.begin(plan, each)
            mover.wait_until_moved(plan, each)
    mover.check_files()
    stage.note_topic(topic_id, topic, _PARTITIONS, is_kept=True)


def _move_something(mover: Mover, topic: str) -> None:
    """Ask for moves of some partitions, or cancel them; what is refused is."""
    chance = mover.stage.chance
    plan = mover.plan(topic)
    some = chance.sample(sorted(plan), chance.randint(1, len(plan)))
    if chance.random() < 0.25:
        mover.try_to(dict.fromkeys(some), topic)
    else:
        mover.try_to({number: plan[number] for number in some}, topic)


def _row(label: str, play: Callable[[Stage], None], fetched_bytes: int = 64 << 10, **more: Any) -> Row:
    overrides = {**_OVERRIDES, "replica.fetch.response.max.bytes": fetched_bytes}
    return Row(label, play, overrides=overrides, brokers=_BROKERS, **more)


MIXED: Final = _row("42", mix_moves_and_faults, 512 << 10)
ROWS: Final = (_row("36", move_under_kills),)
MORE_ROWS: Final = (
    _row("37a", move_while_one_is_killed),
    _row("37b", move_while_one_is_paused),
    _row("37c", move_while_one_is_cut_off),
    _row("38", cancel_and_replace_moves),
    _row("39", fill_the_targets_disk),
    _row("40", delete_a_moving_topic),
    _row("41", add_replicas, replicas=1),
    MIXED,
)
