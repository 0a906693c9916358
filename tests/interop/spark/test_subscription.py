"""Which topics and partitions the Spark source reads, on our broker and Apache Kafka."""

from __future__ import annotations

import json
import logging
import re

import pytest

pytest.importorskip("pyspark")

from spark_kafkalite import Admin
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from tests.interop.support.said import said_by

INTERNAL = "__consumer_offsets"


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "spark_kafkalite.spark")
    return caplog


def lookup(bootstrap: str, **given: str) -> ClusterOffsets:
    return ClusterOffsets(reader_options({"kafka.bootstrap.servers": bootstrap, **given}))


def found(bootstrap: str, **given: str) -> set[str]:
    return {tp.topic for tp in lookup(bootstrap, **given).assigned().partitions}


@pytest.fixture
def other(admin: Admin, topic: str) -> str:
    name = f"before-{topic}-behind"
    admin.create_topic(name, 1, 1)
    return name


def test_topics_are_read_by_name(bootstrap: str, topic: str, other: str) -> None:
    assert found(bootstrap, subscribe=f" {topic},, {other} ,{topic}") == {topic, other}


def test_a_pattern_matches_anywhere_in_a_name(bootstrap: str, topic: str, other: str) -> None:
    assert found(bootstrap, subscribePattern=rf"\b{topic}\b") == {topic, other}
    assert found(bootstrap, subscribePattern=f" ^{topic}$ ") == {topic}


def test_internal_topics_are_not_read(
    bootstrap: str, topic: str, admin: Admin, warnings: pytest.LogCaptureFixture
) -> None:
    # The first commit of a group makes the topic.
    admin.alter_group_offsets(f"group-of-{topic}", {TopicPartition(topic, 0): 0})
    assert found(bootstrap, subscribe=f"{INTERNAL},{topic}") == {topic}
    assert said_by("spark_kafkalite.spark", warnings) == [
        f"topic {INTERNAL} is internal to the cluster and is not read"
    ]
    assert found(bootstrap, subscribePattern=f"^({INTERNAL}|{re.escape(topic)})$") == {topic}


def test_partitions_that_do_not_exist_are_left_out_and_told_of(
    bootstrap: str, topic: str, admin: Admin, warnings: pytest.LogCaptureFixture
) -> None:
    asked = lookup(bootstrap, assign=json.dumps({topic: [0, 3, 4, 9]}))
    for _ in range(2):
        assert asked.assigned().partitions == (TopicPartition(topic, 0), TopicPartition(topic, 3))
    assert said_by("spark_kafkalite.spark", warnings) == [
        f"assign names partitions that do not exist and are not read: {topic}-4, {topic}-9"
    ]
    admin.create_partitions({topic: 5})
    assert TopicPartition(topic, 4) in asked.assigned().partitions
