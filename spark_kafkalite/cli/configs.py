"""``kafkalite configs``: show and alter settings of topics and brokers, quotas, and levels of brokers' loggers, in the
words of Kafka's own tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from spark_kafkalite.cli.options import (
    ActionGroup,
    ClientSettings,
    client_options,
    json_option,
    reachable_admin,
)
from spark_kafkalite.cli.output import echo, print_json, warn
from spark_kafkalite.cli.quotas import (
    QUOTA_TYPES,
    Named,
    alter_quotas,
    describe_quotas,
    named_by_types,
    quota_options,
)
from spark_kafkalite.client.command_config import warn_of_arguments
from spark_kafkalite.errors import InvalidConfig
from spark_kafkalite.redaction import shown_value
from spark_kafkalite.settings import read_properties

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.configs import ConfigChange, ConfigEntry

Function = TypeVar("Function", bound=Callable[..., Any])

_EPILOG = """\b
Examples:
  kafkalite configs describe --topic events
  kafkalite configs alter --topic events --add-config retention.ms=-1,cleanup.policy=[compact,delete]
  kafkalite configs alter --topic events --delete-config retention.ms
  kafkalite configs describe --entity-type brokers --entity-name 1 --all
  kafkalite configs alter --entity-type brokers --entity-default --add-config log.retention.ms=86400000

Quotas: kafkalite configs alter --user alice --client etl --add-config producer_byte_rate=1048576

\b
Levels of a broker's loggers:
  kafkalite configs alter --entity-type broker-loggers --entity-name 1 --add-config root=DEBUG

Kafka's spelling works too: kafkalite configs --describe --entity-type topics --entity-name events
"""

_LOGGERS: Final = "broker-loggers"

# What Kafka's tool calls the sources.
_SOURCE_NAMES: Final = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "dynamic broker": "DYNAMIC_BROKER_CONFIG",
    "dynamic default broker": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "dynamic broker logger": "DYNAMIC_BROKER_LOGGER_CONFIG",
    "static broker": "STATIC_BROKER_CONFIG",
    "default": "DEFAULT_CONFIG",
}


@dataclass(frozen=True)
class Entity:
    """Whose settings. ``name`` is None for all brokers by default."""

    kind: str
    name: str | None

    def __str__(self) -> str:
        if self.name is None:
            return "all brokers"
        return f"{self.kind.removesuffix('s')} {self.name}"

    @property
    def keywords(self) -> dict[str, Any]:
        """The administrator's words for it."""
        if self.kind == "topics":
            return {"topic": self.name}
        if self.kind == _LOGGERS:
            return {"broker_id": int(self.name or ""), "loggers": True}
        return {"all_brokers": True} if self.name is None else {"broker_id": int(self.name)}

    @property
    def own_source(self) -> str:
        """The source of settings that were given to this very entity."""
        if self.kind == "topics":
            return "topic"
        if self.kind == _LOGGERS:
            return "dynamic broker logger"
        return "dynamic default broker" if self.name is None else "dynamic broker"


@click.group("configs", cls=ActionGroup, epilog=_EPILOG)
def command() -> None:
    """Show and alter settings of topics and brokers, quotas, and the levels of brokers' loggers."""


