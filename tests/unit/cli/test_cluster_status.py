"""What ``cluster status`` says of damaged logs, and of followers that have stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from spark_kafkalite.cli.cluster import health as health_module
from spark_kafkalite.cli.cluster import status as status_module
from spark_kafkalite.cli.cluster.replica_logs import ask_logs, ranges_text
from spark_kafkalite.client.admin.cluster import ClusterDescription
from spark_kafkalite.client.admin.logs import LogDirInfo, ReplicaInfo
from spark_kafkalite.client.network.metadata import Node, PartitionInfo, TopicInfo
from spark_kafkalite.errors import KafkaStorageError, RequestTimedOut
from spark_kafkalite.model import TopicPartition

EVENTS, CLICKS = TopicPartition("events", 0), TopicPartition("clicks", 0)
STOPPED = "its log parts from that of broker 1 at offset 7"


class FakeAdmin:
    """A cluster of three brokers, of which 3 does not answer; ``logs`` are what the others say."""

    def __init__(
        self,
        logs: Mapping[int, Mapping[TopicPartition, ReplicaInfo]],
        free: Mapping[int, int] | None = None,
        refusals: Mapping[int, str] | None = None,
        failed: Collection[int] = (),
    ) -> None:
        """``free`` is what the disk of a broker has free, in percent; ``refusals`` why it takes no records. The disks
        of ``failed`` are offline."""
        self.logs = logs
        self.free = free or {}
        self.refusals = refusals or {}
        self.failed = failed
        self.asked: list[tuple[int, list[str] | None]] = []

    def list_partition_reassignments(self, *, timeout_ms: int) -> dict[TopicPartition, object]:
        return {}

    def describe_cluster(self) -> ClusterDescription:
        nodes = tuple(Node(number, "127.0.0.1", 9091 + number) for number in (1, 2, 3))
        return ClusterDescription("id", 1, nodes)

    def describe_topics(self) -> dict[str, TopicInfo]:
        found = {}
        for key, isr in ((EVENTS, (1,)), (CLICKS, (1, 2, 3))):
            info = PartitionInfo(key.partition, 1, 5, (1, 2, 3), isr, ())
            found[key.topic] = TopicInfo(key.topic, b"i" * 16, False, (info,))
        return found

    def eligible_replicas(self, topics: object) -> dict[TopicPartition, Any]:
        return {}

    def describe_topic_settings(self, topics: object, names: object) -> dict[str, Any]:
        return {}

    def describe_configs(self, **_: object) -> dict[str, Any]:
        raise RequestTimedOut("nobody answers")

    def describe_log_dirs(
        self, brokers: list[int], *, topics: list[str] | None, timeout_ms: int
    ) -> dict[int, list[LogDirInfo]]:
        (broker,) = brokers
        self.asked.append((broker, topics))
        if broker not in self.logs:
            raise RequestTimedOut(f"broker {broker} does not answer")
        error = KafkaStorageError("offline") if broker in self.failed else None
        return {broker: [LogDirInfo("/d", error, self.logs[broker], *self.room(broker), self.refusals.get(broker))]}

    def room(self, broker: int) -> tuple[int | None, int | None]:
        return (1000, 10 * self.free[broker]) if broker in self.free else (None, None)


def log(*damaged: tuple[int, int], why_stopped: str | None = None) -> ReplicaInfo:
    return ReplicaInfo(1, 0, False, damaged, why_stopped)


def shown(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin, *arguments: str) -> str:
    return both(monkeypatch, admin, *arguments)[0]


def both(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Return what the command writes on stdout and on stderr; ``code`` is the exit code that it returns."""

    @contextlib.contextmanager
    def reachable_admin(_: object) -> Iterator[FakeAdmin]:
        yield admin

    monkeypatch.setattr(status_module, "reachable_admin", reachable_admin)
    monkeypatch.setattr(health_module, "can_connect", lambda host, port: port != 9094)
    result = CliRunner().invoke(status_module.status, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    assert (result.return_value or 0) == code
    return result.stdout, result.stderr


def test_damaged_logs_and_stopped_followers_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin({1: {EVENTS: log((500, 1000), (1200, 1201))}, 2: {EVENTS: log(why_stopped=STOPPED)}})
    text = shown(monkeypatch, admin)
    assert "  events-0: the log of broker 1 is damaged: it lacks offsets 500-999, 1200-1200\n" in text
    assert (
        "    what to do: start broker 3; where its log is lost for good: kafkalite cluster elect --unclean events:0\n"
        in text
    )
    assert f"  events-0: broker 2 has stopped: {STOPPED}\n" in text
    assert "    next: broker 1 leads on, and reads of these offsets get KAFKA_STORAGE_ERROR; a replica that" in text
    # Of all topics, and of those that answer.
    assert admin.asked == [(1, None), (2, None)]
    found = json.loads(shown(monkeypatch, admin, "--json"))
    (damaged,) = found["damaged"]
    assert damaged.pop("next").startswith("broker 1 leads on, and reads")
    assert damaged == {"topic": "events", "partition": 0, "broker": 1, "ranges": [[500, 1000], [1200, 1201]]}
    assert found["stopped"] == [{"topic": "events", "partition": 0, "broker": 2, "reason": STOPPED}]


def test_whole_logs_have_no_lines_and_a_damaged_follower_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, FakeAdmin({1: {EVENTS: log()}}))
    assert "damaged" not in text and "stopped" not in text
    text = shown(monkeypatch, FakeAdmin({1: {EVENTS: log()}, 2: {EVENTS: log((0, 10))}}))
    assert "the log of broker 2 is damaged: it lacks offsets 0-9\n" in text and "what to do" not in text


