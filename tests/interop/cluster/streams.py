"""Producers of several projects that send the numbers 0, 1, 2... to partition 0 of a topic, one every few milliseconds.

They are what a program would have: acks=all, idempotence, everything else at its defaults. ``acknowledged`` has the
moment of each number's acknowledgement, in order; ``errors`` what the program was told of.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import confluent_kafka

from spark_kafkalite import Producer
from spark_kafkalite.testing import jars
from spark_kafkalite.testing.apache_kafka import logging_options
from spark_kafkalite.testing.child_process import ChildProcess
from spark_kafkalite.testing.java_process import SHORT_LIVED_OPTIONS, java_arguments

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PER_SECOND = 100
_END_TIMEOUT_S = 60.0


class Stream:
    """See the module's text. Kinds derive from it."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self.bootstrap, self.topic, self.directory = bootstrap, topic, directory
        self.sent = 0
        self.acknowledged: list[float] = []
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
            self.acknowledged.append(time.monotonic())
        else:
            self.errors.append(str(error))

    def stop(self) -> None:
        """Stop sending and wait for the outcomes."""
        self._stopping.set()
        self._thread.join(_END_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self} does not end"

    def longest_gap(self, since_s: float) -> float:
        """Return the longest time between two acknowledgements from this moment on."""
        times = [since_s, *(each for each in self.acknowledged if each > since_s)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def __str__(self) -> str:
        return f"{type(self).__name__}: {len(self.acknowledged)} of {self.sent}, {self.errors[:3]}"


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
        assert producer.flush(_END_TIMEOUT_S) == 0


class KafkaPython(Stream):
    def work(self) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True)
        while self.pace():
            future = producer.send(self.topic, b"%d" % self.sent, partition=0)
            future.add_callback(lambda _: self.told())
            future.add_errback(self.told)
            self.sent += 1
        producer.flush(_END_TIMEOUT_S)
        producer.close(5)


class Java(Stream):
    """Kafka's own VerifiableProducer, which says each outcome in a line of JSON."""

    def work(self) -> None:
        # The program's own choice is not to try again.
        config = self.directory / "java-producer.properties"
        config.write_text("retries=2147483647\nenable.idempotence=true\n", encoding="ascii")
        arguments = {
            "--topic": self.topic,
            "--throughput": str(PER_SECOND),
            "--acks": "-1",
            "--bootstrap-server": self.bootstrap,
            "--command-config": str(config),
        }
        producer = ChildProcess(
            [
                *java_arguments(
                    jars.class_path(jars.fetch(jars.APACHE_KAFKA)),
                    "org.apache.kafka.tools.VerifiableProducer",
                    jvm_options=(*SHORT_LIVED_OPTIONS, "-Xmx128m", *logging_options()),
                ),
                *(part for pair in arguments.items() for part in pair),
            ],
            self.directory,
            "java-producer",
        )
        stopped = False
        with producer.stdout_path.open(encoding="utf-8") as output:
            pending = ""
            while producer.running or pending:
                pending += output.read()
                *lines, pending = pending.split("\n")
                for line in lines:
                    self._heard(json.loads(line))
                time.sleep(1 / PER_SECOND)
                if self._stopping.is_set() and not stopped:
                    # It flushes, and says what became of everything.
                    producer.signal(signal.SIGTERM)
                    stopped = True
        producer.kill()

    def _heard(self, said: dict[str, Any]) -> None:
        if said["name"] == "producer_send_success":
            self.sent += 1
            self.told()
        elif said["name"] == "producer_send_error":
            self.sent += 1
            self.told(said.get("message"))


KINDS: dict[str, Callable[[str, str, Path], Stream]] = {
    "ours": Ours,
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "java": Java,
}
