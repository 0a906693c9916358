"""Records that a topic refuses: named, or written to the quarantine topic with what is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_kafkalite.client.produce.delivery import RefusedRecord
from spark_kafkalite.errors import InvalidTimestamp, KafkaError, MessageTooLarge
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.sink.origin import ORIGIN
from spark_kafkalite.spark.sink.refused_records import _MAX_HELD_BYTES, CarefulSending
from spark_kafkalite.wire.error_codes import name_of

ROWS = pa.record_batch(
    {
        "key": [b"k0", b"k1", b"k2"],
        "value": [b"v0", b"v1", b"v2"],
        "timestamp": pa.array([-1_500, 1, None], pa.timestamp("us", tz="UTC")),
        ORIGIN: [{"topic": "from", "partition": 4, "offset": offset} for offset in (7, 8, 9)],
    }
)


class Delivered:
    def __init__(self, producer: TopicsThatRefuse, refused: list[RefusedRecord]) -> None:
        self._producer, self._refused = producer, refused

    def refused(self) -> Iterator[RefusedRecord]:
        self._producer.waited_for += 1
        yield from self._refused


class TopicsThatRefuse:
    """A producer whose topics refuse these rows of whatever is sent to them."""

    def __init__(self, **refused: dict[int, KafkaError]) -> None:
        self._refused = refused
        self.sent: list[tuple[str, pa.RecordBatch]] = []
        self.waited_for = 0

    def send_batch(self, topic: str, rows: pa.RecordBatch, *, isolate_refused: bool) -> Delivered:
        assert isolate_refused
        self.sent.append((topic, rows))
        refused = self._refused.get(topic, {}).items()
        return Delivered(self, [RefusedRecord(row, name_of(error.code), error) for row, error in refused])


def sending(producer: Any, quarantine_topic: str | None = None) -> CarefulSending:
    return CarefulSending(producer, ["key", "value", "timestamp"], quarantine_topic)


def test_without_a_quarantine_topic_the_record_is_named() -> None:
    careful = sending(TopicsThatRefuse(to={1: MessageTooLarge("words")}))
    careful.send("to", ROWS)
    with pytest.raises(SparkConditionError) as caught:
        careful.finish()
    said = str(caught.value).splitlines()[-1]
    assert said.startswith(
        "[KAFKALITE_WRITE_FAILED] topic=to: the record at offset 8 of from-4 is rejected: "
        "words; change the topic's settings, or "
    )
    assert "run it again" not in said


def test_the_quarantine_topic_gets_the_record_and_what_is_known_of_it() -> None:
    producer = TopicsThatRefuse(to={0: InvalidTimestamp("too old"), 2: MessageTooLarge("")})
    careful = sending(producer, "aside")
    careful.send("to", ROWS)
    careful.finish()
    (_, written), (topic, aside) = producer.sent
    assert written.schema.names == ["key", "value", "timestamp"]
    assert (topic, aside.schema.names, careful.quarantined) == ("aside", ["key", "value", "headers"], {"to": 2})
    assert aside.column("value").to_pylist() == [b"v0", b"v2"]
    first, second = ({each["key"]: each["value"] for each in row} for row in aside.column("headers").to_pylist())
    assert first == {
        "kafkalite-quarantine-topic": b"from",
        "kafkalite-quarantine-partition": b"4",
        "kafkalite-quarantine-offset": b"7",
        "kafkalite-quarantine-timestamp": b"-2",
        "kafkalite-quarantine-target": b"to",
        "kafkalite-quarantine-error": b"INVALID_TIMESTAMP",
        "kafkalite-quarantine-message": b"too old",
    }
    assert (second["kafkalite-quarantine-offset"], second["kafkalite-quarantine-timestamp"]) == (b"9", None)


def test_a_quarantine_topic_that_refuses_a_record_too_ends_the_write() -> None:
    producer = TopicsThatRefuse(
        to={0: InvalidTimestamp("old"), 2: MessageTooLarge("large")}, aside={1: MessageTooLarge("larger")}
    )
    careful = sending(producer, "aside")
    careful.send("to", ROWS)
    with pytest.raises(SparkConditionError, match="quarantineTopic=aside: it refuses the record at offset 9 of from-4"):
        careful.finish()


def test_a_record_that_the_producer_refuses_is_named() -> None:
    class Strict(TopicsThatRefuse):
        def send_batch(self, topic: str, rows: pa.RecordBatch, *, isolate_refused: bool) -> Delivered:
            raise MessageTooLarge("above max.request.size=10: raise it", row=2)

    with pytest.raises(
        SparkConditionError, match=r"the record at offset 9 of from-4 cannot be sent.*max\.request\.size=10"
    ):
        sending(Strict(), "aside").send("to", ROWS)


def test_without_an_origin_the_topic_is_named_alone() -> None:
    careful = sending(TopicsThatRefuse(to={0: InvalidTimestamp("old")}))
    careful.send("to", ROWS.drop_columns([ORIGIN]))
    with pytest.raises(SparkConditionError, match="topic=to: a record is rejected: old"):
        careful.finish()


def test_what_waits_for_its_outcome_is_bounded() -> None:
    producer = TopicsThatRefuse()
    careful = sending(producer)
    large = pa.record_batch({"value": pa.array([b"x" * (_MAX_HELD_BYTES // 2)], pa.binary())})
    for number in range(5):
        careful.send("to", large)
        # Of three the oldest is waited for; so large a one is held beside no second one.
        assert len(producer.sent) - producer.waited_for <= 1, number
    careful.finish()
    assert producer.waited_for == 5
