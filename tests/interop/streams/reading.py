"""Reading message streams in tests."""

from __future__ import annotations

import threading
from itertools import islice

from spark_kafkalite import TopicPartition
from spark_kafkalite.client.registry_consumer.message_stream import MessageStream
from spark_kafkalite.errors import ConsumerTimeout


def values(stream: MessageStream, count: int) -> list[int]:
    return [int(record.value or b"") for record in islice(stream, count)]


class Reader(threading.Thread):
    """Reads a stream until the connector is shut down."""

    def __init__(self, stream: MessageStream) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.seen: list[tuple[TopicPartition, int]] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        while True:
            try:
                for record in self.stream:
                    self.seen.append((TopicPartition(record.topic, record.partition), int(record.value or b"")))
                return
            except ConsumerTimeout:
                # On a busy machine the test may take longer than that to make topics and produce to them.
                continue
            except BaseException as error:
                self.error = error
                return
