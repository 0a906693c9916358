"""``kafkalite acls``: which principals may do what. Options are those of Kafka's ``kafka-acls``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from spark_kafkalite.acls import (
    ANY,
    CLUSTER_NAME,
    MATCH,
    WILDCARD,
    AccessControlEntry,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    Resource,
    ResourceType,
    problem_of,
)
from spark_kafkalite.addresses import plain_address
from spark_kafkalite.cli.options import ActionGroup, bootstrap_option, client_settings, json_option, reachable_admin
from spark_kafkalite.cli.output import print_json, print_table, said
from spark_kafkalite.errors import SecurityDisabled
from spark_kafkalite.model import MAX_TOPIC_NAME_LENGTH, topic_name_problem

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin

Function = TypeVar("Function", bound=Callable[..., Any])

_PATTERNS: Final = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED, "any": ANY, "match": MATCH}
_OPERATIONS: Final = {each.title.lower(): each for each in Operation}
# Rights of roles, as kafka-acls gives them.
_PRODUCER: Final = {ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)}
_TRANSACTIONS: Final = (Operation.WRITE, Operation.DESCRIBE)
_CONSUMER: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}

_EPILOG = """\b
Examples:
  kafkalite acls add --allow-principal User:alice --operation Read --operation Describe --topic orders
  kafkalite acls add --allow-principal User:etl --producer --topic raw. --resource-pattern-type prefixed
  kafkalite acls add --allow-principal User:etl --consumer --topic orders --group etl
  kafkalite acls add --deny-principal User:mallory --operation All --topic '*'
  kafkalite acls list --topic orders --resource-pattern-type match
  kafkalite acls delete --allow-principal User:alice --operation Read --topic orders
