"""``kafkalite cluster wait``: wait until all replicas of a cluster are in sync, or besides everything else is well."""

from __future__ import annotations

import time
from typing import Final

import click

from spark_kafkalite.cli.cluster.health import HEALTHY, UNDER_REPLICATED, Health, NoAnswer, health_of
from spark_kafkalite.cli.options import ClientSettings, client_options
from spark_kafkalite.cli.output import said

_ASKED_EVERY_S: Final = 1.0


@click.command(
    "wait",
    epilog="""\b
Examples:
  kafkalite cluster wait --healthy
  kafkalite cluster wait --healthy --brokers 3 --timeout 60 --bootstrap-server 10.0.0.5:9092
  kafkalite cluster wait --in-sync && systemctl restart kafkalite
""",
)
@client_options
@click.option(
    "--healthy",
    is_flag=True,
    help="Wait until all partitions are led and in sync, each broker can be connected to and a controller is known.",
)
@click.option(
    "--brokers",
    "wanted_brokers",
    metavar="N",
    type=click.IntRange(1),
    help="With --healthy: wait, too, until N brokers are live. Without topics nothing shows that one is missing.",
)
@click.option("--in-sync", is_flag=True, help="Wait until every replica of every partition is in sync.")
@click.option("--drained", metavar="BROKER", type=click.IntRange(0), help="Wait until a broker has no replica.")
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
    wanted_brokers: int | None,
    in_sync: bool,
    drained: int | None,
    timeout_s: float,
) -> int:
    """Wait until the cluster is as it should be, as after the restart of a broker.

    Each change of what is missing is a line on stderr. If something is still missing when the time is over, the exit
    code with --in-sync and --drained is 1. With --healthy it is that of 'cluster status --exit-code': 1 something is
    under-replicated, 3 something is offline or refuses acks=all, 4 no broker answers.
    """
    if healthy + in_sync + (drained is not None) != 1:
        raise click.UsageError("name what to wait for: --healthy, --in-sync or --drained")
    if wanted_brokers is not None and not healthy:
        raise click.UsageError("--brokers needs --healthy")
    subject = "the cluster" if drained is None else f"broker {drained}"
    wanted = "healthy" if healthy else "in sync" if in_sync else "drained"
    until_s, told = time.monotonic() + timeout_s, ""
    while True:
        try:
            found = health_of(client)
            if not healthy and not found.may_describe:
                code, text = UNDER_REPLICATED, found.text()
            elif drained is not None:
                code, text = _not_drained(found, drained)
            elif in_sync:
                code, text = _out_of_sync(found)
            else:
                code, text = _not_healthy(found, wanted_brokers)
        except NoAnswer as error:
            code, text = error.exit_code, " ".join(error.format_message().split())
        if code == HEALTHY:
            click.echo(f"{subject.capitalize()} is {wanted}: {text}")
            return code
        is_over = time.monotonic() >= until_s
        if is_over:
            said(f"{subject} is not {wanted} after {timeout_s:g} s: {text}")
            return code if healthy else min(code, 1)
        if text != told:
            said(f"waiting: {text}")
            told = text
        time.sleep(min(_ASKED_EVERY_S, max(until_s - time.monotonic(), 0)))


def _not_healthy(found: Health, wanted_brokers: int | None) -> tuple[int, str]:
    """Return the exit code, and a line about what is missing, or about what there is."""
    live = len(found.live)
    if wanted_brokers is not None and live < wanted_brokers:
        missing = f"{live} of {wanted_brokers} brokers are live"
        problem = "" if found.exit_code == HEALTHY else f"; {found.text()}"
        return max(found.exit_code, UNDER_REPLICATED), missing + problem
    if found.exit_code != HEALTHY:
        return found.exit_code, found.text()
    return HEALTHY, f"{found.text()}; {live} {'brokers are' if live > 1 else 'broker is'} live"


def _not_drained(found: Health, broker: int) -> tuple[int, str]:
    """Return the exit code, and a line about the replicas that a broker has."""
    there = [key for key, info in found.partitions.items() if broker in info.replicas]
    if not there:
        return HEALTHY, f"{len(found.partitions)} partitions are on others"
    return UNDER_REPLICATED, f"broker {broker} has replicas of {len(there)} of {len(found.partitions)} partitions"


def _out_of_sync(found: Health) -> tuple[int, str]:
    """Return the exit code, and a line about the replicas that are not in sync."""
    missing: dict[int, int] = {}
    behind = found.under_replicated()
    for key in behind:
        info = found.partitions[key]
        for broker in set(info.replicas) - set(info.isr):
            missing[broker] = missing.get(broker, 0) + 1
    if not behind:
        return HEALTHY, f"all replicas of {len(found.partitions)} partitions"
    of_brokers = ", ".join(f"{count} on broker {broker}" for broker, count in sorted(missing.items()))
    text = f"{len(behind)} of {len(found.partitions)} partitions have replicas out of sync: {of_brokers}"
    return UNDER_REPLICATED, text
