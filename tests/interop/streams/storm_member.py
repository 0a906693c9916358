"""One consumer of the storm, in a process of its own: joins, reads its streams, journals it all, leaves on SIGTERM.

A line of the journal is one ``write``, so that what happened before a kill is there:

| line | meaning |
|---|---|
| ``up TIME`` | joined: it owns its first share |
| ``own TIME PARTITION`` | records of the partition may be handed out from now on |
| ``gone TIME PARTITION`` | no record of it will be handed out any more |
| ``read TIME PARTITION VALUE`` | a record was handed out; it counts as processed when the next one is asked for |
| ``down TIME`` | the consumer has left |

TIME is CLOCK_MONOTONIC in nanoseconds, which the processes of a host share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from spark_kafkalite import ConsumerConnector, TopicPartition
from spark_kafkalite.client.registry_consumer.message_stream import MessageStream, OwnedPartition


class Journal:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        kind, *rest = map(str, words)
        os.write(self._fd, f"{' '.join([kind, str(time.monotonic_ns()), *rest])}\n".encode())


class JournalingConnector(ConsumerConnector):
    """Notes ownership at the moments from which, and until which, records can be handed out."""

    journal: Journal

    def _own(self, topic_partition: TopicPartition, thread: str, committed: int | None) -> OwnedPartition:
        self.journal.write("own", topic_partition.partition)
        return super()._own(topic_partition, thread, committed)

    def _remove(self, partitions: set[TopicPartition]) -> list[OwnedPartition]:
        removed = super()._remove(partitions)
        for owned in removed:
            self.journal.write("gone", owned.topic_partition.partition)
        return removed


def read(stream: MessageStream, journal: Journal) -> None:
    for record in stream:
        journal.write("read", record.partition, int(record.value or b""))


def main() -> None:
    # Waited for, not handled: of a process that is woken from SIGSTOP, any thread may take a signal that comes at once,
    # and Python's handlers run in the main thread only, which would sleep on.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    given = json.loads(sys.argv[1])
    journal = Journal(given["journal"])
    connector = JournalingConnector(given["settings"])
    connector.journal = journal
    streams = connector.create_message_streams({given["topic"]: given["streams"]})[given["topic"]]
    journal.write("up")
    threads = [threading.Thread(target=read, args=(stream, journal)) for stream in streams]
    for thread in threads:
        thread.start()
    signal.sigwait({signal.SIGTERM})
    connector.shutdown()
    for thread in threads:
        thread.join()
    journal.write("down")


if __name__ == "__main__":
    main()
