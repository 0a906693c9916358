"""The JSON of reassignments that Kafka's ``kafka-reassign-partitions`` reads and prints. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from spark_kafkalite.model import TopicPartition


def read_plan(text: str, where: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the brokers of each partition in a plan, which may have none.

    Raises BadParameter, which names ``where`` it was read from.
    """
    try:
        plan = json.loads(text)
        if not isinstance(plan, dict) or plan.get("version") != 1 or not isinstance(plan.get("partitions"), list):
            raise ValueError('it must be {"version": 1, "partitions": [...]}')
        found: dict[TopicPartition, tuple[int, ...]] = {}
        for each in plan["partitions"]:
            key, replicas = _entry(each)
            if key in found:
                raise ValueError(f"{key} is named twice")
            found[key] = replicas
    except ValueError as error:
        raise click.BadParameter(f"{where} is no plan of a reassignment: {error}") from None
    return found


def _entry(entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    try:
        topic, number, replicas = entry["topic"], entry["partition"], entry["replicas"]
    except (TypeError, KeyError):
        raise ValueError(f"{entry!r:.200} lacks topic, partition or replicas") from None
    numbers = [number, *replicas] if isinstance(replicas, list) else [None]
    if not isinstance(topic, str) or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError(f"{entry!r:.200}: partition and replicas must be whole numbers")
    if any(each != "any" for each in entry.get("log_dirs", ())):
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
