"""Apache Kafka's own verifiable producer and consumer, and what must hold of what the two say.

Values are the numbers from 0 on; keys spread them over the partitions. Each program runs until it is told to stop.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from spark_kafkalite.processes.child_process import ChildProcess
from tests.interop.cluster.programs import follow, java_tool
from tests.interop.cluster.streams import CLOSED_IN_SEND
from tests.patience import PATIENCE_S

_KEYS = "30"
_SHOWN = 5


class Told(NamedTuple):
    """A record as a program told of it."""

    partition: int
    offset: int
    value: int


class _Program:
    """A program that is followed from its start in a thread; ``problem`` says why it ended by itself."""

    def __init__(self, command: list[str], directory: Path, name: str) -> None:
        self.problem = ""
        self._command, self._directory, self._name = command, directory, name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            follow(self._command, self._directory, self._name, self.hear, self._stopping.is_set)
        except (AssertionError, ValueError) as error:  # shown by the test
            self.problem = f"{self._name}: {error}"

    def hear(self, said: dict[str, Any]) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Have it finish what it has begun, and wait for its end."""
        self._stopping.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive() and not self.problem, f"{self._name} does not end; {self.problem}"


class VerifiableProducer(_Program):
    """``org.apache.kafka.tools.VerifiableProducer`` with acks=all; ``acknowledged`` has what it was told."""

    def __init__(
        self, bootstrap: str, topic: str, directory: Path, *, per_second: int, settings: dict[str, str] | None = None
    ) -> None:
        self.acknowledged: list[Told] = []
        self.refused: list[str] = []
        config = directory / "verifiable-producer.properties"
        # The tool's own choice is not to try again.
        chosen = {"retries": "2147483647", **(settings or {})}
        config.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()), encoding="ascii")
        arguments = {
            "--bootstrap-server": bootstrap,
            "--topic": topic,
            "--throughput": str(per_second),
            "--acks": "-1",
            "--repeating-keys": _KEYS,
            "--command-config": str(config),
        }
        command = java_tool("org.apache.kafka.tools.VerifiableProducer", arguments)
        super().__init__(command, directory, "verifiable-producer")

    def hear(self, said: dict[str, Any]) -> None:
        if said["name"] == "producer_send_success":
            self.acknowledged.append(Told(said["partition"], said["offset"], int(said["value"])))
        elif said["name"] == "producer_send_error" and said.get("message") != CLOSED_IN_SEND:
            self.refused.append(f"{said['value']}: {said.get('message')}")


class VerifiableConsumer(_Program):
    """``org.apache.kafka.tools.VerifiableConsumer``, alone in a group: it reads from the beginning, and commits after
    each poll. ``records`` has what it was shown, in that order."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self.records: list[Told] = []
        arguments = {
            "--bootstrap-server": bootstrap,
            "--topic": topic,
            "--group-id": f"{topic}-readers",
            "--reset-policy": "earliest",
        }
        command = java_tool("org.apache.kafka.tools.VerifiableConsumer", arguments, "--verbose")
        super().__init__(command, directory, "verifiable-consumer")

    def hear(self, said: dict[str, Any]) -> None:
        if said["name"] == "record_data":
            self.records.append(Told(said["partition"], said["offset"], int(said["value"])))


class ConsoleConsumer(ChildProcess):
    """``org.apache.kafka.tools.consumer.ConsoleConsumer`` on partition 0, from its beginning: without a group, it needs
    no coordinator. ``reset_policy`` is where it goes on when its offset is not in the log."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, reset_policy: str) -> None:
        arguments = {
            "--bootstrap-server": bootstrap,
            "--topic": topic,
            "--partition": "0",
            "--offset": "earliest",
            "--formatter-property": "print.offset=true",
            "--command-property": f"auto.offset.reset={reset_policy}",
        }
        command = java_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
        super().__init__(command, directory, f"console-consumer-{reset_policy}")

    @property
    def records(self) -> list[Told]:
        """What it has been shown until now, in that order."""
        # Without the line that is being written.
        whole = self.stdout_text().rpartition("\n")[0]
        return [
            Told(0, int(offset), int(value))
            for offset, value in (line.removeprefix("Offset:").split("\t") for line in whole.splitlines())
        ]


def assert_delivered(acknowledged: list[Told], shown: list[Told]) -> None:
    """Every acknowledged record was shown, where it was acknowledged, and the consumer never went back."""
    at = {(each.partition, each.offset): each.value for each in shown}
    values = set(at.values())
    lost = [each for each in acknowledged if each.value not in values]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged records are lost: {lost[:_SHOWN]}"
    # -1 is an offset that the broker did not tell.
    moved = [each for each in acknowledged if each.offset >= 0 and at.get((each.partition, each.offset)) != each.value]
    assert not moved, (
        f"{len(moved)} of {len(acknowledged)} records are not where they were acknowledged: {moved[:_SHOWN]}"
    )
    for partition, records in by_partition(shown).items():
        back = [pair for pair in pairwise(records) if pair[1].offset <= pair[0].offset]
        assert not back, f"partition {partition} was read again: {back[:_SHOWN]}"


def assert_once_in_order(shown: list[Told]) -> None:
    """No value was shown twice, and those of a partition came in the order in which they were sent."""
    for partition, records in by_partition(shown).items():
        back = [pair for pair in pairwise(records) if pair[1].value <= pair[0].value]
        assert not back, f"partition {partition}: twice, or out of order: {back[:_SHOWN]}"


def by_partition(records: list[Told]) -> dict[int, list[Told]]:
    found: dict[int, list[Told]] = defaultdict(list)
    for each in records:
        found[each.partition].append(each)
    return found