@pytest.mark.parametrize(
    ("damaged", "follows"),
    [
        ((1,), {1: "broker 1 leaves the leadership to an in-sync broker (2), and copies these offsets"}),
        ((2,), {2: "broker 2 copies these offsets from broker 1, which removes it from the ISR first"}),
        (
            (1, 2),
            {
                1: "broker 1 leads on, and reads of these offsets get KAFKA_STORAGE_ERROR; a replica that has them "
                "leads as soon as it is in sync",
                2: "broker 2 copies these offsets from broker 1, which is damaged too, as soon as that lacks nothing "
                "from there on",
            },
        ),
    ],
)
def test_a_damaged_log_whose_replicas_are_all_in_sync_is_named_with_what_follows(
    monkeypatch: pytest.MonkeyPatch, damaged: Collection[int], follows: dict[int, str]
) -> None:
    admin = FakeAdmin({each: {CLICKS: log((3, 4)) if each in damaged else log()} for each in (1, 2)})
    text = shown(monkeypatch, admin)
    for broker, expected in follows.items():
        line = f"  clicks-0: the log of broker {broker} is damaged: it lacks offsets 3-3\n    next: {expected}\n"
        assert line in text
    assert ("what to do" in text) == (len(damaged) == 2)
    found = json.loads(shown(monkeypatch, admin, "--json"))["damaged"]
    assert {each["broker"]: each["next"] for each in found} == follows


def test_disks_that_are_nearly_full_are_shown_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin({1: {}, 2: {}}, free={1: 4, 2: 20})
    lines = [line.split() for line in shown(monkeypatch, admin).splitlines()[1:5]]
    at = lines[0].index("DISK")
    assert [line[at] for line in lines[1:3]] == ["96%", "80%"]
    found = json.loads(shown(monkeypatch, admin, "--json"))["brokers"]
    assert found[0]["logDirs"] == [
        {"path": "/d", "online": True, "totalBytes": 1000, "usableBytes": 40, "usedPercent": 96.0, "refusal": None}
    ]
    # A broker that does not say it, or does not answer.
    assert found[2]["logDirs"] == []
    _, errors = both(monkeypatch, admin)
    (line,) = (line for line in errors.splitlines() if "% full" in line)
    assert line.startswith(
        "kafkalite: warning: broker 1: the disk of log directory /d is 96 % full (40 bytes are free): enlarge the disk"
    )
    assert both(monkeypatch, FakeAdmin({1: {}, 2: {}}))[1].count("% full") == 0


def test_a_disk_that_takes_no_records_is_named_and_has_the_exit_code_of_its_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broker 1 leads both topics, broker 2 leads none: its followers leave the ISR, which has an exit code."""
    for broker, code in ((1, 3), (2, 1)):
        admin = FakeAdmin({1: {}, 2: {}}, free={broker: 1}, refusals={broker: "log directory /d takes no records"})
        _, errors = both(monkeypatch, admin, "--exit-code", code=code)
        assert f"kafkalite: warning: broker {broker}: log directory /d takes no records\n" in errors
        # Its fullness is not a second warning.
        assert "% full" not in errors
    found = json.loads(shown(monkeypatch, admin, "--json"))["brokers"]
    assert found[1]["logDirs"][0]["refusal"] == "log directory /d takes no records"


def test_a_disk_that_has_failed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, errors = both(monkeypatch, FakeAdmin({1: {}, 2: {}}, failed={2}))
    assert "kafkalite: warning: broker 2: log directory /d is offline; ERROR lines of its log" in errors
    assert "broker 1: log directory" not in errors


def test_a_broker_that_does_not_answer_hides_its_own_logs_alone() -> None:
    admin: Any = FakeAdmin({2: {EVENTS: log((0, 10))}})
    assert ask_logs(admin, ["events"], [1, 2]) == {EVENTS: {2: log((0, 10))}}
    assert ask_logs(admin, [], [1, 2]) == {}


def test_many_ranges_are_named_in_a_bounded_text() -> None:
    assert ranges_text([(at, at + 5) for at in range(0, 80, 10)]) == "0-4, 10-14, 20-24, 30-34, 40-44 and 3 more ranges"
