"""Reassignments that rows play: asked for, cancelled, waited for, and the files that they leave on every broker."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.produce.delivery import RecordMetadata
from spark_kafkalite.errors import KafkaError, KafkaliteError, NoReassignmentInProgress
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.registry.znodes import TopicAssignment
from tests.chaos.clients.client import HARD_END_S
from tests.chaos.history import OK, UNKNOWN, Client, Leftover, Send
from tests.chaos.rows.stage import Stage
from tests.chaos.values import BALLAST, BALLAST_BYTES, payload_of
from tests.chaos.workload import RunFailed
from tests.seeds import SOAK

Replicas = dict[int, tuple[int, ...]]
_ASK_TIMEOUT_MS: Final = 10_000
_HARD_END_MS: Final = int(HARD_END_S * 1000)
# Less than a copy makes in the time for which a row waits, and more than the workload's own records in that time.
_PROGRESS_BYTES: Final = (128 << 20) if SOAK else (16 << 20)


class Mover:
    """Moves the partitions of a stage's topics. ``topics`` are those that it looks after, the workload's first."""

    def __init__(self, stage: Stage, *more_topics: str) -> None:
        self.stage = stage
        self.topics = [stage.place.topic, *more_topics]
        self._loaded = 0

    # Data ------------------------------------------------------------------------------------------------------------

    def load(self, topic: str, topic_id: str, partitions: int, size_bytes: int) -> None:
        """Have an idempotent producer write so many bytes of large values to a topic, to each partition as many."""
        place = self.stage.place
        who = f"{BALLAST}-{place.topic}"
        if not self._loaded:
            place.history.note(Client(who=who, kind="prober", idempotent=True))
        numbers = range(self._loaded, self._loaded + size_bytes // BALLAST_BYTES)
        self._loaded = numbers.stop

        def noting(number: int) -> Callable[[RecordMetadata | None, Exception | None], None]:
            begun = time.monotonic()

            def told(metadata: RecordMetadata | None, error: Exception | None) -> None:
                outcome, offset = (UNKNOWN, -1) if metadata is None else (OK, metadata.offset)
                place.history.note(
                    Send(
                        who=who, begun=begun, ended=time.monotonic(), topic=topic_id, partition=number % partitions,
                        value=f"{who}-{number}", number=number, outcome=outcome, offset=offset,
                        error="" if error is None else repr(error),
                    )
                )  # fmt: skip

            return told

        with Producer(
            bootstrap_servers=place.bootstrap, delivery_timeout_ms=_HARD_END_MS, max_block_ms=_HARD_END_MS
        ) as producer:
            for number in numbers:
                payload = payload_of(f"{who}-{number}")
                producer.send(topic, payload, partition=number % partitions, on_delivery=noting(number))

    # Plans -----------------------------------------------------------------------------------------------------------

    def assignment(self, topic: str = "") -> TopicAssignment:
        return self.stage.cluster.cluster.assignment_of(topic or self.topics[0])

    def origin(self, topic: str = "") -> Replicas:
        """Return a topic's replicas without those that reassignments are adding."""
        found = self.assignment(topic)
        return {
            number: tuple(each for each in replicas if each not in found.adding.get(number, ()))
            for number, replicas in found.partitions.items()
        }

    def plan(self, topic: str = "", *, without: int | None = None) -> Replicas:
        """Return other replicas for each partition, as many as it has: one leaves for one that comes, in a random
        order. ``without`` is a broker that gets none."""
        chance, planned = self.stage.chance, {}
        for number, replicas in self.origin(topic).items():
            away = [each for each in sorted(self.stage.brokers) if each not in replicas and each != without]
            kept = [each for each in replicas if each != without]
            if away:
                if len(kept) == len(replicas):
                    kept.remove(chance.choice(kept))
                kept.append(chance.choice(away))
            chance.shuffle(kept)
            planned[number] = tuple(kept)
        return planned

    def added(self, plan: Replicas, partition: int = 0) -> int:
        """Return a broker that a plan adds to a partition, by the replicas that it has now."""
        return next(each for each in plan[partition] if each not in self.origin()[partition])

    def leaving(self, plan: Replicas, partition: int = 0) -> int:
        """Return a broker that a plan takes a partition from."""
        return next(each for each in self.origin()[partition] if each not in plan[partition])

    # Requests --------------------------------------------------------------------------------------------------------

    def try_to(self, plan: Mapping[int, Sequence[int] | None], topic: str = "") -> dict[int, KafkaliteError]:
        """Ask for a plan once, None cancels; return why partitions are refused, or nobody answered for them."""
        targets = {TopicPartition(topic or self.topics[0], number): to for number, to in plan.items()}
        try:
            with Admin(
                bootstrap_servers=self.stage.cluster.bootstrap,
                reconnect_backoff_max_ms=200,
                default_api_timeout_ms=_ASK_TIMEOUT_MS,
            ) as admin:
                outcomes: dict[TopicPartition, KafkaError | None] = admin.alter_partition_reassignments(targets)
        except KafkaliteError as error:
            return dict.fromkeys(plan, error)
        return {at.partition: error for at, error in outcomes.items() if error is not None}

    def begin(self, plan: Replicas, topic: str = "") -> None:
        """Ask for a plan until every partition is accepted."""
        left: dict[int, tuple[int, ...]] = dict(plan)

        def is_accepted() -> bool:
            refused = self.try_to(left, topic)
            for number in [each for each in left if each not in refused]:
                del left[number]
            return not left

        self.stage.wait_until(f"{plan} accepted for {topic or self.topics[0]}", is_accepted)

    def cancel(self, topic: str = "") -> None:
        """Cancel all reassignments of a topic; one may have ended meanwhile."""

        def is_cancelled() -> bool:
            moving = self.moving(topic)
            refused = self.try_to(dict.fromkeys(moving), topic) if moving else {}
            return all(isinstance(error, NoReassignmentInProgress) for error in refused.values())

        self.stage.wait_until(f"no reassignment of {topic or self.topics[0]}", is_cancelled)

    def moving(self, topic: str = "") -> set[int]:
        """Return the partitions whose reassignments are in progress."""
        found = self.assignment(topic)
        return found.adding.keys() | found.removing.keys()

    # What comes of them ----------------------------------------------------------------------------------------------

    def wait_for_copy(self, plan: Replicas, topic: str = "", partition: int = 0) -> None:
        """Return when a broker that a plan adds has begun to copy a partition, or has it already."""
        name = f"{topic or self.topics[0]}-{partition}"
        origin = self.origin(topic)[partition]
        added = [each for each in plan[partition] if each not in origin]
        self.stage.wait_until(
            f"{name} copied",
            lambda: (
                partition not in self.moving(topic)
                or any(
                    log.stat().st_size
                    for broker in added
                    for directory in self.stage.cluster.log_directories(broker)
                    for log in (directory / name).glob("*.log")
                )
            ),
        )

    def wait_until_moved(self, plan: Replicas, topic: str = "") -> None:
        """Return when each partition has the replicas of a plan, all in sync, and no reassignment is in progress."""
        cluster, name = self.stage.cluster.cluster, topic or self.topics[0]

        def is_moved(number: int) -> bool:
            found = self.assignment(topic)
            return (
                number not in found.adding.keys() | found.removing.keys()
                and found.partitions[number] == plan[number]
                and cluster.in_sync(name, number) == set(plan[number])
            )

        # One after the other, and as long as there is progress: gigabytes take their time on a busy host.
        for number in plan:
            what, copied = f"{name}-{number} moved to {plan[number]}", 0
            while not is_moved(number):
                self.stage.wait_until(
                    what,
                    lambda number=number, copied=copied: (  # type: ignore[misc]
                        is_moved(number) or self._copied(name, plan) >= copied + _PROGRESS_BYTES
                    ),
                )
                copied = self._copied(name, plan)

    def _copied(self, topic: str, plan: Replicas) -> int:
        """Return the bytes that brokers have of the partitions that a plan gives them."""
        total = 0
        for number, replicas in plan.items():
            for broker in replicas:
                for directory in self.stage.cluster.log_directories(broker):
                    for log in (directory / f"{topic}-{number}").glob("*.log"):
                        with contextlib.suppress(FileNotFoundError):
                            total += log.stat().st_size
        return total

    def check_files(self) -> None:
        """Wait until each broker has the logs that it is to have, and nothing else of the topics; note what stays. All
        brokers run."""
        try:
            self.stage.wait_until("no files of former replicas", lambda: not self._unlike()[0])
        except RunFailed:
            wrong, missing = self._unlike()
            self.stage.place.history.note(*wrong)
            if missing:
                raise RunFailed(f"brokers lack logs that they are to have: {', '.join(missing)}") from None

    def _unlike(self) -> tuple[list[Leftover], list[str]]:
        """Return the directories that are too many, and those that are missing."""
        wrong, missing = [], []
        for topic in self.topics:
            try:
                replicas = self.assignment(topic).partitions
            except ChildFailed:
                # It was deleted.
                replicas = {}
            of_topic = re.compile(re.escape(topic) + r"-[0-9]+(\..*)?")
            for broker in self.stage.brokers:
                found = {
                    path.name
                    for directory in self.stage.cluster.log_directories(broker)
                    for path in directory.iterdir()
                    if of_topic.fullmatch(path.name)
                }
                wanted = {f"{topic}-{number}" for number, brokers in replicas.items() if broker in brokers}
                now = time.monotonic()
                wrong += [Leftover(begun=now, ended=now, broker=broker, path=name) for name in sorted(found - wanted)]
                missing += [f"{name} on broker {broker}" for name in sorted(wanted - found)]
        return wrong, missing
