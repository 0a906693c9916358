"""``kafkalite topics``: creates, lists, describes, extends and deletes topics, in the terms of Kafka's own tool."""

from __future__ import annotations

import click

from spark_kafkalite.cli.options import ActionGroup

_EPILOG = """\b
Examples:
  kafkalite topics create --topic events --partitions 4
  kafkalite topics create --topic events --if-not-exists --config retention.ms=-1
  kafkalite topics list
  kafkalite topics describe --topic events

\b
Examples that change topics:
  kafkalite topics alter --topic events --partitions 8
  kafkalite topics delete --topic events
  kafkalite topics delete-records --topic events --partition 0 --before-offset 1000

Kafka's spelling works too: kafkalite topics --describe --topic events
"""


@click.group(
    "topics",
    cls=ActionGroup,
    epilog=_EPILOG,
    actions={
        "alter": ("spark_kafkalite.cli.topics.changes", "alter"),
        "create": ("spark_kafkalite.cli.topics.changes", "create"),
        "delete": ("spark_kafkalite.cli.topics.changes", "delete"),
        "delete-records": ("spark_kafkalite.cli.topics.delete_records", "delete_records"),
        "describe": ("spark_kafkalite.cli.topics.describe", "describe"),
        "list": ("spark_kafkalite.cli.topics.listing", "list_topics"),
    },
)
def command() -> None:
    """Create, list, describe, extend and delete topics."""
