"""kafka-python as a program that says what happens in lines of JSON, as Kafka's VerifiableProducer and -Consumer do.

In a process of its own, because it leaves the sockets of failed connects to Python's collector, which complains.

    python kafka_python_program.py produce BOOTSTRAP TOPIC PER_SECOND
    python kafka_python_program.py consume BOOTSTRAP TOPIC GROUP SESSION_MS HEARTBEAT_MS
"""

from __future__ import annotations

import json
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

_stopping = False


def say(name: str, **fields: object) -> None:
    print(json.dumps({"name": name, **fields}), flush=True)


def produce(bootstrap: str, topic: str, per_second: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    number = 0
    while not _stopping:
        future = producer.send(topic, b"%d" % number, partition=0)
        future.add_callback(lambda _: say("producer_send_success"))
        future.add_errback(lambda error: say("producer_send_error", message=repr(error)))
        number += 1
        time.sleep(1 / int(per_second))
    producer.flush(60)
    producer.close(5)


class _Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        say("partitions_assigned", partitions=[{"partition": each.partition} for each in assigned])

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        say("partitions_revoked", partitions=[{"partition": each.partition} for each in revoked])


def consume(bootstrap: str, topic: str, group: str, session_ms: str, heartbeat_ms: str) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=int(heartbeat_ms),
        fetch_max_wait_ms=50,
    )
    consumer.subscribe([topic], listener=_Listener())
    # See KafkaPython in tests/interop/groups/group_clients.py.
    consumer.topics()
    while not _stopping:
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                say("record_data", value=record.value.decode())
    consumer.close()


def _stop(*_: object) -> None:
    global _stopping
    _stopping = True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    {"produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:])
