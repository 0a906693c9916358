"""What the source asks of a cluster: of topics that its options name, of ends that went back, and for how long."""

import logging
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from spark_kafkalite.client.network.metadata import PartitionInfo, TopicInfo
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import LeaderNotAvailable
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading import cluster_offsets
from spark_kafkalite.spark.reading.cluster_offsets import CHECK_TIMEOUT_MS, ClusterOffsets
from spark_kafkalite.spark.sink import sink_check
from tests.paths import PROJECT


def test_a_pattern_that_matches_nothing_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    lookup = ClusterOffsets(reader_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": "evntq"}))
    there: dict[str, TopicInfo] = {}
    lookup._cluster = SimpleNamespace(all_topics=lambda deadline: there)  # type: ignore[assignment]
    for _ in range(2):
        assert lookup.assigned().partitions == ()
    assert [record.message for record in caplog.records] == [
        "subscribePattern=evntq: no topic's name matches, so nothing is read until there is one that does"
    ]
    partition = PartitionInfo(0, 1, 0, (1,), (1,), ())
    there["evntq"] = TopicInfo("evntq", bytes(16), False, (partition,))
    assert lookup.assigned().partitions == (TopicPartition("evntq", 0),)
    assert len(caplog.records) == 1


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"brokersUnreachableTimeout": "100ms"}, "brokersUnreachableTimeout=100ms"),
        (
            {"fetchOffset.numRetries": "2", "kafka.default.api.timeout.ms": "40"},
            "fetchOffset.numRetries=2 times kafka.default.api.timeout.ms=40; brokersUnreachableTimeout is not set",
        ),
    ],
)
def test_a_query_gives_up_with_the_brokers_that_were_tried_the_time_and_the_option(
    unused_address: str, given: dict[str, str], said: str
) -> None:
    servers = {"kafka.bootstrap.servers": unused_address, "subscribe": "t", "fetchOffset.retryIntervalMs": "1"}
    lookup = ClusterOffsets(reader_options({**servers, **given}))
    with pytest.raises(SparkConditionError) as caught:
        lookup.latest([TopicPartition("t", 0)])
    line = str(caught.value).splitlines()[-1]
    assert line.startswith(f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={unused_address}: no broker answers")
    tried, _, after = line.partition("; given up after ")
    assert unused_address in tried.partition("; tried ")[2]
    assert after.partition(" s ")[2] == f"({said}); start the broker, or correct the address"


class SimulatedTime:
    """Stands in for the module ``time``: it passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    simulated = SimulatedTime()
    monkeypatch.setattr(cluster_offsets, "time", simulated)
    return simulated


@pytest.mark.parametrize(
    ("told", "retries", "believed", "waited_s"),
    [
        ([12], "3", 12, 0.0),
        ([7, 7, 12], "3", 12, 0.5),
        # Asked again as often as the option says, the lower end is the end.
        ([7, 7, 7, 8, 99], "3", 8, 0.75),
        ([7, 8, 99], "1", 8, 0.25),
    ],
)
def test_an_end_below_what_was_read_is_asked_for_again_and_then_believed(
    clock: SimulatedTime,
    monkeypatch: pytest.MonkeyPatch,
    told: list[int],
    retries: str,
    believed: int,
    waited_s: float,
) -> None:
    """A leader that has just changed shows an end that is too low: KAFKA-7703."""
    given = {"fetchOffset.numRetries": retries, "fetchOffset.retryIntervalMs": "250"}
    lookup = ClusterOffsets(reader_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given}))
    answers = iter(told)
    monkeypatch.setattr(lookup, "_ends", lambda partitions, *_: dict.fromkeys(partitions, next(answers)))
    t0 = TopicPartition("t", 0)
    assert lookup.latest([t0], {t0: 10}) == {t0: believed}
    assert clock.now_s == waited_s


def test_the_pause_between_attempts_is_the_options_and_a_second_without_it(clock: SimulatedTime) -> None:
    for given, pause_s in (({}, 1.0), ({"fetchOffset.retryIntervalMs": "20"}, 0.02)):
        lookup = ClusterOffsets(reader_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given}))
        began_s = clock.now_s
        answers = iter([None, None, "an answer"])

        def ask(deadline: Deadline, answers: Iterator[str | None] = answers) -> str:
            answer = next(answers)
            if answer is None:
                raise LeaderNotAvailable("an election")
            return answer

        assert lookup.patiently("something", ask) == "an answer"
        assert clock.now_s - began_s == pytest.approx(2 * pause_s)


def test_the_page_names_the_time_that_load_and_a_batch_write_try_for() -> None:
    page = " ".join((PROJECT / "docs" / "spark.md").read_text().split())
    assert "`.load()`, and a batch write before its first task, try for at most ten seconds." in page
    assert CHECK_TIMEOUT_MS == sink_check._SOON_MS == 10_000
