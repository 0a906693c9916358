"""``kafkalite cluster wait``: wait until all partitions of a cluster are led and in sync."""

from __future__ import annotations

import time
from typing import Final

import click

from spark_kafkalite.cli.cluster.health import HEALTHY, NoAnswer, health_of
from spark_kafkalite.cli.options import ClientSettings, client_options
from spark_kafkalite.cli.output import said

_ASKED_EVERY_S: Final = 1.0


@click.command(
    "wait",
    epilog="""\b
Examples:
  kafkalite cluster wait --healthy
  kafkalite cluster wait --healthy --timeout 60 --bootstrap-server 10.0.0.5:9092
""",
)
@client_options
@click.option("--healthy", "healthy", is_flag=True, help="Wait until all partitions are led and in sync. Required.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    help="Seconds to wait; 0 asks once.",
)
def wait(
    client: ClientSettings,
    healthy: bool,
    timeout_s: float,
) -> int:
    """Wait until all partitions of the cluster are led and in sync, as after the restart of a broker.

    Each change of what is missing is a line on stderr. If something is still missing when the time is over, the exit
    code is that of 'cluster status --exit-code': 1 something is under-replicated, 3 something is offline or refuses
    acks=all, 4 no broker answers.
    """
    if not healthy:
        raise click.UsageError("name what to wait for: --healthy")
    until_s, told = time.monotonic() + timeout_s, ""
    while True:
        try:
            found = health_of(client)
            code, text = found.exit_code, found.text()
        except NoAnswer as error:
            code, text = error.exit_code, " ".join(error.format_message().split())
        if code == HEALTHY:
            click.echo(f"The cluster is healthy: {text}")
            return code
        is_over = time.monotonic() >= until_s
        if is_over:
            said(f"the cluster is not healthy after {timeout_s:g} s: {text}")
            return code
        if text != told:
            said(f"waiting: {text}")
            told = text
        time.sleep(min(_ASKED_EVERY_S, max(until_s - time.monotonic(), 0)))
