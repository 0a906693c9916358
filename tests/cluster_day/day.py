"""A day of a cluster in an hour, or in less: everything goes on at once, and in the end all counts are equal.

Three brokers over a ZooKeeper ensemble of three; a load that grows; groups whose members come and go; topics that are
made and deleted; a Spark stream and an hourly load into files; faults, one after the other.

By hand: ``python -m tests.cluster_day.day [--seconds N] [--seed N] [--directory D]`` prints a report; the exit code is
1 when anything was wrong. A directory that was not named is removed when nothing was.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.processes.child_process import ChildFailed
from tests.cluster_day.counts import Row, wrong_in_copy, wrong_in_log
from tests.cluster_day.day_cluster import OFFSETS, DayCluster
from tests.cluster_day.faults import Faults
from tests.cluster_day.groups import Group
from tests.cluster_day.health import Health
from tests.cluster_day.load import ConfluentSender, OurSender, Sender
from tests.cluster_day.part import PARTITIONS, TOPIC, Part, PartFailed, Plan, wait_until
from tests.cluster_day.passing_topics import PassingTopics
from tests.cluster_day.spark_parts import HourlyLoad, SparkStream, rows_of_files
from tests.seeds import SEED

SECONDS: Final = 3600.0
# The longest time without an acknowledgement in a partition: a session's end and an election, and whatever the clients
# take to hear of them on a machine that is too small for all this.
LONGEST_GAP_S: Final = 45.0
# Of the brokers among themselves; they may differ by who is the controller.
_MORE_SOCKETS: Final = 4
_AT_REST_WITHIN_S: Final = 60.0
_POLL_MS: Final = 10_000
_LOOK_S: Final = 0.5

logger = logging.getLogger(__name__)


@dataclass
class Report:
    """What came of a day: lines to be printed, and all that was wrong."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)
        logger.info("%s", line)

    def text(self) -> str:
        verdict = [f"WRONG: {problem}" for problem in self.problems] or ["nothing was wrong"]
        return "\n".join([*self.lines, *verdict])


