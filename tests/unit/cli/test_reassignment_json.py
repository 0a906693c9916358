"""Plans of reassignments in the JSON of Kafka's tool: what is read, and what is none."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from spark_kafkalite.cli.cluster.reassignment_json import plan_text, read_plan
from spark_kafkalite.model import TopicPartition

T0 = TopicPartition("t", 0)
_WHOLE = "partition and replicas must be whole numbers from 0 to 2147483647"


def plan(version: Any = 1, **entry: Any) -> str:
    named = {"topic": "t", "partition": 0, "replicas": [1], **entry}
    return json.dumps({"version": version, "partitions": [named]})


def test_a_plan_is_read_as_it_is_printed_and_without_what_kafkas_tool_does_not_ask_for() -> None:
    found = {T0: (2, 1), TopicPartition("t", 1): (3,)}
    assert read_plan(plan_text(found), "here") == found
    assert read_plan('{"partitions":[{"topic":"t","partition":0,"replicas":[1],"more":{}}]}', "here") == {T0: (1,)}
    assert read_plan('{"version":1,"partitions":[]}', "here") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", 'it must be {"version": 1, "partitions": [...]}'),
        ("null", "it must be"),
        (plan(version=2), "it must be"),
        (plan(version="1"), "it must be"),
        ("not json", "is no plan of a reassignment: it is not JSON (Expecting value: line 1 column 1"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"a":' * 100_000, "it is nested too deeply"),
        ('{"partitions":[{"topic":"t","partition":0}]}', "lacks topic, partition or replicas"),
        ('{"partitions":["x"]}', "'x' lacks topic, partition or replicas"),
        ('{"partitions":[null]}', "None lacks topic, partition or replicas"),
        (plan(topic=5), "topic must be a string"),
        (plan(partition=-1), _WHOLE),
        (plan(partition=2**31), _WHOLE),
        (plan(partition=True), _WHOLE),
        (plan(partition=1.0), _WHOLE),
        (plan(replicas=["1"]), _WHOLE),
        (plan(replicas="12"), _WHOLE),
        (plan(replicas=[-1]), _WHOLE),
        (plan(replicas=[2**40]), _WHOLE),
        (plan(replicas=[]), "t-0: replicas is empty; name at least one broker"),
        (plan(replicas=[1, 2, 1]), "t-0: replicas [1, 2, 1] names a broker twice"),
        (plan(log_dirs=["/x"]), 'log_dirs may only be "any"'),
        (plan(log_dirs=None), 'log_dirs may only be "any"'),
        (plan(log_dirs=5), 'log_dirs may only be "any"'),
        (json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}), "t-0 is named twice"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_named(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        read_plan(text, "plan.json")
    assert refused.value.message.startswith("plan.json is no plan of a reassignment: ")
    assert said in refused.value.message and len(refused.value.message) < 400
