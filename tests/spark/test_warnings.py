"""What the source and the sink say on the driver's standard error: in which shape, and how often."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from spark_kafkalite.spark import install_listener
from spark_kafkalite.spark.pyspark_versions import AVAILABLE_NOW_OPTIONS
from spark_kafkalite.spark.watching.post_box import PostedWarning, post
from tests.patience import wait_until

from .topics import Topics, await_end, started

pytestmark = pytest.mark.spark

HELD_BACK = r"( \(and \d+ times more since it was last shown\))?"
MOMENT = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d"


def texts(lines: list[str]) -> list[str]:
    """Return the different texts, sorted. The same one may come again after a minute."""
    moments: dict[str, datetime] = {}
    for line in lines:
        moment, text = re.sub(HELD_BACK + "$", "", line).split(" WARN ")
        at = datetime.strptime(moment, "%y/%m/%d %H:%M:%S")
        assert text not in moments or at - moments[text] >= timedelta(seconds=59), lines
        moments[text] = at
    return sorted(moments)


@pytest.mark.versions
def test_options_of_a_stream_are_warned_of_once_and_when_its_checkpoint_overrides_them(
    topics: Topics, checkpoint: str, warned: Callable[[str], list[str]]
) -> None:
    topic = topics.new(2)
    topics.fill(topic, range(4), 0)
    given = {"groupId": "g", "kafka.fetch.max.byte": 1, "newPartitionStart": "latest", "maxOffsetsPerTrigger": 2}
    given |= AVAILABLE_NOW_OPTIONS
    assert len(topics.run(topics.stream(topic, **given), checkpoint)) == 4
    about = rf"{MOMENT} WARN KafkaliteSource: \[subscribe={topic}, groupId=g\] "
    unknown = "option kafka.fetch.max.byte is unknown and has no effect; did you mean kafka.fetch.max.bytes?"
    wait_until(lambda: warned(topic), "the warning of the unknown option")
    assert all(re.fullmatch(about + re.escape(unknown) + HELD_BACK, line) for line in warned(topic))
    assert len(texts(warned(topic))) == 1
    topics.fill(topic, [4], 1)
    assert topics.run(topics.stream(topic, **given), checkpoint) == ["4"]
    overridden = (
        "startingOffsets=earliest, newPartitionStart=latest: without effect on the partitions of the checkpoint, in "
        f"which the query goes on at {topic}-0 offset 4, {topic}-1 offset 0; for another start give it a new "
        "checkpointLocation, or move this one with kafkalite offsets rewind --checkpoint"
    )
    wait_until(lambda: warned("without effect"), "the warning of the options that the checkpoint overrides")
    (line,) = warned("without effect")
    assert re.fullmatch(about + re.escape(overridden), line)
    assert len(texts(warned(topic))) == 2


def test_options_of_a_batch_are_warned_of_once(topics: Topics, warned: Callable[[str], list[str]]) -> None:
    topic = topics.new()
    topics.fill(topic, range(4))
    frame = topics.read(topic, newPartitionStart="latest", **{"kafka.isolation.levl": "x"})
    assert [frame.count(), frame.count()] == [4, 4]
    wait_until(lambda: len(texts(warned(topic))) >= 2, "both warnings")
    about = f"KafkaliteSource: [subscribe={topic}] option"
    assert texts(warned(topic)) == [
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
    await_end(started(stream.writeStream.format("kafkalite").options(**options)))
    assert len(topics.values(out)) == 6
    wait_until(lambda: warned(f"topic={out}"), "the warning of the sink")
    (line,) = warned(f"topic={out}")
    unknown = "option kafka.linger.msec is unknown and has no effect; did you mean kafka.linger.ms?"
    assert line.endswith(f" WARN KafkaliteSink: [topic={out}] {unknown}")


@pytest.mark.versions
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
        wait_until(lambda: line in written.toString(), "the warning in Spark's log", poll_s=0.1)
    finally:
        logger.removeAppender(appender)
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
