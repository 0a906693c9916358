"""Plays rows of faults on one cluster that stays up, then stops it and reads its files.

By hand: ``python -m tests.chaos.play [--seed N] [--directory D] [--namespaces] ROW...`` plays rows and prints each
verdict; ``--namespaces`` has every broker, the registry and the clients on hosts of their own, which needs root.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from spark_kafkalite.testing.child_process import ChildFailed
from tests.chaos.clients.client import Place
from tests.chaos.clients.producers import compile_java_producer
from tests.chaos.history import Complaint, HistoryWriter, Leftover
from tests.chaos.judge import judge_files
from tests.chaos.lines import ForwardedLines, HostLines, Lines
from tests.chaos.our_cluster import SIZE, ChaosCluster
from tests.chaos.rows import MORE_ROWS, ROWS, Row, Stage
from tests.chaos.workload import RunFailed, Workload, make_topic
from tests.network import hosts

logger = logging.getLogger(__name__)

_STEADY_S = 2.0
_REST_WITHIN_S = 30.0
_LOOK_S = 0.1


@dataclass
class Played:
    """A row that has been played: its history, and why it could not be played to its end."""

    path: Path
    problem: str = ""


@dataclass
class Round:
    """All rows of a run by their numbers, and what the brokers complain of."""

    rows: dict[int, Played] = field(default_factory=dict)
    complaints: list[Complaint | Leftover] = field(default_factory=list)


def play(rows: Iterable[Row], directory: Path, seed: int, lines: Lines | None = None) -> Round:
    """Play rows in a random order; their histories are in the directory, ready to be judged."""
    found = Round()
    order = list(rows)
    random.Random(seed).shuffle(order)
    with ThreadPoolExecutor(1, "javac") as compiler:
        # While the cluster starts.
        compiled = compiler.submit(compile_java_producer, directory / "java")
        with ChaosCluster(directory / "cluster", lines=lines) as cluster:
            _play_all(order, cluster, directory, seed, compiled.result(), found)
    return found


def _play_all(
    rows: Iterable[Row], cluster: ChaosCluster, directory: Path, seed: int, class_path: str, found: Round
) -> None:
    topics: dict[int, Place] = {}
    for row in rows:
        logger.info("row %d: %s", row.number, row.play.__name__)
        played = found.rows[row.number] = Played(directory / f"row-{row.number}.jsonl")
        with HistoryWriter(played.path) as history:
            try:
                name = f"row-{row.number}"
                place = make_topic(cluster.bootstrap, cluster.addresses, name, history, replicas=3, seed=seed)
                topics[row.number] = place
                _play(cluster, place, row, directory, class_path)
            except (RunFailed, ChildFailed) as error:
                played.problem = str(error)
                logger.info("row %d: %s", row.number, error)
                _mend(cluster)
    cluster.stop()
    for number, place in topics.items():
        with HistoryWriter(found.rows[number].path) as history:
            cluster.note_files(history, {place.topic_id: place.topic})
    found.complaints = cluster.complaints()


def _play(cluster: ChaosCluster, place: Place, row: Row, directory: Path, class_path: str) -> None:
    workload = Workload(place, directory, class_path)
    try:
        workload.start()
        time.sleep(_STEADY_S)
        cluster.note_health(place.history, "before")
        row.play(Stage(cluster, place, random.Random(f"{place.seed} {row.number}")))
        logger.info("row %d: healed", row.number)
        _come_to_rest(cluster, place)
        workload.finish()
    finally:
        workload.stop()
    cluster.note_health(place.history, "after")
    cluster.note_states(place)
    cluster.note_registrations(place.history)


def _come_to_rest(cluster: ChaosCluster, place: Place) -> None:
    """Wait until every ISR has been full for some seconds. After a silence TCP sends again ever more seldom: a follower
    may leave the ISR when its line has long been mended. That they do not come back is for the judge to say."""
    until = time.monotonic() + _REST_WITHIN_S
    steady_since = time.monotonic()
    while (now := time.monotonic()) < steady_since + _STEADY_S and now < until:
        if any(len(cluster.cluster.in_sync(place.topic, at)) < len(cluster.brokers) for at in range(place.partitions)):
            steady_since = time.monotonic()
        time.sleep(_LOOK_S)


def _mend(cluster: ChaosCluster) -> None:
    """Have the cluster as the next row expects it, whatever the last one left."""
    cluster.lines.heal()
    for broker in cluster.brokers.values():
        if broker.running:
            broker.resume()
        else:
            broker.start()


def main(arguments: list[str]) -> int:
    by_number = {row.number: row for row in (*ROWS, *MORE_ROWS)}
    parser = argparse.ArgumentParser(prog="play", description="Play rows of faults on a cluster of ours.")
    parser.add_argument("rows", nargs="*", type=int, choices=by_number, metavar="ROW", help="all when none is named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--directory", type=Path, help="where data and histories are left; a new one by default")
    parser.add_argument("--namespaces", action="store_true", help="hosts of their own for everybody; needs root")
    options = parser.parse_args(arguments)
    if options.namespaces and (reason := hosts.problem()) is not None:
        parser.error(f"--namespaces: {reason}")
    lines = HostLines(SIZE) if options.namespaces else ForwardedLines(SIZE)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=[logging.StreamHandler()])
    logging.getLogger("spark_kafkalite").setLevel(logging.ERROR)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kafkalite-chaos-"))
    print(f"seed {options.seed}, {directory}", flush=True)
    found = play([by_number[number] for number in options.rows or by_number], directory, options.seed, lines)
    is_wrong = bool(found.complaints)
    for number, played in found.rows.items():
        verdict = judge_files([played.path])
        is_wrong = is_wrong or bool(verdict.violations or played.problem)
        print(f"\nrow {number} {played.problem}\n{verdict.text()}")
    for complaint in found.complaints:
        print(complaint)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
