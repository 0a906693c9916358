"""Options that several commands share, and how their texts become client settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from spark_kafkalite.cli.output import warn
from spark_kafkalite.client.command_config import read_command_config, warn_of_arguments
from spark_kafkalite.errors import BrokerUnreachable, HandshakeFailed, UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.redaction import shown_value

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.cluster import ClusterAdmin

    SomeAdmin = TypeVar("SomeAdmin", bound=ClusterAdmin)

Function = TypeVar("Function", bound=Callable[..., Any])
ClientSettings = dict[str, object]

DEFAULT_BOOTSTRAP_SERVER: Final = "127.0.0.1:9092"
# A person waits at the terminal: a broker that is not there must be told of soon, not after Kafka's half minute.
_TERMINAL_SETTINGS: Final = {"request.timeout.ms": "10000", "socket.connection.setup.timeout.ms": "3000"}
_REACHABLE_WITHIN_MS: Final = 4_000


def settings_options(function: Function) -> Function:
    """Add --command-config and --command-property."""
    function = click.option(
        "--command-property",
        "--client-property",
        "command_properties",
        metavar="NAME=VALUE",
        multiple=True,
        help="A client setting in Kafka's name; secrets belong into --command-config. Repeatable.",
    )(function)
    return click.option(
        "--command-config",
        "command_config",
        metavar="FILE",
        help="Properties file with client settings, such as security.protocol, ssl.* and sasl.*.",
    )(function)


def bootstrap_option(function: Function) -> Function:
    """Add --bootstrap-server, with Kafka's older name for producers, and --command-config, --command-property."""
    return click.option(
        "--bootstrap-server",
        "--broker-list",
        "bootstrap_server",
        default=DEFAULT_BOOTSTRAP_SERVER,
        show_default=f"bootstrap.servers of --command-config, or {DEFAULT_BOOTSTRAP_SERVER}",
        metavar="HOST:PORT[,...]",
        help="Brokers to ask first.",
    )(settings_options(function))


def client_options(function: Function) -> Function:
    """Add the options of :func:`bootstrap_option`; the function gets the settings that they make, ``client``."""

    @wraps(function)
    def with_client(
        *, bootstrap_server: str, command_config: str | None, command_properties: tuple[str, ...], **others: Any
    ) -> Any:
        return function(client=client_settings(bootstrap_server, command_config, command_properties), **others)

    return bootstrap_option(cast("Function", with_client))


def older_config_option(spelling: str) -> Callable[[Function], Function]:
    """Return what adds a console tool's own spelling of --command-config."""
    return click.option(spelling, "older_config", metavar="FILE", hidden=True)


def config_file(command_config: str | None, older_config: str | None, spelling: str) -> str | None:
    """Return the file that was given by --command-config or its older spelling. Raises UsageError for both."""
    if command_config is not None and older_config is not None:
        raise click.UsageError(f"--command-config and {spelling} are two names of one option; give one of them")
    return command_config if older_config is None else older_config


def json_option(function: Function) -> Function:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def client_settings(
    bootstrap_server: str, command_config: str | None, command_properties: Iterable[str], **more: object
) -> ClientSettings:
    """Return the settings of a client: ours for a terminal, then the file's, then the properties, then ``more``.

    An address that the user gives stands above those of the file and the properties, and the default below them. Warns
    of secrets that other users of this host can see. Raises ConfigError for the file, UsageError for properties.
    """
    settings: ClientSettings = {"client.id": "kafkalite", **_TERMINAL_SETTINGS}
    if command_config:
        settings.update(read_command_config(command_config, warn))
    properties = name_values(command_properties, "--command-property")
    warn_of_arguments(properties.items(), warn)
    settings.update(properties)
    if not settings.get("bootstrap.servers") or not _is_default(bootstrap_server):
        settings["bootstrap.servers"] = bootstrap_server
    settings.update({name.replace("_", "."): value for name, value in more.items() if value is not None})
    return settings


def _is_default(bootstrap_server: str) -> bool:
    """Return whether the user of the present command has left --bootstrap-server out."""
    context = click.get_current_context(silent=True)
    source = ParameterSource.DEFAULT if context is None else context.get_parameter_source("bootstrap_server")
    return bootstrap_server == DEFAULT_BOOTSTRAP_SERVER and source is ParameterSource.DEFAULT


def admin_settings(settings: Mapping[str, object], *, shared: bool = False) -> dict[str, object]:
    """Return the settings without those that only producers and consumers know; ``shared``: without all unknown ones.

    An administrator warns of what is left and not known.
    """
    from spark_kafkalite.client.client_config import ADMIN_SETTINGS

    left_out = set(ADMIN_SETTINGS.unknown(settings))
    if left_out and not shared:
        from spark_kafkalite.client.config import CONSUMER_SETTINGS, PRODUCER_SETTINGS

        # One file of settings serves all commands: what is a producer's or consumer's is nothing to warn about here.
        left_out = {name for name in left_out if name in PRODUCER_SETTINGS or name in CONSUMER_SETTINGS}
    return {name: value for name, value in settings.items() if name not in left_out}


