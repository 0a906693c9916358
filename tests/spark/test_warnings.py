"""What the source and the sink say on the driver's standard error: in which shape, and how often."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kafkalite.spark import install_listener
from spark_kafkalite.spark.warning_post import PostedWarning, post

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
            said = file.read().decode().splitlines()
        return [line for line in said if text in line]

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
    eventually(lambda: len(warned(topic)) >= 1, timeout_s=120)
    (line,) = warned(topic)
    assert re.fullmatch(about + re.escape(unknown), line)
    topics.fill(topic, [4], 1)
    assert topics.run(topics.stream(topic, **given), checkpoint) == ["4"]
    overridden = (
        "startingOffsets=earliest, newPartitionStart=latest: without effect on the partitions of the checkpoint, in "
        f"which the query goes on at {topic}-0 offset 4, {topic}-1 offset 0; for another start give it a new "
        "checkpointLocation, or move this one with kafkalite offsets rewind --checkpoint"
    )
    eventually(lambda: len(warned(topic)) >= 2, timeout_s=120)
    # The same text is not shown again within a minute.
    (line,) = warned("without effect")
    assert re.fullmatch(about + re.escape(overridden), line)
    assert len(warned(topic)) == 2


def test_options_of_a_batch_are_warned_of_once(topics: Topics, warned: Callable[[str], list[str]]) -> None:
    topic = topics.new()
    topics.fill(topic, range(4))
    frame = topics.read(topic, newPartitionStart="latest", **{"kafka.isolation.levl": "x"})
    assert [frame.count(), frame.count()] == [4, 4]
    eventually(lambda: len(warned(topic)) >= 2, timeout_s=120)
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
    assert query.awaitTermination(240)
    assert len(topics.values(out)) == 6
    eventually(lambda: len(warned(f"topic={out}")) >= 1, timeout_s=120)
    (line,) = warned(f"topic={out}")
    unknown = "option kafka.linger.msec is unknown and has no effect; did you mean kafka.linger.ms?"
    assert line.endswith(f" WARN KafkaliteSink: [topic={out}] {unknown}")


def test_with_the_listener_they_are_in_sparks_log(spark) -> None:
    install_listener(spark)
    log4j = spark._jvm.org.apache.logging.log4j
    written = spark._jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%p %c{1}: %m%n").build()
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, written, "test", False, True)
    appender.start()
    name = "spark_kafkalite.KafkaliteSink"
    logger = log4j.LogManager.getLogger(name)
    log4j.core.config.Configurator.setLevel(name, log4j.Level.WARN)
    logger.addAppender(appender)
    try:
        # As a Python process of this JVM does.
        jvm_pid = spark._jvm.java.lang.ProcessHandle.current().pid()
        post(PostedWarning("KafkaliteSink", "topic=nobody's", "WARN", "a text"), (jvm_pid,))
        line = "WARN KafkaliteSink: [topic=nobody's] a text\n"
        eventually(lambda: line in written.toString(), timeout_s=120)
    finally:
        logger.removeAppender(appender)
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
