"""``kafkalite exporter``: metrics of a whole cluster for Prometheus, under the names of kafka_exporter."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Final

import click

from spark_kafkalite.cli.groups.options import checked_connect
from spark_kafkalite.cli.options import admin_settings, bootstrap_option, client_settings, reachable_admin
from spark_kafkalite.cli.output import warn
from spark_kafkalite.cli.rights import NOT_DESCRIBED, may_describe_cluster
from spark_kafkalite.errors import BrokerUnreachable, HandshakeFailed

_EVERYTHING: Final = ".*"


def _pattern(ctx: click.Context, parameter: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text}: not a regular expression: {error}", ctx, parameter) from None


@click.command(
    "exporter",
    epilog="""\b
Examples:
  kafkalite exporter --bootstrap-server 10.0.0.5:9092
  kafkalite exporter --listen 0.0.0.0:9308 --token-file /etc/kafkalite/metrics.token
  kafkalite exporter --command-config client.properties --topic-exclude '^__' --group-filter '^billing-'
""",
)
@bootstrap_option
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:9308", show_default=True, help="Where to serve; port 0: any."
)
@click.option(
    "--token-file", metavar="FILE", help="Ask scrapers for the token in this file (Authorization: Bearer TOKEN)."
)
@click.option("--insecure", is_flag=True, help="Serve an address that other hosts reach without a token.")
@click.option("--topic-filter", metavar="REGEX", default=_EVERYTHING, callback=_pattern, help="Topics to show.")
@click.option("--topic-exclude", metavar="REGEX", callback=_pattern, help="Topics not to show.")
@click.option("--group-filter", metavar="REGEX", default=_EVERYTHING, callback=_pattern, help="Groups to show.")
@click.option("--group-exclude", metavar="REGEX", callback=_pattern, help="Groups not to show.")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,...][/CHROOT]",
    help="Show groups of registry consumers, too: their offsets lie in this ZooKeeper.",
)
@click.option(
    "--no-lag-seconds",
    is_flag=True,
    help="Leave out the age of the next record, for which a record batch is read wherever a group has moved.",
)
@click.option(
    "--max-series",
    type=click.IntRange(1, 10_000_000),
    default=1_000_000,
    show_default=True,
    help="Leave out further series.",
)
@click.option(
    "--scrape-timeout-ms",
    type=click.IntRange(500, 600_000),
    default=9_000,
    show_default=True,
    help="How long a scrape may take; less than scrape_timeout of Prometheus.",
)
def command(
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    listen: str,
    token_file: str | None,
    insecure: bool,
    topic_filter: re.Pattern[str],
    topic_exclude: re.Pattern[str] | None,
    group_filter: re.Pattern[str],
    group_exclude: re.Pattern[str] | None,
    zookeeper: str | None,
    no_lag_seconds: bool,
    max_series: int,
    scrape_timeout_ms: int,
) -> int:
    """Serve metrics of a cluster for Prometheus: brokers, topics, and how far groups are behind.

    Names and labels are those of kafka_exporter, so boards and alerts for it work. The cluster may be Apache Kafka.
    It prints one line when it serves, and stops at SIGTERM or Ctrl-C.
    """
    from spark_kafkalite.client.admin.cluster import ClusterAdmin
    from spark_kafkalite.exporter.scrape import ExporterSettings, Scraper
    from spark_kafkalite.exporter.server import ExporterServer, serve
    from spark_kafkalite.exposition.access import AccessNames, PageAccess

    names = AccessNames("--listen", "--token-file", "--insecure")
    access = PageAccess.of(listen, token_file, insecure=insecure, names=names)
    settings = client_settings(bootstrap_server, command_config, command_properties, client_id="kafkalite-exporter")
    if zookeeper is not None:
        checked_connect(zookeeper)
    try:
        # The client that stays warns of settings that are not known.
        with reachable_admin(settings, shared=True) as asked:
            if not may_describe_cluster(asked):
                warn(NOT_DESCRIBED)
    except HandshakeFailed:
        raise
    except BrokerUnreachable as error:
        # It may be started before the brokers are.
        warn(f"{error}. Scrapes fail until a broker answers")
    shown = ExporterSettings(
        topic_filter,
        topic_exclude,
        group_filter,
        group_exclude,
        not no_lag_seconds,
        max_series,
        scrape_timeout_ms,
    )
    with ClusterAdmin(admin_settings(settings)) as admin, ExitStack() as closing:
        registry = None
        if zookeeper is not None:
            from spark_kafkalite.exporter.registry_lags import RegistryLags

            registry = RegistryLags(zookeeper)
            closing.callback(registry.close)
        server = ExporterServer(access, Scraper(admin.cluster, shown, registry).page)
        serve(server, lambda address: print(f"kafkalite exporter ready on http://{address}/metrics", flush=True))
    return 0
