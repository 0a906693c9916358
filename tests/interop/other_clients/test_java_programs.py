"""Programs on top of Kafka, unmodified: a Connect worker with the file source and sink, and a Kafka Streams word count.

Both run at least once, are killed on the way, and are then expected to have done all their work. The verifiable and
the console consumer of Apache Kafka read in a group while the broker under them is killed and started again.
All but Connect are for the soak, which runs the programs against Apache Kafka as well: that shows what is to be
expected.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from tests.conftest import fetch_or_skip
from tests.interop.support.java_clients import JAVA_SOURCES, compile_java
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab import jars
from tests.lab.apache_kafka import ApacheKafka, logging_options
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

pytestmark = [pytest.mark.kafka]

# The dead are missed soon, so that their successors need not wait.
BROKER_SETTINGS = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
SESSION_MS = 2000 if SOAK else 6000


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    fetch_or_skip(jars.APACHE_KAFKA_PROGRAMS)


@pytest.fixture(params=["ours", "apache"] if SOAK else ["ours"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    kind = BrokerProcess if request.param == "ours" else ApacheKafka
    with kind(tmp_path / "broker", overrides=BROKER_SETTINGS) as broker:
        yield broker.bootstrap


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=bootstrap) as client:
        yield client


def start(directory: Path, name: str, main_class: str, *arguments: str, class_path: str = "") -> ChildProcess:
    if not class_path:
        class_path = jars.class_path(jars.fetch(jars.APACHE_KAFKA), jars.fetch(jars.APACHE_KAFKA_PROGRAMS))
    command = java_arguments(
        class_path, main_class, *arguments,
        jvm_options=(*SHORT_LIVED_OPTIONS, "-Xmx256m", *logging_options()),
    )  # fmt: skip
    return ChildProcess(command, directory, name)


def properties(path: Path, **settings: object) -> Path:
    path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    return path


def lines_of(path: Path) -> list[str]:
    """The complete lines of a file that is being written: its end may lie within a character."""
    return path.read_bytes().rpartition(b"\n")[0].decode().splitlines() if path.exists() else []


# Connect -------------------------------------------------------------------------------------------------------------


class Worker:
    """A standalone Connect worker that copies a file into a topic and the topic into another file."""

    def __init__(self, bootstrap: str, directory: Path, topic: str) -> None:
        self.source, self.sink = directory / "in.txt", directory / "out.txt"
        self._directory = directory
        string = "org.apache.kafka.connect.storage.StringConverter"
        file = "org.apache.kafka.connect.file.FileStream"
        self._configs = [
            properties(
                directory / "worker.properties", bootstrap_servers=bootstrap, key_converter=string,
                value_converter=string, offset_storage_file_filename=directory / "source-offsets",
                offset_flush_interval_ms=300, listeners="http://127.0.0.1:0", plugin_discovery="service_load",
                consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_interval_ms=500,
            ),
            properties(
                directory / "source.properties", name=f"{topic}-source", connector_class=f"{file}SourceConnector",
                file=self.source, topic=topic,
            ),
            properties(
                directory / "sink.properties", name=f"{topic}-sink", connector_class=f"{file}SinkConnector",
                file=self.sink, topics=topic,
            ),
        ]  # fmt: skip
        self._starts = 0

    def start(self) -> ChildProcess:
        self._starts += 1
        return start(
            self._directory, f"connect-{self._starts}", "org.apache.kafka.connect.cli.ConnectStandalone",
            *map(str, self._configs),
        )  # fmt: skip

    def append(self, lines: Sequence[str]) -> None:
        with self.source.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def test_connect_copies_a_file_through_a_topic_across_a_kill(bootstrap: str, admin: Admin, tmp_path: Path) -> None:
    worker = Worker(bootstrap, tmp_path, topic := f"connected-{tmp_path.name}")
    admin.create_topic(topic, 1, 1)
    wanted = [f"line {number} with ünïcode" for number in range(3000)]
    worker.append(wanted[:1000])
    process = worker.start()
    process.wait_until(lambda: lines_of(worker.sink) == wanted[:1000], PATIENCE_S, "copying the first thousand lines")
    worker.append(wanted[1000:2000])
    process.wait_until(lambda: len(lines_of(worker.sink)) > 1000, PATIENCE_S, "copying what is appended")
    process.kill()
    worker.append(wanted[2000:])
    process = worker.start()
    # Source and sink begin again at their last commits: lines may come twice, none is missing, order holds. The kill
    # may have cut off the file's last line.
    process.wait_until(lambda: set(lines_of(worker.sink)) >= set(wanted), PATIENCE_S, "copying all lines after a kill")
    found = list(dict.fromkeys(line for line in lines_of(worker.sink) if line in set(wanted)))
    assert found == wanted
    process.signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) in (0, 143), process.tail()


# Streams -------------------------------------------------------------------------------------------------------------


def words_of(lines: Sequence[str]) -> Counter[str]:
    return Counter(word for line in lines for word in re.split(r"[^a-z0-9_]+", line.lower()) if word)


def send_lines(bootstrap: str, topic: str, lines: Sequence[str]) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number, line in enumerate(lines):
            producer.send(topic, line.encode(), partition=number % 2)


class Counts:
    """The latest count of every word, as the output topic has it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.latest: dict[str, int] = {}
        self._consumer = Consumer(bootstrap_servers=bootstrap)
        self._consumer.assign([(topic, number) for number in range(2)])
        self._consumer.seek_to_beginning()

    def reach(self, condition: Callable[[dict[str, int]], bool]) -> bool:
        """Read what is new, and say whether the counts are as wanted."""
        for record in self._consumer.poll(100, 5000):
            assert record.key is not None and record.value is not None
            self.latest[record.key.decode()] = int(record.value)
        return condition(self.latest)

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.soak
def test_streams_counts_words_across_a_restart_and_a_kill(bootstrap: str, admin: Admin, tmp_path: Path) -> None:
    class_path = compile_java(JAVA_SOURCES / "WordCount.java", jars.APACHE_KAFKA_PROGRAMS)
    application = f"count-{tmp_path.name}"
    source, target = f"{application}-lines", f"{application}-counts"
    admin.create_topics([NewTopic(source, 2, 1), NewTopic(target, 2, 1)])
    text = [f"the quick fox {number % 7} jumps over dog{number % 50} and the {number % 13}" for number in range(900)]

    def run(name: str, state: str) -> ChildProcess:
        return start(
            tmp_path, name, "WordCount", bootstrap, application, source, target, str(tmp_path / state),
            class_path=class_path,
        )  # fmt: skip

    counts = Counts(bootstrap, target)
    send_lines(bootstrap, source, text[:300])
    process = run("first", "state")
    process.wait_until(lambda: counts.reach(lambda found: found == words_of(text[:300])), PATIENCE_S, "counting")
    process.signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) in (0, 143), process.tail()
    # Without its state directory it takes the counts from the changelog, and after an orderly stop they are exact.
    send_lines(bootstrap, source, text[300:600])
    process = run("second", "other-state")
    process.wait_until(lambda: counts.reach(lambda found: found == words_of(text[:600])), PATIENCE_S, "counting on")
    send_lines(bootstrap, source, text[600:])
    time.sleep(0.1)
    process.kill()
    # After a kill words may be counted again, and none is left out.
    process = run("third", "other-state")
    wanted = words_of(text)

    def at_least(found: dict[str, int]) -> bool:
        return all(found.get(word, 0) >= count for word, count in wanted.items())

    process.wait_until(lambda: counts.reach(at_least), PATIENCE_S, "counting everything after a kill")
    counts.close()
    process.signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) in (0, 143), process.tail()
    assert set(counts.latest) == set(wanted)
    changelog = admin.describe_configs(topic=f"{application}-counts-changelog")
    assert changelog["cleanup.policy"].value == "compact"