"""


@click.group("acls", cls=ActionGroup, epilog=_EPILOG)
def command() -> None:
    """Add, list and delete ACLs: which principals may do what.

    ACLs count on brokers with authorizer.class.name. An operation on a resource is allowed when some ACL allows it, and
    none denies it. READ, WRITE, DELETE and ALTER include DESCRIBE; ALTER_CONFIGS includes DESCRIBE_CONFIGS.
    """


def _resource_options(function: Function) -> Function:
    for option in (
        click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(list(_PATTERNS), case_sensitive=False),
            default="literal",
            show_default=True,
            help="literal: the name itself, '*' for all. prefixed: names that begin so. To list or delete also any, "
            "and match: all that apply to the name.",
        ),
        click.option("--transactional-id", "transactional_ids", multiple=True, metavar="ID", help="Repeatable."),
        click.option("--cluster", "on_cluster", is_flag=True, help="The cluster itself."),
        click.option("--group", "groups", multiple=True, metavar="GROUP", help="Repeatable."),
        click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Repeatable."),
    ):
        function = option(function)
    return bootstrap_option(function)


def _entry_options(function: Function) -> Function:
    for option in (
        click.option("--deny-host", "deny_hosts", multiple=True, metavar="IP-ADDRESS", help="Default: all."),
        click.option("--allow-host", "allow_hosts", multiple=True, metavar="IP-ADDRESS", help="Default: all."),
        click.option("--deny-principal", "denied", multiple=True, metavar="TYPE:NAME", help="Repeatable."),
        click.option(
            "--allow-principal",
            "allowed",
            multiple=True,
            metavar="TYPE:NAME",
            help="Such as User:alice; User:* for everyone. Repeatable.",
        ),
        click.option(
            "--operation",
            "operations",
            multiple=True,
            metavar="OPERATION",
            callback=lambda _, __, names: tuple(map(_operation, names)),
            help="Read, Write, Create, Delete, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, "
            "IdempotentWrite or All (the default). Repeatable.",
        ),
    ):
        function = option(function)
    return function


def _operation(name: str) -> Operation:
    found = _OPERATIONS.get(name.replace("_", "").lower())
    if found is None:
        raise click.BadParameter(f"{name!r} is none of {', '.join(each.title for each in Operation)}")
    return found


class _ChosenAcls:
    """The options of one call."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        """Give a connection. Raises SecurityDisabled, with what to set, if the broker has no authorizer."""
        options = self._options
        try:
            with reachable_admin(
                client_settings(options["bootstrap_server"], options["command_config"], options["command_properties"])
            ) as admin:
                yield admin
        except SecurityDisabled:
            raise SecurityDisabled(
                "the broker obeys no ACLs; set authorizer.class.name and super.users at all brokers, and restart them"
            ) from None

    def resources(self) -> list[tuple[ResourceType, str]]:
        """Return the resources that are named."""
        options = self._options
        found = [(ResourceType.TOPIC, name) for name in options["topics"]]
        found += [(ResourceType.GROUP, name) for name in options["groups"]]
        found += [(ResourceType.TRANSACTIONAL_ID, name) for name in options["transactional_ids"]]
        if options["on_cluster"]:
            found.append((ResourceType.CLUSTER, CLUSTER_NAME))
        return found

    def principals(self) -> Iterator[tuple[str, str, PermissionType]]:
        """Give principals with their hosts, and what they are to be."""
        options = self._options
        for permission, principals, hosts in (
            (PermissionType.ALLOW, options["allowed"], options["allow_hosts"]),
            (PermissionType.DENY, options["denied"], options["deny_hosts"]),
        ):
            if hosts and not principals:
                what = permission.name.lower()
                raise click.UsageError(f"--{what}-host is given without --{what}-principal")
            for principal, host in product(principals, hosts or (WILDCARD,)):
                yield principal, host, permission

    def operations_on(self, resource_type: ResourceType, *, filters: bool) -> Sequence[Operation | int]:
        """Return the operations on a type of resource."""
        options = self._options
        chosen: list[Operation | int] = []
        if options["producer"]:
            chosen += _PRODUCER.get(resource_type, ())
            if resource_type is ResourceType.TRANSACTIONAL_ID:
                chosen += _TRANSACTIONS
        if options["consumer"]:
            chosen += _CONSUMER.get(resource_type, ())
        if options["producer"] or options["consumer"]:
            if options["operations"]:
                raise click.UsageError("--producer and --consumer have their operations; leave --operation out")
            return list(dict.fromkeys(chosen))
        return options["operations"] or ((ANY,) if filters else (Operation.ALL,))

    def acls(self) -> list[Acl]:
        """Return the ACLs that are described. Raises UsageError for what cannot be one."""
        pattern = _PATTERNS[self._options["pattern"]]
        if not isinstance(pattern, PatternType):
            raise click.UsageError("--resource-pattern-type any and match are for list and delete; give another")
        resources, principals = self.resources(), list(self.principals())
        if not resources:
            raise click.UsageError("name what it is about: --topic, --group, --cluster or --transactional-id")
        if not principals:
            raise click.UsageError("name the principals: --allow-principal or --deny-principal")
        found = []
        for resource_type, name in resources:
            # The cluster has one name, and no prefixes.
            resource_pattern = PatternType.LITERAL if resource_type is ResourceType.CLUSTER else pattern
            for operation in self.operations_on(resource_type, filters=False):
                for principal, host, permission in principals:
                    entry = AccessControlEntry(principal, host, Operation(operation), permission)
                    acl = Acl(Resource(resource_type, resource_pattern, name), entry)
                    problem = problem_of(acl) or _topic_problem(acl.resource) or _host_problem(host)
                    if problem is not None:
                        raise click.UsageError(problem)
                    found.append(acl)
        if not found:
            raise click.UsageError("--producer is for topics and transactional ids, --consumer for topics and groups")
        return found

    def filters(self) -> list[AclFilter]:
        """Return the filters that are described."""
        pattern = int(_PATTERNS[self._options["pattern"]])
        resources: list[tuple[int, str | None]] = [*self.resources()]
        if not resources:
            resources, pattern = [(ANY, None)], ANY
        entries: list[tuple[str | None, str | None, int]] = [*self.principals()]
        hosts_given = bool(self._options["allow_hosts"] or self._options["deny_hosts"])
        if not hosts_given:
            entries = [(principal, None, permission) for principal, _, permission in entries]
        return [
            AclFilter(resource_type, name, pattern, principal, host, int(operation), permission)
            for resource_type, name in resources
            for operation in self._filtered_operations(resource_type)
            for principal, host, permission in entries or [(None, None, ANY)]
        ]

    def _filtered_operations(self, resource_type: int) -> Sequence[Operation | int]:
        if resource_type == ANY:
            return self._options["operations"] or (ANY,)
        return self.operations_on(ResourceType(resource_type), filters=True)


def _topic_problem(resource: Resource) -> str | None:
    """Return why no topic can have this name or prefix: an ACL of it would allow or deny nothing."""
    resource_type, pattern, name = resource
    if resource_type is not ResourceType.TOPIC or (pattern is PatternType.LITERAL and name == WILDCARD):
        return None
    problem = topic_name_problem(f"{name}-" if pattern is PatternType.PREFIXED else name)
    if problem is None:
        return None
    return (
        f"no topic can have the name or prefix {name[:MAX_TOPIC_NAME_LENGTH]!r}: give --topic '*' for all topics, or a "
        "prefix without '*' and --resource-pattern-type prefixed"
    )


def _host_problem(host: str) -> str | None:
    """Return why no client can have this host. Brokers compare it as text with the address of the client."""
    if host == WILDCARD:
        return None
    try:
        usual = plain_address(host)
    except ValueError:
        return f"the host {host!r} is neither an IP address nor '*'; ACLs have no ranges and no names of hosts"
    return None if usual == host else f"write the host {host!r} as {usual!r}, as brokers do"


def _role_options(function: Function) -> Function:
    for option in (
        click.option("--consumer", is_flag=True, help="Read and Describe on topics, Read on groups."),
        click.option(
            "--producer",
            is_flag=True,
            help="Write, Describe and Create on topics; Write and Describe on transactions.",
        ),
    ):
        function = option(function)
    return function


@command.command("add")
@_resource_options
@_entry_options
@_role_options
def add(**options: Any) -> None:
    """Add ACLs. Those that exist already stay."""
    chosen = _ChosenAcls(options)
    acls = chosen.acls()
    with chosen.admin() as admin:
        admin.create_acls(acls)
    print_table(_HEADINGS, _rows(acls))
    said(f"in force: {_acls(acls)}")


@command.command("list")
@_resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only those of this principal.")
@json_option
def list_acls(principal: str | None, as_json: bool, **options: Any) -> None:
    """List ACLs: all of them, or those of a resource or a principal."""
    nothing: dict[str, Any] = dict.fromkeys(("allowed", "denied", "allow_hosts", "deny_hosts", "operations"), ())
    chosen = _ChosenAcls({**nothing, "producer": False, "consumer": False, **options})
    with chosen.admin() as admin:
        found: set[Acl] = set()
        for each in chosen.filters():
            found.update(admin.describe_acls(each._replace(principal=principal)))
    if as_json:
        print_json([dict(zip(map(str.lower, _HEADINGS), row, strict=True)) for row in _rows(sorted(found))])
        return
    print_table(_HEADINGS, _rows(sorted(found)))


@command.command("delete")
@_resource_options
@_entry_options
@_role_options
@click.option("--force", is_flag=True, help="Do not ask.")
def delete(force: bool, **options: Any) -> None:
    """Delete ACLs: those that all given options describe."""
    chosen = _ChosenAcls(options)
    filters = chosen.filters()
    if not chosen.resources() and not list(chosen.principals()):
        raise click.UsageError("name what to delete: a resource (--topic, --group, ...), or a principal")
    with chosen.admin() as admin:
        meant = _meant(admin, filters)
        if not meant:
            said("there is no such ACL")
            return
        print_table(_HEADINGS, _rows(meant))
        if not force:
            click.confirm(f"Delete {_acls(meant)}?", abort=True, err=True)
        gone = admin.delete_acls(filters)
    said(f"deleted {_acls(gone)}")


def _acls(acls: Sequence[Acl]) -> str:
    return f"{len(acls)} ACL{'s' * (len(acls) != 1)}"


def _meant(admin: Admin, filters: Sequence[AclFilter]) -> list[Acl]:
    return sorted({acl for each in filters for acl in admin.describe_acls(each)})


# Kafka's name of it.
command.add_command(delete, "remove")

_HEADINGS: Final = ("PERMISSION", "PRINCIPAL", "OPERATION", "RESOURCE", "PATTERN", "NAME", "HOST")


def _rows(acls: Sequence[Acl]) -> list[tuple[str, ...]]:
    return [
        (
            entry.permission.title,
            entry.principal,
            entry.operation.title,
            resource.resource_type.title,
            resource.pattern_type.title,
            resource.name,
            entry.host,
        )
        for resource, entry in acls
    ]
