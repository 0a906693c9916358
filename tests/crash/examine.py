"""Starts a fresh broker on a disk that has lost its power, and says what of its promises is broken.

Everything is returned as text, so that a broker with a bug made on purpose can be held against the same questions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from spark_kafkalite import Admin, Consumer
from spark_kafkalite.cli import dump_log
from spark_kafkalite.errors import KafkaliteError, OffsetOutOfRange, RegistryError
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import DELETE_HORIZON_BIT, BatchHeader
from spark_kafkalite.registry.tree.database import DATABASE_NAME, NodeDatabase
from spark_kafkalite.registry.tree.tree import Tree
from tests.crash.workload import Holes, Plan, Promise, Workload
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import wait_until

_LEFT_BEHIND = re.compile(r".*\.(cleaned|swap|tmp)")
# What a broker says when it finds less than it knew to be there, or when something broke that nobody had thought of.
_CONFESSIONS = re.compile(r"^.*(are lost|ERROR|Traceback).*$", re.MULTILINE)
# What it says of offsets that it had given and whose records it has not found: a file's pages reach the disk in any
# order, so whole batches may lie behind a page that did not.
_HOLES = re.compile(
    r"ERROR \S+ (?P<topic>\S+)-0: \d+ offsets are missing in [^:]*: (?P<ranges>.*)\. A replica copies them"
)
# Nor need a segment be there that was not flushed, though the snapshot of producers at its first offset is.
_NO_LAST_SEGMENT = re.compile(
    r"ERROR \S+ (?P<topic>\S+)-0: the last segment is missing, which began at offset (?P<start>\d+)"
)
_RANGE = re.compile(r"(?:^|, )(\d+) to (\d+) \(")

# path: (czxid, version) of the registry's nodes, and the last transaction.
RegistryState = tuple[int, dict[str, tuple[int, int]]]


def registry_state(data_dir: Path) -> RegistryState | None:
    """Return what a registry's file holds; None when there is none yet. Raises RegistryError when it is damaged."""
    path = data_dir / "_registry" / DATABASE_NAME
    if not path.exists():
        return None
    database = NodeDatabase(path)
    tree = Tree()
    zxid, _ = database.load(tree)
    database.close()
    return zxid, {path: (node.czxid, node.version) for path, node in tree.nodes.items()}


def registry_problems(before: RegistryState | None, after: RegistryState | None) -> list[str]:
    """Return what went back between two states of which the second came later."""
    if before is None:
        return []
    if after is None:
        return ["the registry is gone"]
    problems = []
    if after[0] < before[0]:
        problems.append(f"the registry's zxid went from {before[0]} back to {after[0]}")
    for path, (created, version) in before[1].items():
        found = after[1].get(path)
        if found is not None and (found[0] < created or (found[0] == created and found[1] < version)):
            problems.append(f"registry node {path} went from version {version} back to {found}")
    return problems