class _NamedEntity(NamedTuple):
    """What the options of a call name."""

    entity_types: tuple[str, ...]
    entity_names: tuple[str, ...]
    entity_defaults: int
    named_quotas: Named
    topic: str | None
    broker: str | None
    broker_defaults: bool

    def quotas(self) -> Named | None:
        """Return whose quotas the options name, None if they are about settings. Raises UsageError."""
        if self.named_quotas and (self.entity_types or self.entity_names or self.entity_defaults):
            raise click.UsageError("--user, --client and --ip do not go together with --entity-type")
        if len(self.entity_types) > 1 or not QUOTA_TYPES.keys().isdisjoint(self.entity_types):
            return named_by_types(self.entity_types, self.entity_names, self.entity_defaults)
        return self.named_quotas or None

    def entity(self) -> tuple[str, Entity | None]:
        """Return the type, and the entity; None for every one of the type. Raises UsageError."""
        if len(self.entity_names) > 1:
            raise click.UsageError("--entity-name: name one topic, or one broker")
        entity_type, entity_name = next(iter(self.entity_types), None), next(iter(self.entity_names), None)
        entity_default = self.entity_defaults > 0
        ways = [
            entity_type is not None or entity_name is not None or entity_default,
            self.topic is not None,
            self.broker is not None,
            self.broker_defaults,
        ]
        if sum(ways) != 1:
            raise click.UsageError("name what is meant: --topic, --broker, --broker-defaults, or --entity-type")
        if self.topic is not None:
            return "topics", Entity("topics", self.topic)
        if self.broker is not None:
            entity_type, entity_name = "brokers", self.broker
        if self.broker_defaults:
            entity_type, entity_default = "brokers", True
        if entity_type is None:
            raise click.UsageError("--entity-name and --entity-default need --entity-type")
        if entity_name is not None and entity_default:
            raise click.UsageError("--entity-name and --entity-default exclude each other")
        if entity_default:
            if entity_type == _LOGGERS:
                raise click.UsageError("--entity-default: each broker has loggers of its own; give --entity-name")
            if entity_type != "brokers":
                raise click.UsageError("--entity-default: the defaults of topics are settings of the brokers")
            return entity_type, Entity("brokers", None)
        if entity_name is None:
            return entity_type, None
        if entity_type != "topics" and not entity_name.isdecimal():
            raise click.UsageError(f"{entity_name!r} is not the number of a broker")
        return entity_type, Entity(entity_type, entity_name)


def _entity_options(function: Function) -> Function:
    """Give a command the options that name an entity; it gets them as ``chosen``."""

    @wraps(function)
    def with_chosen(*arguments: Any, **options: Any) -> Any:
        return function(
            *arguments, chosen=_NamedEntity(**{name: options.pop(name) for name in _NamedEntity._fields}), **options
        )

    command: Any = with_chosen
    for option in (
        click.option("--broker-defaults", is_flag=True, help="--entity-type brokers --entity-default."),
        click.option("--broker", "broker", metavar="ID", help="--entity-type brokers --entity-name ID."),
        click.option("--topic", "topic", metavar="NAME", help="--entity-type topics --entity-name NAME."),
        click.option(
            "--entity-default",
            "entity_defaults",
            count=True,
            help="All brokers by default; the default quotas of users, clients or ips.",
        ),
        click.option(
            "--entity-name",
            "entity_names",
            metavar="NAME",
            multiple=True,
            help="Name of the topic, number of the broker, user, client id or address.",
        ),
        click.option(
            "--entity-type",
            "entity_types",
            type=click.Choice(["topics", "brokers", _LOGGERS, *QUOTA_TYPES]),
            multiple=True,
            help="Whose settings: topics' or brokers'; the levels of a broker's loggers; whose quotas: users', "
            "clients' (both for a user's client id), ips'. Names follow in the same order.",
        ),
    ):
        command = option(command)
    return quota_options(command)  # type: ignore[no-any-return]


