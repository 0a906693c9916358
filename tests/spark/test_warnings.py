"""What the source and the sink say on the driver's standard error: in which shape, and how often."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .topics import Topics, eventually

pytestmark = pytest.mark.spark

MOMENT = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def warned(driver_stderr: Path, spark) -> Callable[[str], list[str]]:
    """The lines since the test began that have a text in them."""
    before = driver_stderr.stat().st_size

    def lines(text: str) -> list[str]:
        with driver_stderr.open("rb") as file:
            file.seek(before)
            return [line for line in file.read().decode().splitlines() if text in line]

    return lines


def test_options_of_a_stream_are_warned_of_once_and_when_its_checkpoint_overrides_them(
    topics: Topics, checkpoint: str, warned: Callable[[str], list[str]]
) -> None:
    topic = topics.new(2)
    topics.fill(topic, range(4), 0)
    given = {"groupId": "g", "kafka.fetch.max.byte": 1, "newPartitionStart": "latest", "maxOffsetsPerTrigger": 2}
    assert len(topics.run(topics.stream(topic, **given), checkpoint)) == 4
    about = rf"{MOMENT} WARN KafkaliteSource: \[subscribe={topic}, groupId=g\] "
    unknown = "option kafka.fetch.max.byte is unknown and has no effect; did you mean kafka.fetch.max.bytes?"
    eventually(lambda: len(warned(topic)) >= 1)
    (line,) = warned(topic)
    assert re.fullmatch(about + re.escape(unknown), line)
    topics.fill(topic, [4], 1)
    assert topics.run(topics.stream(topic, **given), checkpoint) == ["4"]
    overridden = (
        "startingOffsets=earliest, newPartitionStart=latest: without effect on the partitions of the checkpoint, in "
        f"which the query goes on at {topic}-0 offset 4, {topic}-1 offset 0; for another start give it a new "
        "checkpointLocation"
    )
    eventually(lambda: len(warned(topic)) >= 2)
    # The same text is not shown again within a minute.
    (line,) = warned("without effect")
    assert re.fullmatch(about + re.escape(overridden), line)
    assert len(warned(topic)) == 2


def test_options_of_a_batch_are_warned_of_once(topics: Topics, warned: Callable[[str], list[str]]) -> None:
    topic = topics.new()
    topics.fill(topic, range(4))
    frame = topics.read(topic, newPartitionStart="latest", **{"kafka.isolation.levl": "x"})
    assert [frame.count(), frame.count()] == [4, 4]
    eventually(lambda: len(warned(topic)) >= 2)
    said = sorted(line.partition(" WARN ")[2] for line in warned(topic))
    about = f"KafkaliteSource: [subscribe={topic}] option"
    assert said == [
        f"{about} kafka.isolation.levl is unknown and has no effect; did you mean kafka.isolation.level?",
        f"{about} newPartitionStart has no effect on a batch read",
    ]


def test_a_streaming_sink_warns_once_and_not_with_each_batch(
    topics: Topics, checkpoint: str, warned: Callable[[str], list[str]]
) -> None:
    topic, out = topics.new(), topics.new()
    topics.fill(topic, range(6))
    stream = topics.stream(topic, maxOffsetsPerTrigger=2)
    options = topics.options({"topic": out, "kafka.linger.msec": 1, "checkpointLocation": checkpoint})
    query = stream.writeStream.format("kafkalite").options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert len(topics.values(out)) == 6
    eventually(lambda: len(warned(f"topic={out}")) >= 1)
    (line,) = warned(f"topic={out}")
    unknown = "option kafka.linger.msec is unknown and has no effect; did you mean kafka.linger.ms?"
    assert line.endswith(f" WARN KafkaliteSink: [topic={out}] {unknown}")
