"""``kafkalite top``: the command, its loop, and what it prints once."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.cli.options import bootstrap_option, client_settings, json_option, reachable_admin
from spark_kafkalite.cli.output import print_json, print_table, warn
from spark_kafkalite.cli.rights import NOT_DESCRIBED, may_describe_cluster
from spark_kafkalite.cli.top.view import BY_GROWTH, BY_LAG, View
from spark_kafkalite.exposition.access import read_token

if TYPE_CHECKING:
    from spark_kafkalite.cli.top.looks import Looks

_UNKNOWN: Final = "-"


@click.command(
    "top",
    epilog="""\b
Examples:
  kafkalite top
  kafkalite top --bootstrap-server 10.0.0.5:9092 --command-config client.properties
  kafkalite top --once --json
""",
)
@bootstrap_option
@json_option
@click.option("--once", is_flag=True, help="Ask for everything twice, print it, and end.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option(
    "--rows", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="With --once: rows of each kind."
)
@click.option(
    "--groups-by",
    type=click.Choice([BY_LAG, BY_GROWTH]),
    default=BY_LAG,
    show_default=True,
    help="Which groups come first: those far behind, or those that fall behind fastest.",
)
@click.option(
    "--metrics-token-file", metavar="FILE", help="Token of the brokers' metrics listeners (metrics.token.file)."
)
def command(
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
    once: bool,
    interval_s: float,
    rows: int,
    groups_by: str,
    metrics_token_file: str | None,
) -> int:
    """Show a cluster as it is now: brokers, busy topics, groups that are behind, partitions that need action.

    The cluster may be Apache Kafka. Bytes a second and the lag of the event loop are those of brokers with
    metrics.listener. Of thousands of topics or groups, it asks for the top ones each second and for the others in turn.
    """
    if as_json and not once:
        raise click.UsageError("--json: prints once; add --once")
    if not once and not sys.stdout.isatty():
        raise click.UsageError(
            "the live view needs a terminal, and standard output is none; use --once, or --once --json"
        )
    token = None if metrics_token_file is None else read_token(metrics_token_file, "--metrics-token-file").decode()
    settings = client_settings(bootstrap_server, command_config, command_properties, client_id="kafkalite-top")
    with reachable_admin(settings) as admin:
        if not may_describe_cluster(admin):
            warn(NOT_DESCRIBED)
        from spark_kafkalite.cli.top.looks import Looks

        looks = Looks(admin, token=token, groups_by=groups_by)
        if not once:
            _show(looks, interval_s)
        else:
            looks.look(everything=True)
            time.sleep(interval_s)
            view = looks.look(everything=True)
        if looks.warning is not None:
            warn(looks.warning)
    if not once:
        return 0
    if view.problem is not None:
        raise click.ClickException(view.problem)
    shown = replace(view, topics=view.topics[:rows], groups=view.groups[:rows], partitions=view.partitions[:rows])
    if as_json:
        print_json(shown.as_json())
    else:
        _print(shown)
    return 0


def _show(looks: Looks, interval_s: float) -> None:
    """Draw the cluster until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from spark_kafkalite.cli.top.screen import drawn

    latest: list[tuple[float, View]] = [(time.monotonic(), View())]
    ended = threading.Event()
    changed = threading.Event()
    failed: list[BaseException] = []

    def look_on() -> None:
        try:
            while not ended.is_set():
                began_s = time.monotonic()
                view = looks.look()
                latest[0] = time.monotonic(), view
                changed.set()
                ended.wait(max(0.05, interval_s - (time.monotonic() - began_s)))
        except BaseException as error:
            # The client is closed at the end; anything else is told by the thread that draws.
            failed.append(error)
            changed.set()

    looker = threading.Thread(target=look_on, name="kafkalite-top", daemon=True)
    console = Console()
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        looker.start()
        while not failed:
            looked_s, view = latest[0]
            size = console.size
            live.update(drawn(view, size.width, size.height, time.monotonic() - looked_s), refresh=True)
            # A new size of the terminal is drawn soon, too.
            changed.wait(1.0)
            changed.clear()
    ended.set()
    if failed:
        raise failed[0]


def _print(view: View) -> None:
    def text(value: object) -> object:
        return _UNKNOWN if value is None else value

    print_table(
        ("ID", "ADDRESS", "LEADERS", "REPLICAS", "RECORDS/S", "IN/S", "OUT/S", "DISK-%", "FREE", "LOOP-LAG-MS"),
        [
            (
                row.id,
                row.address or _UNKNOWN,
                row.leaders,
                row.replicas,
                text(row.records_per_s),
                text(row.bytes_in_per_s),
                text(row.bytes_out_per_s),
                text(row.disk_used_percent),
                text(row.disk_free_bytes),
                text(row.loop_lag_p99_ms),
            )
            for row in view.brokers
        ],
    )
    click.echo()
    print_table(
        ("TOPIC", "PARTITIONS", "RECORDS", "RECORDS/S"),
        [(row.topic, row.partitions, row.records, text(row.records_per_s)) for row in view.topics],
    )
    click.echo()
    print_table(
        ("GROUP", "STATE", "MEMBERS", "LAG", "GROWTH/S", "LAG-SECONDS"),
        [
            (
                row.group,
                row.state or _UNKNOWN,
                text(row.members),
                row.lag,
                text(row.growth_per_s),
                text(row.lag_seconds),
            )
            for row in view.groups
        ],
    )
    if view.partitions:
        click.echo()
        print_table(
            ("TOPIC", "PARTITION", "PROBLEM", "LEADER", "REPLICAS", "IN-SYNC"),
            [
                (row.topic, row.partition, row.problem, row.leader, _ids(row.replicas), _ids(row.isr))
                for row in view.partitions
            ],
        )
    for broker in view.brokers:
        if broker.problem:
            warn(f"broker {broker.id}: {broker.problem}")


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or _UNKNOWN
