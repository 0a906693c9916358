"""Prints the plan for a registry that is rebuilt from logs, and warnings about data that no log contains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from spark_kafkalite.cli.output import print_table, warn
from spark_kafkalite.model import CONSUMER_OFFSETS_TOPIC

if TYPE_CHECKING:
    from spark_kafkalite.registry.recovery.plan import RecoveredTopic, RecoveryPlan


def show_recovery(plan: RecoveryPlan, *, keeps_old: bool, is_older: bool) -> None:
    """Print a plan. ``keeps_old``: nodes of the existing registry stay. ``is_older``: these nodes may be outdated."""
    from spark_kafkalite.registry.znodes import uuid_text

    click.echo(f"next producer id {plan.next_producer_id}")
    rows = [
        [
            topic.name,
            len(topic.epochs),
            uuid_text(topic.topic_id),
            _span(topic.epochs.values()),
            _in_sync(topic),
            "as they are"
            if topic.config is None
            else " ".join(f"{name}={text}" for name, text in topic.config.items()) or "none",
        ]
        for topic in plan.topics
    ]
    if rows:
        click.echo()
        print_table(["TOPIC", "PARTITIONS", "TOPIC ID", "LEADER EPOCHS", "BEST LOGS", "SETTINGS"], rows)
    for topic in plan.topics:
        if topic.without_log:
            numbers = ", ".join(map(str, topic.without_log))
            warn(f"topic {topic.name}: no log of partitions {numbers} exists; they begin empty")
    if plan.without_logs:
        warn(
            f"topics of the registry without any log, which stay: {', '.join(plan.without_logs)}; delete those that "
            "had been deleted"
        )
    for broker, key, topic_id in plan.left_over:
        if topic_id in plan.deleted_ids:
            warn(f"broker {broker} has a log of {key}, which was deleted (id {topic_id}): when it starts it deletes it")
        else:
            warn(
                f"broker {broker} has a log of {key} of another topic of that name (id {topic_id or 'not known'}): "
                "when it starts it sets the log aside (-stray)"
            )
    for problem in plan.problems:
        warn(problem)
    for broker, directory in plan.set_aside:
        warn(
            f"{directory} of broker {broker} was set aside earlier and does not count; rename it to TOPIC-PARTITION to "
            "have it taken up"
        )
    # The topic for offsets gets the settings with which a broker creates it.
    lost = [each.name for each in plan.topics if each.is_config_lost and each.name != CONSUMER_OFFSETS_TOPIC]
    if lost:
        warn(
            f"the settings of {', '.join(lost)} are in no log: set them again (kafkalite configs alter); until then "
            "these topics keep all that they hold"
        )
    if not keeps_old:
        warn(
            "settings of brokers that were altered while they ran, and offsets of consumers in ZooKeeper paths "
            "(/consumers), are in no log: set the first again, and expect the second to begin by auto.offset.reset. "
            "Offsets of groups are in __consumer_offsets and stay"
        )
    elif is_older:
        warn("settings, and offsets in ZooKeeper paths (/consumers), are those of the older registry")


def _in_sync(topic: RecoveredTopic) -> str:
    brokers = sorted(set(topic.best.values()))
    return f"of {', '.join(map(str, brokers))}" if brokers else "as they are"


def _span(numbers: Iterable[int]) -> str:
    found = list(numbers)
    return str(found[0]) if len(set(found)) == 1 else f"{min(found)} to {max(found)}"
