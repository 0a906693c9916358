"""The same load, rows and judge on three brokers of Apache Kafka: what is asked of us is what it does itself, and
whoever judges finds nothing there. Rows that only need processes are played.

A row in which the cluster is left without most of its brokers needs a controller that stays, as our registry does. The
others are played on nodes that are both.

For the soak; ``-k chase`` plays one row. ``KAFKALITE_SEED=N`` repeats the chances of a run.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.chaos.apache_cluster import ApacheChaosCluster
from tests.chaos.clients.producers import compile_java_producer
from tests.chaos.history import Client, Event, Fault, read_history
from tests.chaos.judge import Verdict, judge
from tests.chaos.play import Round, play_on
from tests.chaos.rows import MORE_ROWS, ROWS, Row
from tests.conftest import fetch_or_skip
from tests.lab import apache_kafka, jars
from tests.seeds import SEED

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1800)]

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
_NEED_A_CONTROLLER = ("kill_two",)
_ROWS = [row for row in (*ROWS, *MORE_ROWS) if row.play.__name__ in _BY_PROCESSES]


@dataclasses.dataclass
class Judged:
    verdict: Verdict
    problem: str


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    """All rows that this run has chosen, played and judged, by their labels."""
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    mine = [item for item in request.session.items if item.path == request.path]
    chosen = [item.callspec.params["row"] for item in mine if hasattr(item, "callspec")]
    directory = tmp_path_factory.mktemp("apache-chaos")
    class_path = compile_java_producer()
    found = Round()
    for apart in (False, True):
        rows = [row for row in chosen if (row.play.__name__ in _NEED_A_CONTROLLER) == apart]
        if rows:
            with ApacheChaosCluster(directory / f"cluster-{apart:d}", controller_apart=apart) as cluster:
                play_on(cluster, rows, directory, SEED, class_path, 0, found)
    return {
        label: Judged(judge(map(_as_asked_of_it, read_history([played.path]))), played.problem)
        for label, played in found.rows.items()
    }


def _as_asked_of_it(event: Event) -> Event:
    """Return what is asked of ours as it is asked of Apache Kafka."""
    if isinstance(event, Client):
        # Whoever leads after a pause knows a producer's last five batches only, and librdkafka begins a new producer
        # epoch then.
        return dataclasses.replace(event, may_renew_itself=True)
    if isinstance(event, Fault) and event.elections:
        # A controller that has just been elected may take brokers for dead that it has not heard yet, and a coordinator
        # that moves refuses commits while it loads (COORDINATOR_LOAD_IN_PROGRESS).
        event = dataclasses.replace(event, elections=None, errors_at_most=None)
    present = {field.name for field in dataclasses.fields(event)} & _BOUNDS
    bounds = {name: value * _TIMES_OURS for name in present if (value := getattr(event, name)) is not None}
    return dataclasses.replace(event, **bounds) if bounds else event


@pytest.mark.parametrize("row", [pytest.param(row, id=row.play.__name__) for row in _ROWS])
def test_row(row: Row, judged: dict[str, Judged]) -> None:
    found = judged[row.label]
    print(found.verdict.text())
    assert not found.verdict.violations and not found.problem, f"seed {SEED}: {found.problem}\n{found.verdict.text()}"
    # It has looked at something.
    assert found.verdict.figures["acknowledged"] > 500 and found.verdict.figures["shown"] > 1500, found.verdict.text()
