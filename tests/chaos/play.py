"""Plays rows of faults on one cluster that stays up, then stops it and reads its files.

By hand: ``python -m tests.chaos.play [--seed N] [--directory D] [--namespaces] [--mixed-seconds S] [--report PAGE]
ROW...`` plays rows and prints each verdict; ``--namespaces`` has every broker, the registry and the clients on hosts of
their own, which needs root. ``--report`` writes what came of them into a page's table (``tests.chaos.report``).
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.processes.child_process import ChildFailed
from tests.chaos.clients.client import HARD_END_S, Place
from tests.chaos.clients.producers import compile_java_producer
from tests.chaos.history import Complaint, HistoryWriter, Leftover
from tests.chaos.judge import judge_files
from tests.chaos.lines import ForwardedLines, HostLines, Lines
from tests.chaos.our_cluster import ChaosCluster
from tests.chaos.played_cluster import PlayedCluster
from tests.chaos.report import line_of, update_report
from tests.chaos.rows import MORE_ROWS, ROWS, Row, Stage
from tests.chaos.workload import RunFailed, Workload, make_topic
from tests.network import hosts
from tests.seeds import SEED, SOAK

logger = logging.getLogger(__name__)

_STEADY_S = 2.0
_STEADY_RECORDS = 20 if SOAK else 10
_LOOK_S = 0.1


@dataclass
class Played:
    """A row that has been played: its history, and why it could not be played to its end."""

    row: Row
    seed: int
    path: Path
    problem: str = ""


@dataclass
class Round:
    """All rows of a run by their labels, and what the brokers complain of."""

    rows: dict[str, Played] = field(default_factory=dict)
    complaints: list[Complaint | Leftover] = field(default_factory=list)


def play(
    rows: Iterable[Row],
    directory: Path,
    seed: int,
    make_lines: Callable[[int], Lines] = ForwardedLines,
    mixed_s: float = 60.0,
) -> Round:
    """Play rows in a random order, those that need another kind of brokers on another cluster; their histories are in
    the directory, ready to be judged."""
    found = Round()
    order = list(rows)
    random.Random(seed).shuffle(order)
    clusters: dict[object, list[Row]] = {}
    for row in order:
        overrides = tuple(sorted(row.overrides.items()))
        kind = (row.brokers, row.disks, row.on_zookeeper, overrides, row.label if row.is_alone else "")
        clusters.setdefault(kind, []).append(row)
    with ThreadPoolExecutor(1, "javac") as compiler:
        # While the cluster starts.
        compiled = compiler.submit(compile_java_producer)
        for number, alike in enumerate(clusters.values(), 1):
            first = alike[0]
            cluster = ChaosCluster(
                directory / f"cluster-{number}",
                lines=make_lines(first.brokers),
                overrides=first.overrides,
                disks=first.disks,
                on_zookeeper=first.on_zookeeper,
            )
            with cluster:
                play_on(cluster, alike, directory, seed, compiled.result(), mixed_s, found)
    return found


def play_on(
    cluster: PlayedCluster,
    rows: Iterable[Row],
    directory: Path,
    seed: int,
    class_path: str,
    mixed_s: float,
    found: Round,
) -> None:
    """Play rows, each with a topic of its own, one after the other on a cluster that runs; stop it and note its files.
    ``class_path`` has the Java producer."""
    topics: dict[str, dict[str, str]] = {}
    foreseen: list[str] = []
    broken = ""
    for row in rows:
        logger.info("row %s: %s", row.label, row.name)
        played = found.rows[row.label] = Played(row, seed, directory / f"row-{row.label}.jsonl")
        foreseen += row.foreseen
        with HistoryWriter(played.path) as history:
            if broken:
                played.problem = f"not played, because the cluster is broken: {broken}"
                continue
            try:
                name = f"row-{row.label}"
                place = make_topic(
                    cluster.bootstrap,
                    cluster.addresses,
                    name,
                    history,
                    replicas=row.replicas,
                    seed=seed,
                    configs=row.configs,
                )
                stage = Stage(cluster, place, random.Random(f"{seed} {row.label}"), mixed_s)
                stage.topics[place.topic_id] = place.topic
                topics[row.label] = stage.topics
                _play(stage, row, directory, class_path)
            except (RunFailed, ChildFailed, KafkaliteError) as error:
                played.problem = str(error)
                logger.info("row %s: %s", row.label, error)
                try:
                    cluster.mend()
                except ChildFailed as failure:
                    broken = str(failure)
    cluster.stop()
    for label, of_row in topics.items():
        with HistoryWriter(found.rows[label].path) as history:
            cluster.note_files(history, of_row)
    for complaint in cluster.complaints():
        if not (isinstance(complaint, Complaint) and any(text in complaint.text for text in foreseen)):
            found.complaints.append(complaint)


def _play(stage: Stage, row: Row, directory: Path, class_path: str) -> None:
    cluster, place = stage.cluster, stage.place
    workload = Workload(place, directory, class_path, loses_records=row.loses_records)
    try:
        workload.start()
        stage.workload = workload
        stage.wait_for_more(_STEADY_RECORDS)
        cluster.note_health(place.history, "before")
        row.play(stage)
        logger.info("row %s: healed", row.label)
        _come_to_rest(cluster, place, workload)
        workload.finish()
    finally:
        workload.stop()
    for number, broker in cluster.brokers.items():
        if not broker.running:
            raise RunFailed(f"broker {number} has ended by itself")
    cluster.note_health(place.history, "after")
    cluster.note_states(place)
    cluster.note_registrations(place.history)


def _come_to_rest(cluster: PlayedCluster, place: Place, workload: Workload) -> None:
    """Wait until every ISR has been full for some seconds, and the leaders have said so: on a busy host they hear of it
    late. After a silence TCP sends again ever more seldom: a follower may leave the ISR when its line has long been
    mended. That they do not come back is for the judge to say."""
    until = time.monotonic() + HARD_END_S
    steady_since = time.monotonic()
    while (now := time.monotonic()) < steady_since + _STEADY_S and now < until:
        if not all(_is_at_rest(cluster, place, workload, at) for at in range(place.partitions)):
            steady_since = time.monotonic()
        time.sleep(_LOOK_S)


def _is_at_rest(cluster: PlayedCluster, place: Place, workload: Workload, partition: int) -> bool:
    full = cluster.replicas_of(place, partition)
    leader = cluster.leader_of(place, partition)
    return cluster.in_sync(place, partition) == full == workload.in_sync_by(leader, partition)


def main(arguments: list[str]) -> int:
    by_label = {row.label: row for row in (*ROWS, *MORE_ROWS)}

    def row(label: str) -> Row:
        if label not in by_label:
            raise argparse.ArgumentTypeError(f"there is no row {label}: {', '.join(by_label)}")
        return by_label[label]

    parser = argparse.ArgumentParser(prog="play", description="Play rows of faults on a cluster of ours.")
    parser.add_argument("rows", nargs="*", type=row, metavar="ROW", help="all when none is named")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--directory", type=Path, help="where data and histories are left; a new one by default")
    parser.add_argument("--namespaces", action="store_true", help="hosts of their own for everybody; needs root")
    parser.add_argument("--mixed-seconds", type=float, default=60.0, help="how long row 9 lasts (60)")
    parser.add_argument("--report", type=Path, help="a page whose table of rows gets what came of these")
    options = parser.parse_args(arguments)
    rows = options.rows or list(by_label.values())
    if options.namespaces and (reason := hosts.problem()) is not None:
        parser.error(f"--namespaces: {reason}")
    if options.namespaces and (apart := [row.label for row in rows if row.needs_loopback]):
        parser.error(f"--namespaces: rows {', '.join(apart)} are for loopback")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=[logging.StreamHandler()])
    logging.getLogger("spark_kafkalite").setLevel(logging.ERROR)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kafkalite-chaos-"))
    print(f"seed {options.seed}, {directory}", flush=True)
    make_lines = HostLines if options.namespaces else ForwardedLines
    found = play(rows, directory, options.seed, make_lines, options.mixed_seconds)
    is_wrong = bool(found.complaints)
    verdicts = {label: judge_files([played.path]) for label, played in found.rows.items()}
    for label, played in found.rows.items():
        is_wrong = is_wrong or bool(verdicts[label].violations or played.problem)
        print(f"\nrow {label}: {played.row.name} {played.problem}\n{verdicts[label].text()}")
    for complaint in found.complaints:
        print(complaint)
    if options.report is not None:
        lines = [
            line_of(label, played.row.name, played.seed, verdicts[label], played.problem)
            for label, played in found.rows.items()
        ]
        update_report(options.report, lines)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
