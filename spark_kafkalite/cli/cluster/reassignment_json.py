"""The JSON of reassignments that Kafka's ``kafka-reassign-partitions`` reads and prints. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from spark_kafkalite.model import TopicPartition

# The largest number that the protocol has room for.
_MOST: Final = 2**31 - 1


def read_plan(text: str, where: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the brokers of each partition in a plan, which may have none. Without a version it is of version 1.

    Raises BadParameter, which names ``where`` it was read from. Source:
    org.apache.kafka.tools.reassign.ReassignPartitionsCommand.parsePartitionReassignmentData.
    """
    try:
        plan = json.loads(text)
        if not isinstance(plan, dict) or plan.get("version", 1) != 1 or not isinstance(plan.get("partitions"), list):
            raise ValueError('it must be {"version": 1, "partitions": [...]}')
        found: dict[TopicPartition, tuple[int, ...]] = {}
        for each in plan["partitions"]:
            key, replicas = _entry(each)
            if key in found:
                raise ValueError(f"{key} is named twice")
            found[key] = replicas
    except (ValueError, RecursionError) as error:
        why: object = "it is nested too deeply" if isinstance(error, RecursionError) else error
        if isinstance(error, json.JSONDecodeError):
            why = f"it is not JSON ({error})"
        raise click.BadParameter(f"{where} is no plan of a reassignment: {why}") from None
    return found


def _entry(entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    try:
        topic, number, replicas = entry["topic"], entry["partition"], entry["replicas"]
    except (TypeError, KeyError):
        raise ValueError(f"{entry!r:.200} lacks topic, partition or replicas") from None
    numbers = [number, *replicas] if isinstance(replicas, list) else [None]
    if not isinstance(topic, str):
        raise ValueError(f"{entry!r:.200}: topic must be a string")
    if not all(type(each) is int and 0 <= each <= _MOST for each in numbers):
        raise ValueError(f"{entry!r:.200}: partition and replicas must be whole numbers from 0 to {_MOST}")
    if not replicas:
        raise ValueError(f"{topic}-{number}: replicas is empty; name at least one broker")
    if len(set(replicas)) < len(replicas):
        raise ValueError(f"{topic}-{number}: replicas {replicas!r:.200} names a broker twice")
    log_dirs = entry.get("log_dirs", [])
    if not isinstance(log_dirs, list) or any(each != "any" for each in log_dirs):
        raise ValueError(f'{topic}-{number}: log_dirs may only be "any"; brokers choose their log directories')
    return TopicPartition(topic, number), tuple(replicas)


def plan_text(plan: Mapping[TopicPartition, Sequence[int]]) -> str:
    """Return a plan as Kafka's tool prints it."""
    partitions = [
        {
            "topic": key.topic,
            "partition": key.partition,
            "replicas": list(plan[key]),
            "log_dirs": ["any"] * len(plan[key]),
        }
        for key in sorted(plan)
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))
