"""The client settings of a job: a file and options on the command line in, those of each client out.

A file keeps secrets off the command line, where every user of the host sees them. It is the file of Kafka's tools, so
it may hold what no client of a job reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from spark_kafkalite.client.command_config import read_command_config, warn_of_arguments
from spark_kafkalite.client.config import ADMIN_SETTINGS, CONSUMER_SETTINGS, PRODUCER_SETTINGS, is_jvm_only
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs.program.outcome import ExitCode
from spark_kafkalite.jobs.program.session import JobFailed, is_submitted, start_session
from spark_kafkalite.redaction import shown_value
from spark_kafkalite.settings import SettingGroup
from spark_kafkalite.spark.options.options import refused_setting
from spark_kafkalite.spark.workers.connections import admin_settings
from spark_kafkalite.spark.workers.shipped_files import shipped_file

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.produce.producer import Producer

_Function = TypeVar("_Function", bound=Callable[..., Any])
# A file may name them for other tools; a job has an option for the first, and its source joins no group.
_NOT_FROM_A_FILE: Final = ("bootstrap.servers", "group.id")


def client_options(function: _Function) -> _Function:
    """Add --command-config and --option."""
    for option in (
        click.option(
            "--option",
            "option_pairs",
            multiple=True,
            metavar="NAME=VALUE",
            help="Consumer setting of the reading client, such as fetch.max.bytes; where the job writes to a topic "
            "also a producer setting. docs/configuration.md lists both. Repeatable. Secrets belong into "
            "--command-config.",
        ),
        click.option(
            "--command-config",
            "command_config",
            metavar="FILE",
            help="Properties file with client settings, such as security.protocol, ssl.* and sasl.*, on the driver's "
            "host, or shipped by spark-submit --files.",
        ),
    ):
        function = option(function)
    return function


def client_settings(
    command_config: str | None, pairs: Iterable[str], *, writes: bool = False, option: str = "--command-config"
) -> dict[str, str]:
    """Return the client settings of ``--command-config FILE`` and, over them, of ``--option NAME=VALUE`` pairs.

    ``option`` is the name that the first has on the command line.
    Raises click.BadParameter for a pair whose name is no consumer setting, nor, where the job ``writes`` to a topic, a
    producer setting. Raises JobFailed for a file that cannot be read.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = (part.strip() for part in pair.partition("="))
        if not separator:
            raise click.BadParameter(f"{shown_value('', pair)!r} is not of the form NAME=VALUE", param_hint="--option")
        if name not in CONSUMER_SETTINGS and not (writes and name in PRODUCER_SETTINGS):
            kind = "consumer or producer" if writes else "consumer"
            hint = CONSUMER_SETTINGS.hint(name) or (PRODUCER_SETTINGS.hint(name) if writes else "")
            raise click.BadParameter(f"{name!r} is no {kind} setting{hint}", param_hint="--option")
        given[name] = value
    warn_of_arguments(given.items(), _warn)
    return {**(_of_file(command_config, option) if command_config else {}), **given}


def _of_file(command_config: str, option: str) -> dict[str, str]:
    try:
        given = read_command_config(_found(command_config), _warn)
    except ConfigError as error:
        raise JobFailed(f"{option}: {error}", ExitCode.USAGE) from None
    settings = {}
    for name, value in given.items():
        if name in _NOT_FROM_A_FILE or refused_setting(name):
            continue
        if name in CONSUMER_SETTINGS or name in PRODUCER_SETTINGS or name in ADMIN_SETTINGS:
            settings[name] = value
        else:
            why = "it is for the JVM" if is_jvm_only(name) else f"no client knows it{CONSUMER_SETTINGS.hint(name)}"
            _warn(f"{option} {command_config}: {name} has no effect: {why}")
    return settings


def _found(command_config: str) -> str:
    """Return where the file is; what spark-submit has shipped can be found only once there is a session."""
    if not os.path.exists(command_config) and is_submitted():
        start_session("kafkalite")
        return shipped_file(command_config) or command_config
    return command_config


def _warn(text: str) -> None:
    click.echo(f"WARNING: {text}", err=True)


def source_options(bootstrap_server: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark source's options: the cluster, and those of the client settings that a consumer reads."""
    return _connection(CONSUMER_SETTINGS, bootstrap_server, settings)


def sink_options(
    bootstrap_server: str, settings: Mapping[str, str], quarantine_topic: str | None = None
) -> dict[str, str]:
    """Return the Spark sink's options: the cluster, those of the client settings that a producer reads, and the topic
    for refused records."""
    quarantine = {} if quarantine_topic is None else {"quarantineTopic": quarantine_topic}
    return {**_connection(PRODUCER_SETTINGS, bootstrap_server, settings), **quarantine}


def _connection(group: SettingGroup, bootstrap_server: str, settings: Mapping[str, str]) -> dict[str, str]:
    own = {f"kafka.{name}": value for name, value in settings.items() if name in group}
    return {"kafka.bootstrap.servers": bootstrap_server, **own}


def open_admin(bootstrap_server: str, settings: Mapping[str, str]) -> Admin:
    """Return an admin client of the cluster, with those of the client settings that it reads."""
    from spark_kafkalite.client.admin.admin import Admin

    return Admin({"bootstrap.servers": bootstrap_server, **admin_settings(settings)})


def open_producer(bootstrap_server: str, settings: Mapping[str, str]) -> Producer:
    """Return a producer of the cluster, with those of the client settings that it reads."""
    from spark_kafkalite.client.produce.producer import Producer

    own = {name: value for name, value in settings.items() if name in PRODUCER_SETTINGS}
    return Producer({"bootstrap.servers": bootstrap_server, **own})
