"""Producers: ours, confluent-kafka's, and Java's in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import time
from abc import abstractmethod
from collections import Counter
from pathlib import Path

import confluent_kafka

from spark_kafkalite import Producer
from spark_kafkalite.client.produce.delivery import RecordMetadata
from spark_kafkalite.errors import BufferExhausted
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from tests.chaos.clients.client import DELIVERY_TIMEOUT_MS, REQUEST_TIMEOUT_MS, ChaosClient, Place
from tests.chaos.history import FAIL, OK, UNKNOWN, Client, Send
from tests.chaos.values import payload_of
from tests.interop.support.java_clients import compile_java
from tests.lab.apache_kafka import logging_options

_MOST_BEHIND_S = 0.5
_NANOS = 1_000_000_000


class ChaosProducer(ChaosClient):
    """Sends at a steady rate, to one partition after the other."""

    def __init__(self, who: str, place: Place, rate: float, *, idempotent: bool = True, acks: str = "all") -> None:
        super().__init__(who, place)
        self.rate = rate
        self.idempotent = idempotent
        self.acks = acks
        self.acknowledged = 0
        self.acknowledged_in: Counter[int] = Counter()

    def description(self) -> Client:
        return Client(who=self.who, kind="producer", idempotent=self.idempotent, acks=self.acks)

    def run(self) -> None:
        due = time.monotonic()
        number = 0
        while not self.stopping.wait(max(due - time.monotonic(), 0)):
            # Time in which it could not send is not made up for.
            due = max(due + 1 / self.rate, time.monotonic() - _MOST_BEHIND_S)
            self.send(number, number % self.place.partitions, time.monotonic())
            number += 1
        self.finish()

    @abstractmethod
    def send(self, number: int, partition: int, begun: float) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Wait until everything has an outcome, and close."""

    def value_name(self, number: int) -> str:
        return f"{self.who}-{number}"

    def note(
        self, number: int, partition: int, begun: float, outcome: str, offset: int, error: str, ended: float = 0.0
    ) -> None:
        self.acknowledged += outcome == OK
        self.acknowledged_in[partition] += outcome == OK
        self.place.history.note(
            Send(
                who=self.who,
                begun=begun,
                ended=ended or time.monotonic(),
                topic=self.place.topic_id,
                partition=partition,
                value=self.value_name(number),
                number=number,
                outcome=outcome,
                offset=offset,
                error=error,
            )
        )


class OurProducer(ChaosProducer):
    def run(self) -> None:
        settings = {} if self.idempotent else {"enable_idempotence": False}
        self._producer = Producer(
            bootstrap_servers=self.place.bootstrap,
            acks=self.acks,
            linger_ms=5,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            reconnect_backoff_max_ms=200,
            retry_backoff_max_ms=200,
            **settings,
        )
        super().run()

    def send(self, number: int, partition: int, begun: float) -> None:
        def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
            # An attempt before the one that failed for good may have been appended: nobody knows.
            outcome, offset = (UNKNOWN, -1) if metadata is None else (OK, metadata.offset)
            self.note(number, partition, begun, outcome, offset, "" if error is None else repr(error))

        payload = payload_of(self.value_name(number))
        try:
            self._producer.send(self.place.topic, payload, partition=partition, on_delivery=delivered)
        except BufferExhausted as error:
            self.note(number, partition, begun, FAIL, -1, repr(error))

    def finish(self) -> None:
        self._producer.close(DELIVERY_TIMEOUT_MS / 1000)


class ConfluentProducer(ChaosProducer):
    def run(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.place.bootstrap,
                "acks": self.acks,
                "enable.idempotence": self.idempotent,
                "linger.ms": 5,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS + 1000,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        super().run()

    def send(self, number: int, partition: int, begun: float) -> None:
        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            # None for a repeated batch of which the broker remembers no more than having it.
            told = None if error is not None else message.offset()
            outcome, offset = UNKNOWN if error is not None else OK, -1 if told is None else told
            self.note(number, partition, begun, outcome, offset, "" if error is None else error.name())

        payload = payload_of(self.value_name(number))
        try:
            self._producer.produce(self.place.topic, payload, partition=partition, on_delivery=delivered)
        except (BufferError, confluent_kafka.KafkaException) as error:
            self.note(number, partition, begun, FAIL, -1, repr(error))
        # Outcomes come while it polls, which is once for each record.
        try:
            self._producer.poll(0)
        except confluent_kafka.KafkaException as error:
            # It has seen that the cluster broke its promise, and takes no more.
            self.note_failure(begun, error)
            self.stopping.set()

    def finish(self) -> None:
        with contextlib.suppress(confluent_kafka.KafkaException):
            self._producer.flush(DELIVERY_TIMEOUT_MS / 1000)


def compile_java_producer() -> str:
    """Compile ``java/ChaosProducer.java``; return the class path to run it with."""
    return compile_java(Path(__file__).parents[1] / "java" / "ChaosProducer.java")


class JavaProducer(ChaosProducer):
    """``java/ChaosProducer.java``; it ends when its input does, so it does not outlive this process."""

    def __init__(self, who: str, place: Place, rate: float, class_path: str, errors: Path) -> None:
        super().__init__(who, place, rate)
        self._class_path = class_path
        self._errors = errors
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        arguments = (self.place.bootstrap, self.place.topic, str(self.place.partitions), self.who, str(self.rate))
        options = (*SHORT_LIVED_OPTIONS, "-Xmx128m", *logging_options())
        with (
            self._errors.open("wb") as errors,
            subprocess.Popen(
                java_arguments(self._class_path, "ChaosProducer", *arguments, jvm_options=options),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            ) as process,
        ):  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            self._process = process
            for line in process.stdout:
                self._take(line.split())
        if process.returncode != 0:
            self.problem = f"{self.who}: exit code {process.returncode}; see {self._errors}"

    def stop(self) -> None:
        super().stop()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _take(self, fields: list[str]) -> None:
        number, partition, begun, ended, offset = map(int, fields[:5])
        error = "" if fields[5] == "-" else fields[5]
        outcome = UNKNOWN if error else OK
        self.note(number, partition, begun / _NANOS, outcome, offset, error, ended / _NANOS)

    def send(self, number: int, partition: int, begun: float) -> None:
        raise NotImplementedError("the process does")

    def finish(self) -> None:
        pass
