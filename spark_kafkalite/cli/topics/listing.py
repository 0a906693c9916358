"""``kafkalite topics list``, which loads little: scripts call it again and again."""

from __future__ import annotations

import click

from spark_kafkalite.cli.options import (
    ClientSettings,
    client_options,
    json_option,
    reachable_cluster,
    topic_pattern,
)
from spark_kafkalite.cli.output import print_json


@click.command("list")
@click.option("--topic", metavar="REGEX", help="Only topics whose whole name matches.")
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@client_options
@json_option
def list_topics(
    topic: str | None,
    exclude_internal: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """List the topics, one a line."""
    with reachable_cluster(client) as admin:
        names = admin.list_topics(include_internal=not exclude_internal)
    if topic is not None:
        names = [name for name in names if topic_pattern(topic).fullmatch(name)]
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)