# Consumers over a broker that dies ----------------------------------------------------------------------------------


def kill_twice_while_writing(broker: BrokerProcess, topic: str, count: int, reached: Callable[[int], None]) -> None:
    """Write ``count`` numbered lines; kill and restart the broker after a third and after two thirds of them.

    ``reached`` waits until the consumer has had this many.
    """
    thirds = [count // 3, 2 * count // 3, count]
    sent = 0
    for until in thirds:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(sent, until):
                producer.send(topic, b"line %d" % number, partition=number % 2)
        sent = until
        reached(sent)
        if until != count:
            broker.kill()
            broker.start()


def events_of(process: ChildProcess) -> list[dict[str, Any]]:
    # Without the line that is being written.
    written = process.stdout_text().rpartition("\n")[0]
    return [json.loads(line) for line in written.splitlines() if line.startswith("{")]


@pytest.mark.soak
def test_verifiable_consumer_over_kills_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=BROKER_SETTINGS) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("verified", 2, 1)
        process = start(
            tmp_path, "verifiable", "org.apache.kafka.tools.VerifiableConsumer",
            "--bootstrap-server", broker.bootstrap, "--topic", "verified", "--group-id", "verifiers", "--verbose",
            "--session-timeout", "6000",
        )  # fmt: skip

        def committed() -> dict[int, int]:
            return {
                each["partition"]: each["offset"]
                for event in events_of(process)
                if event["name"] == "offsets_committed" and event["success"]
                for each in event["offsets"]
            }

        def reached(count: int) -> None:
            process.wait_until(lambda: sum(committed().values()) == count, PATIENCE_S, f"committing {count} records")

        kill_twice_while_writing(broker, "verified", 900, reached)
        process.signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) in (0, 143), process.tail()
        values = [event["value"] for event in events_of(process) if event["name"] == "record_data"]
        # Each was committed before the next kill, and the group's generation outlives the broker: none comes twice.
        assert sorted(values) == sorted(f"line {number}" for number in range(900))
        offsets: dict[int, int] = {}
        for event in events_of(process):
            if event["name"] == "offsets_committed" and event["success"]:
                for each in event["offsets"]:
                    assert each["offset"] >= offsets.get(each["partition"], 0), "a commit went back"
                    offsets[each["partition"]] = each["offset"]


@pytest.mark.soak
def test_console_consumer_in_a_group_over_kills_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=BROKER_SETTINGS) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("shown", 2, 1)

        def console(name: str) -> ChildProcess:
            return start(
                tmp_path, name, "org.apache.kafka.tools.consumer.ConsoleConsumer",
                "--bootstrap-server", broker.bootstrap, "--topic", "shown", "--group", "readers", "--from-beginning",
                "--command-property", "auto.commit.interval.ms=200",
            )  # fmt: skip

        process = console("first")

        def reached(count: int) -> None:
            process.wait_until(lambda: len(set(process.stdout_text().splitlines())) == count, PATIENCE_S, "reading all")

        kill_twice_while_writing(broker, "shown", 900, reached)
        process.signal(signal.SIGTERM)  # leaving, it commits
        process.wait(PATIENCE_S)
        assert set(process.stdout_text().splitlines()) == {f"line {number}" for number in range(900)}
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("shown", b"one more", partition=0)
        process = console("second")
        process.wait_until(lambda: "\n" in process.stdout_text(), PATIENCE_S, "reading on")
        process.signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        assert process.stdout_text().splitlines() == ["one more"]
