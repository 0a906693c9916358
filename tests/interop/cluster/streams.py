"""Producers of several projects that send the numbers 0, 1, 2... to partition 0 of a topic, one every few milliseconds.

They are what a program would have: acks=all, idempotence, everything else at its defaults. ``acknowledged`` counts
acknowledgements; ``errors`` has the errors that the program got.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka

from spark_kafkalite import Producer
from tests.interop.cluster.programs import KAFKA_PYTHON, follow, java_tool
from tests.patience import PATIENCE_S

PER_SECOND = 40


class Stream:
    """See the module's text. Kinds derive from it."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self.bootstrap, self.topic, self.directory = bootstrap, topic, directory
        self.sent = 0
        self.acknowledged = 0
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # shown by the test
            self.errors.append(repr(error))

    def work(self) -> None:
        """Send until ``_stopping``, then wait for all outcomes."""
        raise NotImplementedError

    def pace(self) -> bool:
        """Wait for the next one's time; False when there should be none."""
        return not self._stopping.wait(1 / PER_SECOND)

    def told(self, error: object = None) -> None:
        """Note an outcome."""
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(str(error))

    def stop(self) -> None:
        """Stop sending and wait for the outcomes."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self} does not end"

    def __str__(self) -> str:
        return f"{type(self).__name__}: {self.acknowledged} of {self.sent}, {self.errors[:3]}"


class Ours(Stream):
    def work(self) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            while self.pace():
                producer.send(self.topic, b"%d" % self.sent, partition=0, on_delivery=lambda _, error: self.told(error))
                self.sent += 1


class Confluent(Stream):
    def work(self) -> None:
        # What goes on between it and a broker is not the program's.
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        while self.pace():
            producer.produce(self.topic, b"%d" % self.sent, partition=0, on_delivery=lambda error, _: self.told(error))
            self.sent += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0


class _Program(Stream):
    def command(self) -> list[str]:
        raise NotImplementedError

    def work(self) -> None:
        follow(self.command(), self.directory, type(self).__name__, self._heard, self._stopping.is_set)

    def _heard(self, said: dict[str, Any]) -> None:
        if said["name"] == "producer_send_success":
            self.sent += 1
            self.told()
        elif said["name"] == "producer_send_error":
            self.sent += 1
            self.told(said.get("message"))


class KafkaPython(_Program):
    def command(self) -> list[str]:
        return [*KAFKA_PYTHON, "produce", self.bootstrap, self.topic, str(PER_SECOND)]


# The tool's end closes its producer in another thread than the one that sends: that record was never on its way.
CLOSED_IN_SEND = "Producer closed while send in progress"


class Java(_Program):
    def command(self) -> list[str]:
        # The tool's own choice is not to try again.
        config = self.directory / "java-producer.properties"
        config.write_text("retries=2147483647\nenable.idempotence=true\n", encoding="ascii")
        arguments = {
            "--topic": self.topic,
            "--throughput": str(PER_SECOND),
            "--acks": "-1",
            "--bootstrap-server": self.bootstrap,
            "--command-config": str(config),
        }
        return java_tool("org.apache.kafka.tools.VerifiableProducer", arguments)

    def _heard(self, said: dict[str, Any]) -> None:
        if said.get("message") != CLOSED_IN_SEND:
            super()._heard(said)


KINDS: dict[str, Callable[[str, str, Path], Stream]] = {
    "ours": Ours,
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "java": Java,
}
