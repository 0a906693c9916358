"""The same load, rows and judge on three nodes of Apache Kafka: what is asked of us is what it does itself, and whoever
judges finds nothing there. Rows that only need processes are played; each has a topic of its own on a cluster that
stays up.

``KAFKALITE_SOAK=1`` runs it; ``-k chase`` plays one row. ``KAFKALITE_CHAOS_SEED=N`` repeats the chances of a run, which
prints it.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from pathlib import Path

import pytest

from spark_kafkalite.testing import apache_kafka, jars
from spark_kafkalite.testing.child_process import ChildFailed
from tests.chaos.apache_cluster import ApacheChaosCluster
from tests.chaos.clients.producers import compile_java_producer
from tests.chaos.history import Event, HistoryWriter, read_history
from tests.chaos.judge import Verdict, judge
from tests.chaos.played_cluster import PlayedCluster
from tests.chaos.rows import MORE_ROWS, ROWS, Row, Stage
from tests.chaos.workload import RunFailed, Workload, make_topic
from tests.conftest import fetch_or_skip

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1800)]

_STEADY_S = 2.0
# It starts more slowly than our brokers, its controllers are missed like brokers, and it promises no times.
_TIMES_OURS = 4.0
_BOUNDS = {"longest_gap_s", "isr_within_s", "resumes_within_s", "within_s"}
_BY_PROCESSES = (
    "baseline",
    "stop_in_order",
    "chase_the_leader",
    "kill_the_controller",
    "kill_two",
    "kill_all",
    "pause_the_leader",
)
_ROWS = [row for row in (*ROWS, *MORE_ROWS) if row.play.__name__ in _BY_PROCESSES]


@dataclasses.dataclass
class Played:
    verdict: Verdict
    problem: str = ""


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """All rows that this run has chosen, played and judged, by their functions' names."""
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    mine = [item for item in request.session.items if item.path == request.path]
    chosen = [item.callspec.params["row"] for item in mine if hasattr(item, "callspec")]
    seed = int(os.environ.get("KAFKALITE_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"KAFKALITE_CHAOS_SEED={seed}")
    directory = tmp_path_factory.mktemp("apache-chaos")
    class_path = compile_java_producer(directory / "java")
    topics: dict[str, dict[str, str]] = {}
    problems: dict[str, str] = {}
    with ApacheChaosCluster(directory / "cluster") as cluster:
        for row in chosen:
            name = row.play.__name__
            with HistoryWriter(directory / f"{name}.jsonl") as history:
                place = make_topic(cluster.bootstrap, cluster.addresses, name, history, replicas=3, seed=seed)
                topics[name] = {place.topic_id: place.topic}
                workload = Workload(place, directory, class_path)
                try:
                    _play(cluster, row, Stage(cluster, place, random.Random(f"{seed} {name}")), workload)
                except (RunFailed, ChildFailed) as error:
                    problems[name] = str(error)
                finally:
                    workload.stop()
                    _restore(cluster)
        cluster.stop()
        found = {}
        for name, ids in topics.items():
            with HistoryWriter(directory / f"{name}.jsonl") as history:
                cluster.note_files(history, ids)
            found[name] = Played(_judge(directory / f"{name}.jsonl"), problems.get(name, ""))
    return found


def _play(cluster: PlayedCluster, row: Row, stage: Stage, workload: Workload) -> None:
    place = stage.place
    workload.start()
    time.sleep(_STEADY_S)
    cluster.note_health(place.history, "before")
    row.play(stage)
    cluster.wait_in_sync(place)
    workload.finish()
    cluster.note_health(place.history, "after")
    cluster.note_states(place)


def _restore(cluster: PlayedCluster) -> None:
    """Have the cluster as the next row expects it, whatever the last one left."""
    for broker in cluster.brokers.values():
        if broker.running:
            broker.resume()
        else:
            broker.start()


def _judge(path: Path) -> Verdict:
    return judge(map(_patiently, read_history([path])))


def _patiently(event: Event) -> Event:
    """Return what is asked of ours as it is asked of Apache Kafka."""
    present = {field.name for field in dataclasses.fields(event)} & _BOUNDS
    bounds = {name: value * _TIMES_OURS for name in present if (value := getattr(event, name)) is not None}
    return dataclasses.replace(event, **bounds) if bounds else event


@pytest.mark.parametrize("row", [pytest.param(row, id=row.play.__name__) for row in _ROWS])
def test_row(row: Row, played: dict[str, Played]) -> None:
    found = played[row.play.__name__]
    print(found.verdict.text())
    assert not found.verdict.violations and not found.problem, f"{found.problem}\n{found.verdict.text()}"
    # It has looked at something.
    assert found.verdict.figures["acknowledged"] > 500 and found.verdict.figures["shown"] > 1500, found.verdict.text()