class Day:
    """All parts of a day on a cluster that runs."""

    def __init__(self, plan: Plan, cluster: DayCluster, report: Report) -> None:
        self.plan = plan
        self.cluster = cluster
        self.report = report
        bootstrap = cluster.bootstrap
        self.health = Health(plan, cluster)
        self.senders: list[Sender] = [OurSender("ours", plan, bootstrap), ConfluentSender("confluent", plan, bootstrap)]
        self.groups = [Group("range", plan, bootstrap), Group("cooperative-sticky", plan, bootstrap)]
        self.passing = PassingTopics(plan, bootstrap)
        self.stream = SparkStream(plan, bootstrap)
        self.hourly = HourlyLoad(plan, bootstrap)
        self.faults = Faults(plan, cluster)
        self.parts: list[Part] = [
            self.health, *self.senders, *self.groups, self.passing, self.stream, self.hourly, self.faults
        ]  # fmt: skip

    def play(self) -> None:
        """Play the day and compare everything. Raises PartFailed, ChildFailed."""
        self._began = time.monotonic()
        sockets_before = self.health.open_sockets()
        with contextlib.ExitStack() as undo:
            for part in self.parts:
                part.start()
                undo.callback(part.close)
            self._wait_for_the_evening()
            self._end_parts()
        self._come_to_rest(sockets_before)
        self._compare()

    def _wait_for_the_evening(self) -> None:
        hour = 0
        while (now := time.monotonic()) < self._began + self.plan.seconds:
            if now > self._began + (hour + 1) * self.plan.hour_s:
                hour += 1
                acknowledged = sum(len(sender.acknowledged) for sender in self.senders)
                logger.info("%d o'clock: %d records, %s", hour, acknowledged, self.faults.around(now))
            if problems := [part.problem for part in self.parts if part.problem]:
                raise PartFailed("\n".join(problems))
            time.sleep(_LOOK_S)

    def _end_parts(self) -> None:
        """End one part after the other: first the faults, then who writes, then who reads to the end."""
        self._end(self.faults, self.health)
        self.cluster.wait_until_whole()
        self._end(self.passing, *self.senders)
        self._end_offsets = self._ends()
        self._end(self.stream, self.hourly, *self.groups)
        for group in self.groups:
            group.drain(self._end_offsets)
        self.stream.drain()
        self.hourly.load()

    def _end(self, *parts: Part) -> None:
        for part in parts:
            part.stop()
        for part in parts:
            part.join()

    def _come_to_rest(self, sockets_before: int) -> None:
        """With all clients gone, and every replica in sync, nothing may be left of them or of deleted topics."""
        self.cluster.wait_until_whole()
        wait_until(lambda: not self.cluster.orphans(), _AT_REST_WITHIN_S, lambda: f"{self.cluster.orphans()} to go")
        most = sockets_before + _MORE_SOCKETS
        wait_until(
            lambda: self.health.open_sockets() <= most,
            _AT_REST_WITHIN_S,
            lambda: f"{self.health.open_sockets()} sockets of a broker at rest to be at most {most}",
        )
        self.report.say(f"sockets at rest: {sockets_before} before, {self.health.open_sockets()} after")

    def _compare(self) -> None:
        rows = self._log_rows()
        log = {(partition, offset): value for partition, offset, value in rows}
        found = rows_of_files(self.plan.directory / "rows", self.stream, self.hourly)
        acknowledged = {value: at for sender in self.senders for value, at in sender.acknowledged.items()}
        problems = self.report.problems
        problems += wrong_in_log(acknowledged, rows)
        problems += wrong_in_copy("files of the stream", log, found["stream"])
        problems += wrong_in_copy("files of the load", log, found["load"])
        loaded = sum(self.hourly.records)
        if loaded != len(log):
            problems.append(f"the runs of the load say {loaded} records, the log has {len(log)}")
        for group in self.groups:
            seen = list(group.rows())
            problems += wrong_in_copy(group.name, log, seen, each_once=False)
            problems += group.wrongs(self._end_offsets)
            self.report.say(f"{group.name}: {len(seen)} records read, {len(set(seen))} of them different")
        self.report.say(
            f"acknowledged {len(acknowledged)}, in the log {len(rows)}, in the stream's files {len(found['stream'])}, "
            f"in the load's files {len(found['load'])}"
        )
        problems += [problem for trend in self.health.trends if (problem := trend.problem)]
        for sender in self.senders:
            if sender.longest_gap[0] > LONGEST_GAP_S:
                problems.append(f"{sender.name}: {sender.longest_gap[0]:.1f} s without an acknowledgement")

    def tell(self) -> None:
        """Add to the report what happened, however far the day came."""
        say = self.report.say
        for sender in self.senders:
            gap_s, ended, partition = sender.longest_gap
            around = f"at {ended - self._began:.0f} s in partition {partition}, {self.faults.around(ended)}"
            say(f"producer {sender.name}: {sender.sent} sent, longest gap {gap_s:.1f} s ({around})")
        for group in self.groups:
            say(f"{group.name}: members {dict(group.ends)}")
        say(f"topics that came and went: {self.passing.rounds}, tried again after: {dict(self.passing.errors)}")
        say(f"stream: killed {self.stream.kills} time(s); runs of the load: {len(self.hourly.records)}")
        say(f"started again, too busy a machine: stream {self.stream.slow_starts}, load {self.hourly.slow_starts}")
        say(f"faults: {dict(self.faults.counts())}")
        for trend in self.health.trends:
            say(str(trend))

    def _ends(self) -> dict[int, int]:
        with Consumer(bootstrap_servers=self.cluster.bootstrap) as consumer:
            found = consumer.end_offsets([(TOPIC, partition) for partition in range(PARTITIONS)])
        return {at.partition: offset for at, offset in found.items()}

    def _log_rows(self) -> list[Row]:
        rows: list[Row] = []
        with Consumer(bootstrap_servers=self.cluster.bootstrap) as consumer:
            consumer.assign([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)])
            consumer.seek_to_beginning()
            while any(consumer.position((TOPIC, at)) < end for at, end in self._end_offsets.items()):
                batch = consumer.poll_columns(_POLL_MS)
                if batch is None:
                    raise PartFailed(f"nothing to read for {_POLL_MS} ms, with {len(rows)} records read")
                columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
                rows.extend(zip(*columns, strict=True))
        return rows


def play_day(plan: Plan) -> Report:
    """Play a day on a cluster of its own, and stop that."""
    report = Report()
    try:
        with DayCluster(plan.directory) as cluster:
            _prepare(cluster)
            day = Day(plan, cluster, report)
            try:
                day.play()
            finally:
                day.tell()
            cluster.stop_all()
            report.problems += [*cluster.replicas_that_differ(), *cluster.complaints()]
    except (PartFailed, ChildFailed) as error:
        report.problems.append(str(error))
    return report


def _prepare(cluster: DayCluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS, 3)
    # It makes the topic of the groups' offsets, of which a fault may wait to be whole.
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="first") as consumer:
        consumer.committed([(TOPIC, 0)])
    cluster.wait_in_sync(TOPIC, OFFSETS)


@contextlib.contextmanager
def _directory(named: Path | None, report: list[Report]) -> Iterator[Path]:
    """Have a directory; one that was not named goes when a report says that nothing was wrong."""
    directory = named or Path(tempfile.mkdtemp(prefix="kafkalite-day-"))
    directory.mkdir(parents=True, exist_ok=True)
    yield directory
    if named is None and report and not report[0].problems:
        shutil.rmtree(directory, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="day", description="Play a day of a cluster, and compare all counts.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it lasts (3600)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--directory", type=Path, help="where everything is left; must be empty")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("spark_kafkalite").setLevel(logging.ERROR)
    reports: list[Report] = []
    with _directory(options.directory, reports) as directory:
        print(f"seed {options.seed}, {options.seconds:.0f} s, {directory}", flush=True)
        reports.append(play_day(Plan(options.seconds, options.seed, directory)))
    print(reports[0].text())
    return 1 if reports[0].problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
