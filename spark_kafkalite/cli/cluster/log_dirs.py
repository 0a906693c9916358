"""``kafkalite cluster log-dirs``: what the log directories of brokers hold (Kafka's ``kafka-log-dirs``)."""

from __future__ import annotations

import click

from spark_kafkalite.cli.options import ClientSettings, client_options, json_option, reachable_admin
from spark_kafkalite.cli.output import print_json, print_table, warn

_EPILOG = """\b
Examples:
  kafkalite cluster log-dirs
  kafkalite cluster log-dirs --topic-list events,clicks --json
"""


@click.command("log-dirs", epilog=_EPILOG)
@click.option("--brokers", metavar="N[,N]", help="Ids of the brokers; all without it.")
@click.option("--topic-list", "topic_list", metavar="NAME[,NAME]", help="Only the logs of these topics.")
@client_options
@json_option
def log_dirs(
    brokers: str | None,
    topic_list: str | None,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Show the log directories of brokers, the size of each log in them, and what room is left."""
    try:
        ids = [int(text) for text in brokers.split(",")] if brokers else None
    except ValueError:
        raise click.UsageError(f"--brokers {brokers}: not of the form 1,2") from None
    topics = [name.strip() for name in topic_list.split(",") if name.strip()] if topic_list else None
    with reachable_admin(client) as admin:
        found = admin.describe_log_dirs(ids, topics=topics)
    if as_json:
        print_json(
            [
                {
                    "broker": broker,
                    "log_dir": each.path,
                    "error": None if each.error is None else type(each.error).__name__,
                    "refusal": each.refusal,
                    "total_bytes": each.total_bytes,
                    "usable_bytes": each.usable_bytes,
                    "partitions": [
                        {
                            "topic": key.topic,
                            "partition": key.partition,
                            "size_bytes": replica.size_bytes,
                            "offset_lag": replica.offset_lag,
                            "is_future": replica.is_future,
                        }
                        for key, replica in sorted(each.replicas.items())
                    ],
                }
                for broker, directories in found.items()
                for each in directories
            ]
        )
        return
    for broker, directories in found.items():
        for each in directories:
            room = "" if each.usable_bytes is None else f", {each.usable_bytes} of {each.total_bytes} bytes free"
            state = f"OFFLINE: {type(each.error).__name__}" if each.error is not None else f"online{room}"
            click.echo(f"Broker {broker}  {each.path}  {state}")
            if each.refusal is not None:
                warn(f"broker {broker}: {each.refusal}")
            if each.replicas:
                print_table(
                    ("PARTITION", "BYTES", "OFFSET-LAG"),
                    [
                        (key, each.replicas[key].size_bytes, each.replicas[key].offset_lag)
                        for key in sorted(each.replicas)
                    ],
                )
