"""``kafkalite broker``: reads the settings and runs a broker in this process until SIGTERM or Ctrl-C."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import click

from spark_kafkalite.cli.output import warn
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import is_secret, shown_name, shown_value


@click.command(
    "broker",
    epilog="""\b
Examples:
  kafkalite broker
  kafkalite broker --config conf/server.properties
  kafkalite broker --secure ./secure
  kafkalite broker --override listeners=PLAINTEXT://127.0.0.1:0 --override log.dirs=/var/lib/kafkalite
""",
)
@click.option("--config", "config_path", metavar="FILE", help="Properties file with broker settings.")
@click.option(
    "--override", "overrides", metavar="NAME=VALUE", multiple=True, help="One setting; overrides the file. Repeatable."
)
@click.option(
    "--secure",
    "secure_dir",
    metavar="DIR",
    help="Encrypt, and let in the user admin only. DIR has keys, password and the settings of clients; it is made.",
)
def command(config_path: str | None, overrides: tuple[str, ...], secure_dir: str | None) -> int:
    """Run a broker in the foreground.

    Without options it listens on 127.0.0.1:9092 and keeps its data in ./kafkalite-data. It prints one line when it
    serves, 'kafkalite broker 1 ready on HOST:PORT', and stops in order at SIGTERM or Ctrl-C.

    With --secure the listener is SASL_SSL. The first start makes an authority, the broker's certificate (for a year;
    a start in the last month renews it) and a user admin with a password, and writes the settings of clients to DIR.

    At SIGHUP it reads its certificates and FILE again, and applies the settings that 'kafkalite configs alter' could
    change. One log line names the settings that have changed, and those that need a restart. At SIGUSR1 it writes the
    stacks of its threads and tasks to its log.
    """
    # A start makes much and throws little away; the broker turns collection on again once it serves. A tenth of the
    # time to start is saved so.
    gc.disable()
    given = parse_overrides(overrides)
    for name, value in given.items():
        if is_secret(name, str(value)):
            warn(f"{shown_name(name)} is on the command line, where every user of this host sees it: use --config FILE")
    from spark_kafkalite.broker.settings.config import BrokerConfig

    path = Path(config_path) if config_path else None
    below = None
    if secure_dir is not None:
        from spark_kafkalite.cli.secure import secured

        below = secured(Path(secure_dir), path, given)
    config = BrokerConfig.load(path, given, below)
    # Only now: bad settings are told of without loading the rest.
    from spark_kafkalite.broker.server import run_broker

    try:
        return run_broker(config, partial(BrokerConfig.load, path, given, below) if path is not None else None)
    except ConfigError as error:
        # The settings are good in themselves; what they name (a port, a directory) is not to be had.
        raise click.ClickException(str(error)) from error


def parse_overrides(overrides: tuple[str, ...]) -> dict[str, object]:
    """Return ``name=value`` texts as a dictionary. Raises ConfigError for one without '='."""
    parsed: dict[str, object] = {}
    for override in overrides:
        name, separator, value = override.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--override {shown_value('', override)}: not of the form name=value")
        parsed[name.strip()] = value.strip()
    return parsed
