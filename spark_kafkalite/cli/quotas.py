"""The part of ``kafkalite configs`` that is about quotas: of users, client ids and addresses.

Texts and ways to name them are those of Kafka's ``kafka-configs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from spark_kafkalite.cli.output import echo, print_json, said
from spark_kafkalite.errors import InvalidConfig

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.configs import ConfigChange
    from spark_kafkalite.client.admin.quotas import AnyName, EntityQuotas

Function = TypeVar("Function", bound=Callable[..., Any])
# What is named: names by type; None stands for the default, ANY for all.
Named = Mapping[str, "str | AnyName | None"]

# Kafka's words on the command line, and on the wire.
QUOTA_TYPES: Final = {"users": "user", "clients": "client-id", "ips": "ip"}
_SHOWN: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}


def quota_options(function: Function) -> Function:
    """Give a command the options that name users, clients and addresses; it gets them as ``named_quotas``."""

    @wraps(function)
    def with_named(*arguments: Any, **options: Any) -> Any:
        named: dict[str, str | None] = {}
        for option, kind in (("user", "user"), ("client", "client-id"), ("ip", "ip")):
            name, is_default = options.pop(option), options.pop(f"{option}_defaults")
            if name is not None and is_default:
                raise click.UsageError(f"--{option} and --{option}-defaults exclude each other")
            if name is not None or is_default:
                named[kind] = name
        return function(*arguments, named_quotas=named, **options)

    command: Any = with_named
    for option, what in (("ip", "address"), ("client", "client id"), ("user", "user")):
        article = "an" if what == "address" else "a"
        command = click.option(f"--{option}-defaults", is_flag=True, help=f"The default quotas of every {what}.")(
            command
        )
        command = click.option(f"--{option}", metavar="NAME", help=f"Quotas of {article} {what}.")(command)
    return command  # type: ignore[no-any-return]


def named_by_types(types: Sequence[str], names: Sequence[str], defaults: int) -> Named:
    """Return what ``--entity-type``, ``--entity-name`` and ``--entity-default`` name, in their order. Raises
    UsageError."""
    from spark_kafkalite.client.admin.quotas import ANY

    if len(set(types)) != len(types):
        raise click.UsageError("--entity-type: each type can be given once")
    if not set(types) <= QUOTA_TYPES.keys():
        raise click.UsageError("--entity-type: only users and clients go together")
    if not names and not defaults:
        return {QUOTA_TYPES[each]: ANY for each in types}
    if names and defaults:
        raise click.UsageError(
            "--entity-name and --entity-default together are not clear: give --user, --user-defaults, "
            "--client and --client-defaults"
        )
    if (len(names) or defaults) != len(types):
        raise click.UsageError("give one --entity-name, or one --entity-default, for each --entity-type")
    return {QUOTA_TYPES[each]: name for each, name in zip(types, names or (None,) * len(types), strict=True)}


def describe_quotas(admin: Admin, named: Named, *, as_json: bool) -> None:
    """Print the quotas of what is named."""
    described = admin.describe_client_quotas(named)
    described.sort(key=lambda each: [(kind, name is not None, name or "") for kind, name in each.entity.items()])
    if as_json:
        print_json([{"entity": dict(each.entity), "quotas": dict(each.quotas)} for each in described])
        return
    if not described:
        said("no such quota is set; quotas of users alone, of clients alone and of both are described separately")
    for each in described:
        values = ", ".join(f"{key}={value}" for key, value in sorted(each.quotas.items()))
        echo(f"Quota configs for {_text(each)} are {values}")


def _text(described: EntityQuotas) -> str:
    return ", ".join(
        f"the default {_SHOWN.get(kind, kind)}" if name is None else f"{_SHOWN.get(kind, kind)} '{name}'"
        for kind, name in described.entity.items()
    )


def alter_quotas(
    admin: Admin, named: Named, changes: Iterable[ConfigChange], *, validate_only: bool, as_json: bool
) -> None:
    """Set and remove quotas of one entity, and print that it was done."""
    entity: dict[str, str | None] = {}
    for kind, name in named.items():
        if name is not None and not isinstance(name, str):
            raise click.UsageError(f"alter the quotas of one {kind}, or the default: give a name, or --entity-default")
        entity[kind] = name
    quotas: dict[str, float] = {}
    removed: list[str] = []
    for change in changes:
        if change.name.upper().startswith("SCRAM-"):
            raise click.UsageError(f"{change.name}: passwords of users are set with kafkalite users")
        if change.operation == "delete":
            removed.append(change.name)
        elif change.operation == "set":
            quotas[change.name] = _number(change.name, change.value or "")
        else:
            raise click.UsageError(f"{change.name} is a number: set it with --add-config")
    if removed:
        _check_set(admin, entity, removed)
    admin.alter_client_quotas(entity, quotas, remove=removed, validate_only=validate_only)
    if as_json:
        print_json({"entity": entity, "altered": not validate_only})
    elif validate_only:
        echo("The quotas could be changed so.")
    else:
        echo(f"Completed updating config for {_whose(entity)}.")


def _check_set(admin: Admin, entity: Mapping[str, str | None], removed: Iterable[str]) -> None:
    """Raise InvalidConfig for quotas that are not set, as Kafka's tool does: the name is likely wrong."""
    present: set[str] = set()
    for each in admin.describe_client_quotas(entity):
        present.update(each.quotas)
    unset = [name for name in removed if name not in present]
    if unset:
        raise InvalidConfig(f"--delete-config: {', '.join(unset)}: not set for {_whose(entity)}")


def _whose(entity: Mapping[str, str | None]) -> str:
    return ", ".join(f"the default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items())


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"--add-config {name}={text}: not a number") from None