@command.command("describe")
@_entity_options
@click.option("--all", "show_all", is_flag=True, help="All settings, not only those that were given to this entity.")
@client_options
@json_option
def describe(
    chosen: _NamedEntity,
    show_all: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Show settings, where each comes from, and what else it could come from."""
    named = chosen.quotas()
    if named is not None:
        with reachable_admin(client) as admin:
            describe_quotas(admin, named, as_json=as_json)
        return
    kind, one = chosen.entity()
    described = []
    with reachable_admin(client) as admin:
        for entity in [one] if one is not None else _every(admin, kind):
            entries = admin.describe_configs(include_synonyms=True, **entity.keywords).values()
            shown = [entry for entry in entries if show_all or entry.source == entity.own_source]
            described.append((entity, sorted(shown, key=lambda entry: entry.name)))
    if as_json:
        print_json([_as_json(entity, shown) for entity, shown in described])
        return
    for entity, shown in described:
        if entity.name is None:
            click.echo("Default configs for brokers in the cluster are:")
        else:
            echo(f"{'All' if show_all else 'Dynamic'} configs for {entity} are:")
        for entry in shown:
            echo(f"  {_line(entry)}")


def _every(admin: Admin, kind: str) -> list[Entity]:
    if kind == "topics":
        return [Entity(kind, name) for name in admin.list_topics(include_internal=True)]
    brokers = [Entity(kind, str(node.node_id)) for node in admin.describe_cluster().brokers]
    return brokers if kind == _LOGGERS else [*brokers, Entity(kind, None)]


@command.command("alter")
@_entity_options
@click.option(
    "--add-config",
    "added",
    metavar="NAME=VALUE,...",
    multiple=True,
    help="Set settings; write a value with commas in brackets: NAME=[A,B]. Repeatable.",
)
@click.option(
    "--add-config-file", "file", metavar="FILE", help="Properties file with settings to set, as with --add-config."
)
@click.option(
    "--delete-config",
    "deleted",
    metavar="NAME,...",
    multiple=True,
    help="Remove settings: their defaults apply again. Repeatable.",
)
@click.option(
    "--append-config", "appended", metavar="NAME=VALUE,...", multiple=True, help="Add items to lists. Repeatable."
)
@click.option(
    "--subtract-config",
    "subtracted",
    metavar="NAME=VALUE,...",
    multiple=True,
    help="Remove items from lists. Repeatable.",
)
@click.option("--validate-only", is_flag=True, help="Check only; change nothing.")
@client_options
@json_option
def alter(
    chosen: _NamedEntity,
    added: tuple[str, ...],
    file: str | None,
    deleted: tuple[str, ...],
    appended: tuple[str, ...],
    subtracted: tuple[str, ...],
    validate_only: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:  # fmt: skip
    """Change settings of a topic, of a broker, or of all brokers by default, or quotas; all changes or none.

    The levels of a broker's loggers (--entity-type broker-loggers) are TRACE, DEBUG, INFO, WARN, ERROR and FATAL. They
    hold until the broker ends.
    """
    from_file = read_properties(Path(file)) if file is not None else {}
    named = chosen.quotas()
    if named is not None:
        changes = _changes(from_file, added, deleted, appended, subtracted)
        with reachable_admin(client) as admin:
            alter_quotas(admin, named, changes, validate_only=validate_only, as_json=as_json)
        return
    _, entity = chosen.entity()
    if entity is None:
        raise click.UsageError("alter one topic, one broker or its loggers, or all brokers (--entity-default)")
    changes = _changes(from_file, added, deleted, appended, subtracted)
    with reachable_admin(client) as admin:
        if entity.kind != _LOGGERS:
            _check_deleted(admin, entity, [change.name for change in changes if change.operation == "delete"])
        admin.incremental_alter_configs(changes, validate_only=validate_only, **entity.keywords)
        if not validate_only and entity.name is not None and entity.kind != _LOGGERS:
            warn_of_contradictions(entity, admin.describe_configs(**entity.keywords))
    if as_json:
        print_json({"entityType": entity.kind, "entityName": entity.name, "altered": not validate_only})
    elif validate_only:
        echo(f"The settings of {entity} could be changed so.")
    elif entity.name is None:
        click.echo("Completed updating default config for brokers in the cluster.")
    else:
        echo(f"Completed updating config for {entity}.")


def _changes(
    from_file: Mapping[str, str],
    added: Iterable[str],
    deleted: Iterable[str],
    appended: Iterable[str],
    subtracted: Iterable[str],
) -> list[ConfigChange]:
    from spark_kafkalite.client.admin.configs import ConfigChange

    changes = [ConfigChange(name, "set", value) for name, value in from_file.items()]
    arguments = parse_configs(added, "--add-config")
    warn_of_arguments(arguments, warn, "--add-config-file")
    changes += [ConfigChange(name, "set", value) for name, value in arguments]
    changes += [ConfigChange(name, "delete") for text in deleted for part in text.split(",") if (name := part.strip())]
    changes += [ConfigChange(name, "append", value) for name, value in parse_configs(appended, "--append-config")]
    changes += [ConfigChange(name, "subtract", value) for name, value in parse_configs(subtracted, "--subtract-config")]
    if not changes:
        raise click.UsageError("nothing to change: give --add-config or --delete-config")
    return changes


def _check_deleted(admin: Admin, entity: Entity, names: Iterable[str]) -> None:
    """Raise InvalidConfig for settings that were not set here, as Kafka's tool does: the name is likely wrong."""
    wanted = list(names)
    if not wanted:
        return
    entries = admin.describe_configs(include_synonyms=True, **entity.keywords)
    unset = [
        name
        for name in wanted
        if name not in entries or all(each.source != entity.own_source for each in entries[name].synonyms)
    ]
    if unset:
        raise InvalidConfig(f"--delete-config: {', '.join(unset)}: not set for {entity}")


def parse_configs(texts: Iterable[str], option: str) -> list[tuple[str, str]]:
    """Return the names and values of 'a=1,b=[2,3]'. Raises UsageError."""
    found = []
    for text in texts:
        # Commas inside brackets do not part settings.
        for part in re.split(r",(?=[^\[\]]*(?:\[|$))", text):
            if not part.strip():
                continue
            name, separator, value = part.partition("=")
            if not separator or not name.strip():
                raise click.UsageError(f"{option} {shown_value('', part.strip())}: not of the form name=value")
            value = value.strip()
            if value.startswith("[") and value.endswith("]"):
                value = value[1:-1]
            found.append((name.strip(), value))
    return found


def warn_of_contradictions(entity: Entity, entries: Mapping[str, ConfigEntry]) -> None:
    """Warn of settings that a broker accepts, but that contradict each other."""
    values = {name: entry.value or "" for name, entry in entries.items()}
    prefix, largest = ("", "max.message.bytes") if entity.kind == "topics" else ("log.", "message.max.bytes")
    segment = values.get(f"{prefix}segment.bytes", "")
    batch = values.get(largest, "")
    if segment.isdecimal() and batch.isdecimal() and int(batch) > int(segment):
        warn(
            f"{entity}: batches of more than {prefix}segment.bytes={segment} are refused although {largest}={batch} "
            "would let them in"
        )
    policy = values.get(f"{prefix}cleanup.policy", "delete")
    if "delete" not in policy:
        idle = [
            name
            for name in (f"{prefix}retention.ms", f"{prefix}retention.bytes")
            if name in entries and entries[name].source == entity.own_source
        ]
        if idle:
            warn(f"{entity}: {' and '.join(idle)} does nothing while {prefix}cleanup.policy is {policy!r}")


def _line(entry: ConfigEntry) -> str:
    synonyms = ", ".join(f"{_source_name(each.source)}:{each.name}={each.value}" for each in entry.synonyms)
    sensitive = "true" if entry.is_sensitive else "false"
    return f"{entry.name}={entry.value} sensitive={sensitive} synonyms={{{synonyms}}}"


def _source_name(source: str) -> str:
    return _SOURCE_NAMES.get(source, source.upper().replace(" ", "_"))


def _as_json(entity: Entity, entries: Iterable[ConfigEntry]) -> dict[str, Any]:
    return {
        "entityType": entity.kind,
        "entityName": entity.name,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "source": _source_name(entry.source),
                "type": entry.kind,
                "readOnly": entry.read_only,
                "sensitive": entry.is_sensitive,
                "synonyms": [
                    {"name": each.name, "value": each.value, "source": _source_name(each.source)}
                    for each in entry.synonyms
                ],
                "documentation": entry.documentation,
            }
            for entry in entries
        ],
    }