class Examination:
    """One broker on one image."""

    def __init__(
        self, broker: BrokerProcess, data_dir: Path, workload: Workload, promise: Promise, holes: Holes | None = None
    ) -> None:
        self.problems: list[str] = []
        # What this examination's own records add to the promise: they were acknowledged as flushed too.
        self.promise = promise
        self._is_stuck = False
        # Records in each topic.
        self.found: dict[str, int] = {}
        self._broker = broker
        self._data_dir = data_dir
        self._workload = workload
        self._holes = {topic: [*known] for topic, known in (holes or workload.holes).items()}

    def run(self) -> None:
        """Start the broker and ask everything; ``problems`` holds what is wrong. The broker is left stopped."""
        try:
            self._broker.start()
        except ChildFailed as error:
            self.problems.append(f"the broker does not start: {error}")
            return
        self.look()

    def look(self) -> None:
        """Ask everything of the broker, which runs, and stop it."""
        try:
            self.check_output()
            self._check_topics()
            for plan in self._workload.plans:
                self._check_log(plan)
                if self._is_stuck:
                    return
            if self._broker.stop() != 0:
                self.problems.append(f"the broker does not stop in order: {self._broker.tail()}")
            self._check_files()
        except (KafkaliteError, ChildFailed, OSError) as error:
            self.problems.append(f"the broker does not serve: {error!r}{self._broker.tail()}")
        finally:
            self._broker.kill()

    def check_output(self) -> None:
        """Take up what the broker itself complains of."""
        output = self._broker.stderr_path.read_text(encoding="utf-8")
        for found in _CONFESSIONS.finditer(output):
            missing, last = _HOLES.search(found[0]), _NO_LAST_SEGMENT.search(found[0])
            if not ((missing and self._may_be_missing(missing)) or (last and self._may_end(last))):
                self.problems.append(f"the broker says: {found[0]}")

    def _may_be_missing(self, told: re.Match[str]) -> bool:
        """Take note of the holes that a broker tells of; False when it had promised something of them."""
        topic = told["topic"]
        holes = holes_told(told)
        self._holes.setdefault(topic, []).extend(holes)
        kept = self.promise.kept.get(topic, {})
        return bool(holes) and not any(offset in hole for hole in holes for offset in kept)

    def _may_end(self, told: re.Match[str]) -> bool:
        """Return whether the broker has promised nothing of the last segment, which it misses."""
        return not any(offset >= int(told["start"]) for offset in self.promise.kept.get(told["topic"], {}))

    def _check_topics(self) -> None:
        with Admin(bootstrap_servers=self._broker.bootstrap) as admin:
            there = set(admin.list_topics())
        # Removed meanwhile on the live broker: may be there, and need not.
        missing = self.promise.created - there - self._workload.may_exist
        missing |= {name for name in self.promise.created & self._workload.created if name not in there}
        self.problems += [f"topic {name} was created and is not there" for name in sorted(missing)]
        self.problems += [f"topic {name} was deleted and is back" for name in sorted(self.promise.deleted & there)]

    def _check_log(self, plan: Plan) -> None:
        topic = plan.topic
        try:
            start, end, found = self._read(topic)
        except KafkaliteError as error:
            self.problems.append(f"{topic} cannot be read: {error!r}")
            return
        self.found[topic] = len(found)
        if self._is_stuck:
            # Whatever it was, it may not come again: say all that there is to see.
            files = sorted((path.name, path.stat().st_size) for path in (self._data_dir / f"{topic}-0").iterdir())
            last = found[-1][0] if found else None
            self.problems.append(
                f"{topic}: {len(found)} records from {start} on, the last at {last}, and no end at {end}; {files}"
                f"{self._broker.tail()}"
            )
            return
        offsets = [offset for offset, _, _ in found]
        missing = {offset for hole in self._holes.get(topic, ()) for offset in hole}
        if plan.is_compacted:
            if offsets != sorted(set(offsets)) or (offsets and not start <= offsets[0] <= offsets[-1] < end):
                self.problems.append(f"{topic}: from {start} to {end}, but the offsets are {offsets}")
        elif offsets != [offset for offset in range(start, end) if offset not in missing]:
            self.problems.append(f"{topic}: from {start} to {end}, but {_first_gap(offsets, start)}")
        numbers = {offset: plan.number_at(offset, key, value) for offset, key, value in found}
        sent = self._workload.writers[topic].sent
        wrong = [offset for offset, number in numbers.items() if number is None or number >= sent]
        if wrong:
            self.problems.append(f"{topic}: {len(wrong)} records were never sent, the first at {wrong[0]}")
        self._check_start(plan, start)
        if missing and plan.is_compacted:
            return  # from the hole on its records have other numbers than their offsets
        self._check_kept(plan, start, end, numbers)
        if plan.idempotent:
            # What a hole has taken had not been acknowledged: it is sent again, behind the hole.
            moved = [
                offset
                for offset, number in numbers.items()
                if number is not None and number != offset - sum(gone < offset for gone in missing)
            ]
            if moved:
                self.problems.append(f"{topic}: repeated or skipped: record {numbers[moved[0]]} at offset {moved[0]}")
            self._go_on(topic, offsets[-1] if offsets else None, end)

    def _check_start(self, plan: Plan, start: int) -> None:
        told = self.promise.starts[plan.topic]
        if start < told:
            self.problems.append(f"{plan.topic}: the log start went from {told} back to {start}")
        if plan.is_trimmed and start > self._workload.asked_starts.get(plan.topic, 0):
            self.problems.append(f"{plan.topic}: the log starts at {start}, and nobody has asked for that")

    def _check_kept(self, plan: Plan, start: int, end: int, numbers: Mapping[int, int | None]) -> None:
        kept = self.promise.kept[plan.topic]
        if plan.is_compacted:
            # Every key's last record, and delete markers as long as they please.
            last_of_key = {plan.record(number)[0]: number for number in range(start, end)}
            must_be_there = {number: number for number in last_of_key.values() if plan.record(number)[1] is not None}
            if kept and max(kept) >= end:
                must_be_there[max(kept)] = kept[max(kept)]
        else:
            must_be_there = {offset: number for offset, number in kept.items() if offset >= start}
        lost = [offset for offset, number in must_be_there.items() if numbers.get(offset) != number]
        if lost:
            first = min(lost)
            self.problems.append(
                f"{plan.topic}: {len(lost)} of {len(must_be_there)} promised records are lost, the first at {first}: "
                f"{numbers.get(first)} instead of {must_be_there[first]}, the log is {start} to {end}"
            )

    def _read(self, topic: str) -> tuple[int, int, list[tuple[int, bytes | None, bytes | None]]]:
        """Return where the log starts and ends, and its records. Where retention takes records away meanwhile, all is
        read again."""
        found: list[tuple[int, bytes | None, bytes | None]] = []
        start = end = 0
        with Consumer(bootstrap_servers=self._broker.bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([(topic, 0)])

            def begin() -> None:
                nonlocal start, end
                found.clear()
                start = next(iter(consumer.beginning_offsets([(topic, 0)]).values()))
                end = next(iter(consumer.end_offsets([(topic, 0)]).values()))
                consumer.seek((topic, 0), start)

            def is_at_the_end() -> bool:
                if consumer.position((topic, 0)) < end:
                    try:
                        found.extend((record.offset, record.key, record.value) for record in consumer.poll(500, 20_000))
                    except OffsetOutOfRange:
                        begin()
                return consumer.position((topic, 0)) >= end

            begin()
            try:
                wait_until(is_at_the_end, f"the end of {topic}")
            except AssertionError:
                self._is_stuck = True
        return start, end, found

    def _go_on(self, topic: str, last_offset: int | None, end: int) -> None:
        """Be the producer that comes back: its last batch again, which must not be written twice, and a next one."""
        if last_offset is None:
            return
        with RawClient(self._broker.bootstrap) as client:
            fetched = client.fetch(topic, last_offset, max_wait_ms=0)
            headers = kernel.scan_headers(fetched.records)
            # Behind the last records there may be a batch that stands for a hole. One of which compaction has taken
            # all records away has the producer's last sequence still.
            while headers and not headers[-1].record_count and headers[-1].producer_id < 0:
                headers.pop()
            if not headers:
                return
            last: BatchHeader = headers[-1]
            position = sum(header.size_bytes for header in headers[:-1])
            # What compaction has taken records from is not what the producer has sent, and would send again.
            if last.record_count == last.last_offset_delta + 1 and not last.attributes & DELETE_HORIZON_BIT:
                again = bytearray(bytes(fetched.records)[position : position + last.size_bytes])
                # As the producer has sent it: without an offset.
                kernel.stamp(again, 0, 0, -1)
                answer = client.produce(topic, again)
                if (answer.error_code, answer.base_offset) != (0, last.base_offset):
                    self.problems.append(
                        f"{topic}: the last batch, at {last.base_offset}, sent again: error {answer.error_code}, "
                        f"offset {answer.base_offset}"
                    )
            following = make_batch(
                [b"after the power came back"],
                key=b"key",
                timestamp_ms=time.time_ns() // 1_000_000,
                producer_id=last.producer_id,
                producer_epoch=last.producer_epoch,
                base_sequence=last.last_sequence + 1,
            )
            answer = client.produce(topic, following)
            if (answer.error_code, answer.base_offset) != (0, end):
                self.problems.append(
                    f"{topic}: the producer cannot go on at {end}: error {answer.error_code}, "
                    f"offset {answer.base_offset}"
                )

    def _check_files(self) -> None:
        # Removed logs, and those that were about to be: nobody reads them any more, and they may be cut anywhere.
        gone = ("-delete", "-stray")
        logs = [path for path in self._data_dir.glob("*-*") if path.is_dir() and not path.name.endswith(gone)]
        left = [path for log in logs for path in log.iterdir() if _LEFT_BEHIND.fullmatch(path.name)]
        self.problems += [f"left behind: {path}" for path in left]
        checked = CliRunner().invoke(dump_log.command, ["--check", *map(str, logs)], standalone_mode=False)
        if checked.exception is not None or checked.return_value != 0:
            damage = [line for line in checked.output.splitlines() if "damage" in line.lower() or "error" in line]
            self.problems.append(f"dump-log --check: {damage or checked.output[-500:]} {checked.exception or ''}")


def holes_told(told: re.Match[str]) -> list[range]:
    """Return the offsets that a broker's line names as missing; none when it names only some of the holes."""
    if told["ranges"].endswith("more holes"):
        return []
    return [range(int(first), int(last) + 1) for first, last in _RANGE.findall(told["ranges"])]


def holes_of(output: str, known: Holes) -> Holes:
    """Return the holes that are known and those that a broker has told of at its start."""
    holes = {topic: [*ranges] for topic, ranges in known.items()}
    for told in _HOLES.finditer(output):
        holes.setdefault(told["topic"], []).extend(holes_told(told))
    return holes


def _first_gap(offsets: list[int], start: int) -> str:
    expected = start
    for offset in offsets:
        if offset != expected:
            return f"offset {offset} follows {expected - 1}"
        expected += 1
    return f"nothing follows {expected - 1}"


def open_registry_problem(data_dir: Path) -> tuple[RegistryState | None, list[str]]:
    """Return the registry's state, or why it cannot be read."""
    try:
        return registry_state(data_dir), []
    except RegistryError as error:
        return None, [f"the registry is damaged: {error}"]