def reachable_admin(
    settings: Mapping[str, object], *, shared: bool = False, by_bootstrap_server: bool = False
) -> Admin:
    """Return an administrator whose cluster has answered. Raises BrokerUnreachable after a few seconds.

    It warns of settings that no client knows, unless they are ``shared`` with a producer or consumer, which does.
    ``by_bootstrap_server``: an answer from there is enough, whether or not the advertised addresses can be reached.

    Clients wait for brokers, because a program should outlive the restart of a broker. A command should end soon,
    because its user may have mistyped the address.
    """
    from spark_kafkalite.client.admin.admin import Admin

    return _reachable(Admin, settings, shared, by_bootstrap_server)


def reachable_cluster(settings: Mapping[str, object]) -> ClusterAdmin:
    """Do what :func:`reachable_admin` does, for a command that needs the lists of topics and brokers only.

    It loads a third of what an Admin does.
    """
    from spark_kafkalite.client.admin.cluster import ClusterAdmin

    return _reachable(ClusterAdmin, settings, shared=False, by_bootstrap_server=False)


def _reachable(
    kind: type[SomeAdmin], settings: Mapping[str, object], shared: bool, by_bootstrap_server: bool
) -> SomeAdmin:
    from spark_kafkalite.client.network.retry import Deadline

    admin = kind(admin_settings(settings, shared=shared))
    try:
        if by_bootstrap_server:
            admin.cluster.refresh([], Deadline.after_ms(_REACHABLE_WITHIN_MS))
        else:
            admin.describe_cluster(timeout_ms=_REACHABLE_WITHIN_MS)
    except BrokerUnreachable as error:
        admin.close()
        if isinstance(error.__cause__, HandshakeFailed):
            raise  # there is something, and the error says which setting to change
        raise BrokerUnreachable(
            f"{error}; is a broker running there? --bootstrap-server names another, or all of a cluster's; 'kafkalite "
            "broker' starts one that is no part of a cluster"
        ) from error
    except BaseException:
        admin.close()
        raise
    return admin


def existing_partitions(admin: Admin, topics: Mapping[str, set[int] | None]) -> list[TopicPartition]:
    """Return the partitions of the topics, those named or all. Raises UnknownTopicOrPartition for what is missing."""
    infos = admin.describe_topics(topics)
    found: list[TopicPartition] = []
    for topic, numbers in topics.items():
        there = {each.partition for each in infos[topic].partitions}
        missing = (numbers or set()) - there
        if missing:
            raise UnknownTopicOrPartition(
                f"topic {topic} has no partition {', '.join(map(str, sorted(missing)))}; it has 0 to {len(there) - 1}"
            )
        found += [TopicPartition(topic, number) for number in sorted(there if numbers is None else numbers)]
    return found


def name_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return ``name=value`` texts as a dictionary. Raises UsageError for one without '='."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{option} {shown_value('', text)}: not of the form name=value")
        found[name.strip()] = value.strip()
    return found


def named_properties(texts: Iterable[str], known: Iterable[str], option: str) -> dict[str, str]:
    """Return a formatter's or reader's properties; values keep their spaces, since a separator may be one.

    ``\\t``, ``\\n`` and ``\\0`` written as two characters mean the control character. Raises UsageError for an
    unknown name.
    """
    names = tuple(known)
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if name.strip() not in names:
            raise click.UsageError(f"{option} {name.strip()}: not known; the names are {', '.join(names)}")
        if not separator:
            raise click.UsageError(f"{option} {text}: not of the form name=value")
        found[name.strip()] = unescaped(value)
    return found


def unescaped(text: str) -> str:
    """Return ``text`` with the escapes that shells make hard to type replaced."""
    return text.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0")


def is_true(text: str, option: str) -> bool:
    """Return a truth value written in Kafka's way. Raises UsageError for anything else."""
    if text.lower() not in ("true", "false"):
        raise click.UsageError(f"{option}={text}: must be true or false")
    return text.lower() == "true"


def topic_pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression that --topic gives. Raises UsageError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise click.UsageError(f"--topic {text}: not a regular expression: {error}") from None


class ActionGroup(click.Group):
    """A group of actions that also takes Kafka's spelling, in which the action is a flag.

    ``topics --describe --topic t`` is ``topics describe --topic t``; the flag may stand anywhere.

    ``actions`` are those whose module is imported when they are chosen: their module, and the command's name in it.
    """

    def __init__(self, *arguments: Any, actions: Mapping[str, tuple[str, str]] | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._actions = dict(actions or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._actions, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._actions:
            module, name = self._actions[cmd_name]
            action: click.Command = getattr(import_module(module), name)
            return action
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (names := self.list_commands(ctx)):
            flags = [f"--{name}" for name in names]
            found = [argument for argument in args if argument in flags]
            if len(found) > 1:
                raise click.UsageError(f"{' and '.join(found)}: name one action only", ctx)
            if found:
                rest = list(args)
                rest.remove(found[0])
                args = [found[0][2:], *rest]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in (names := self.list_commands(ctx)):
            raise click.UsageError(
                f"{ctx.info_name} has no action {args[0]!r}; the actions are {', '.join(names)}", ctx
            )
        return super().resolve_command(ctx, args)
