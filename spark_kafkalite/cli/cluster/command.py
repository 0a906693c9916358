"""``kafkalite cluster``: runs a cluster on this host, and shows the replicas and leaders of any cluster."""

from __future__ import annotations

import click

from spark_kafkalite.cli.cluster.compare import compare
from spark_kafkalite.cli.cluster.elect import elect
from spark_kafkalite.cli.cluster.log_dirs import log_dirs
from spark_kafkalite.cli.cluster.reassign import reassign
from spark_kafkalite.cli.cluster.recover_registry import recover_registry
from spark_kafkalite.cli.cluster.status import status
from spark_kafkalite.cli.cluster.up import up
from spark_kafkalite.cli.cluster.wait import wait
from spark_kafkalite.cli.options import ActionGroup


@click.group(
    "cluster",
    cls=ActionGroup,
    epilog="""\b
Examples:
  kafkalite cluster up --brokers 3
  kafkalite cluster status
  kafkalite cluster wait --healthy
  kafkalite cluster compare events
  kafkalite cluster log-dirs --topic-list events,clicks --json

\b
Examples of elections and repairs:
  kafkalite cluster elect --preferred
  kafkalite cluster reassign --plan --spread
  kafkalite cluster elect --unclean events:0
  kafkalite cluster recover-registry --config broker.properties --to host-1.json
  kafkalite cluster new-secret > secret.txt
""",
)
def command() -> None:
    """Run a cluster on this host; show brokers, leaders and replicas; elect leaders; move partitions; compare
    replicas."""


command.add_command(up)
command.add_command(status)
command.add_command(wait)
command.add_command(elect)
command.add_command(reassign)
command.add_command(compare)
command.add_command(log_dirs)
command.add_command(recover_registry)


@command.command("new-secret")
def new_secret() -> None:
    """Print a new secret for inter.broker.secret.file, with which brokers authenticate to each other."""
    from spark_kafkalite.security import cluster_secret

    click.echo(cluster_secret.new_secret())
