"""``kafkalite users``: the users that authenticate by SCRAM, through a broker or in the registry itself."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from spark_kafkalite.cli.options import ActionGroup, bootstrap_option, client_settings, json_option, reachable_admin
from spark_kafkalite.cli.output import print_json, print_table, said, warn
from spark_kafkalite.cli.registry_files import read_digest
from spark_kafkalite.errors import ConfigError, RegistryError, ResourceNotFound
from spark_kafkalite.registry.store import Store
from spark_kafkalite.security.scram import MIN_ITERATIONS, SCRAM_HASHES, new_salt, scram_credential

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.security.scram import ScramCredential

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT: Final = "SCRAM-SHA-512"
_ANSWER_WITHIN_S: Final = 10.0
_LONGEST_PASSWORD: Final = 4096

_EPILOG = """\b
Examples:
  kafkalite users add alice --registry-dir ./kafkalite-data/_registry
  kafkalite users add alice --registry zk1:2181/kafkalite --digest-file zk.secret
  kafkalite users add bob --password-file bob.secret --command-config admin.properties
  kafkalite users list --command-config admin.properties
  kafkalite users delete bob --mechanism SCRAM-SHA-256 --command-config admin.properties
"""


@click.group("users", cls=ActionGroup, epilog=_EPILOG)
def command() -> None:
    """Add, list and delete the users that authenticate by SCRAM.

    Users are asked of a broker (--bootstrap-server). The first administrator is written into the registry itself:
    with --registry into a running ZooKeeper or 'kafkalite registry', with --registry-dir into the embedded registry
    of a broker that is stopped.
    """


class _Place(NamedTuple):
    """Where the users are: the options of a call."""

    registry: str | None
    registry_dir: str | None
    digest_file: str | None
    bootstrap_server: str
    command_config: str | None
    command_properties: tuple[str, ...]

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store | Admin]:
        """Give a session with the registry that the options name, or else a connection to a broker."""
        registry, directory = self.registry, self.registry_dir
        if registry is not None and directory is not None:
            raise click.UsageError("--registry and --registry-dir exclude each other: a broker has one registry")
        if self.digest_file is not None and registry is None:
            raise click.UsageError("--digest-file is for --registry")
        if registry is None and directory is None:
            settings = client_settings(self.bootstrap_server, self.command_config, self.command_properties)
            with reachable_admin(settings) as admin:
                yield admin
            return
        store = _embedded(Path(directory)) if directory is not None else _zookeeper(str(registry), self.digest_file)
        try:
            yield store
        finally:
            store.close()


def _place_options(function: Function) -> Function:
    """Add the options for the place of the users, which a command gets as ``place``."""

    @wraps(function)
    def with_place(*arguments: Any, **options: Any) -> Any:
        place = _Place(**{name: options.pop(name) for name in _Place._fields})
        return function(*arguments, place=place, **options)

    command: Any = with_place
    for option in (
        click.option("--digest-file", metavar="FILE", help="For --registry: USER:PASSWORD, as in zookeeper.digest."),
        click.option(
            "--registry-dir",
            "registry_dir",
            metavar="DIR",
            help="The registry of a stopped broker: its registry.dir, or _registry in its first log directory.",
        ),
        click.option(
            "--registry",
            "registry",
            metavar="HOST:PORT[,...][/CHROOT]",
            help="A running registry, as in zookeeper.connect.",
        ),
    ):
        command = option(command)
    return bootstrap_option(command)  # type: ignore[no-any-return]


@command.command("add")
@click.argument("name")
@click.option("--mechanism", type=click.Choice(list(SCRAM_HASHES)), default=_DEFAULT, show_default=True)
@click.option(
    "--iterations",
    type=int,
    default=MIN_ITERATIONS,
    show_default=True,
    help="More of them make a stolen credential harder to attack. 4096 to 16384.",
)
@click.option(
    "--password-file", metavar="FILE", help="File with the password. When not set, it is asked for, or read from stdin."
)
@_place_options
def add(
    name: str,
    mechanism: str,
    iterations: int,
    password_file: str | None,
    place: _Place,
) -> None:
    """Add a user, or set a new password. Connections that are open stay so."""
    from spark_kafkalite.client.admin.users import check_credential

    password = _password(name, password_file)
    check_credential(mechanism, password, iterations)
    with place.opened() as users:
        if isinstance(users, Store):
            credential = scram_credential(mechanism, password, new_salt(), iterations)
            _alter(users, name, {mechanism: credential})
        else:
            users.set_password(name, password, mechanism=mechanism, iterations=iterations)
    said(f"user {name!r} can authenticate by {mechanism}")


@command.command("list")
@_place_options
@json_option
def list_users(
    place: _Place,
    as_json: bool,
) -> None:
    """List the users, and by which mechanisms they authenticate. Users of PLAIN are in the brokers' files."""
    from spark_kafkalite.client.admin.users import users_text

    with place.opened() as users:
        found: Mapping[str, Mapping[str, int]]
        found = asyncio.run(_read(users)) if isinstance(users, Store) else users.describe_users()
    if as_json:
        print_json(found)
        return
    print_table(("USER", "MECHANISM", "ITERATIONS"), users_text(found))


@command.command("delete")
@click.argument("name")
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(SCRAM_HASHES)),
    multiple=True,
    help="Only the credential for this mechanism. Repeatable.",
)
@_place_options
def delete(
    name: str,
    mechanisms: tuple[str, ...],
    place: _Place,
) -> None:
    """Delete a user's credentials, and end its connections. Its ACLs and quotas stay."""
    with place.opened() as users:
        if isinstance(users, Store):
            found = mechanisms or tuple(asyncio.run(_read(users)).get(name, ()))
            if not found:
                raise ResourceNotFound(f"there is no user {name!r} with a SCRAM credential")
            _alter(users, name, dict.fromkeys(found))
        else:
            users.delete_user(name, mechanisms or None)
    said(f"deleted the credentials of user {name!r}")
    said("its connections end within a second; those to Apache Kafka stay until they authenticate again")
    principal = shlex.quote(f"User:{name}")
    said(
        "ACLs and quotas stay, and count for a later user of this name; to delete the ACLs: "
        f"kafkalite acls delete --allow-principal {principal} --deny-principal {principal}"
    )


def _password(name: str, path: str | None) -> str:
    """Return the password, from a file, a terminal or stdin. Raises UsageError."""
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"--password-file {path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise click.UsageError(f"--password-file {path}: not UTF-8 text") from None
    elif sys.stdin.isatty():
        text = str(click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    else:
        text = sys.stdin.readline(_LONGEST_PASSWORD + 1)
    password = text.rstrip("\r\n")
    if not password:
        raise click.UsageError("no password: type it when asked, send it to stdin, or give --password-file")
    if len(password) > _LONGEST_PASSWORD or "\n" in password:
        raise click.UsageError(f"the password has more than one line, or more than {_LONGEST_PASSWORD} characters")
    return password


def _embedded(directory: Path) -> Store:
    from spark_kafkalite.registry.tree.embedded_store import open_embedded

    if not directory.exists():
        if not directory.absolute().parent.is_dir():
            raise ConfigError(
                f"--registry-dir {directory}: there is no such directory, and none that it could be made in; give the "
                "broker's registry.dir, or _registry in its first log directory"
            )
        warn(f"--registry-dir {directory}: there was no registry; a new one is made, for a broker that starts with it")
    return open_embedded(directory)


def _zookeeper(connect: str, digest_file: str | None) -> Store:
    from spark_kafkalite.registry.zookeeper import open_zookeeper
    from spark_kafkalite.registry.zookeeper_address import ZooKeeperAddress

    values = {
        "zookeeper.connect": connect,
        "zookeeper.digest": read_digest(digest_file),
        "zookeeper.set.acl": False,
        "zookeeper.session.timeout.ms": 18_000,
        "zookeeper.connection.timeout.ms": int(_ANSWER_WITHIN_S * 1000),
    }
    address = ZooKeeperAddress.of(values)
    assert address is not None
    if address.auth is None:
        warn(
            "without --digest-file all clients of the registry can read what is stored, and can use it to guess "
            "passwords; set zookeeper.digest at the brokers, too"
        )
    return open_zookeeper(address.connect, connect_timeout_s=_ANSWER_WITHIN_S, auth=address.auth)


def _alter(store: Store, user: str, changes: Mapping[str, ScramCredential | None]) -> None:
    from functools import partial

    from spark_kafkalite.broker.authentication.scram_users import with_credentials
    from spark_kafkalite.registry import entity_nodes
    from spark_kafkalite.registry.config_nodes import alter_entity
    from spark_kafkalite.security.sasl_server import user_problem

    problem = user_problem(user)
    if problem is not None:
        raise ConfigError(problem)

    async def alter() -> None:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            await alter_entity(store, entity_nodes.user_entity(user), partial(with_credentials, changes=changes))

    try:
        asyncio.run(alter())
    except TimeoutError:
        raise RegistryError(f"the registry did not answer within {_ANSWER_WITHIN_S:.0f} s") from None


async def _read(store: Store) -> dict[str, dict[str, int]]:
    """Return what ``Admin.describe_users`` does, from the registry."""
    from spark_kafkalite.registry import entity_nodes
    from spark_kafkalite.registry.node_json import MalformedNode
    from spark_kafkalite.registry.store import NoNode, answer
    from spark_kafkalite.security.scram import read_credential

    found: dict[str, dict[str, int]] = {}
    async with asyncio.timeout(_ANSWER_WITHIN_S):
        try:
            names = await answer(store.children(entity_nodes.entity_node(entity_nodes.USERS)))
        except NoNode:
            return {}
        for name in names:
            user = entity_nodes.user_of_entity(f"{entity_nodes.USERS}/{name}")
            path = entity_nodes.entity_node(f"{entity_nodes.USERS}/{name}")
            try:
                data, _ = await answer(store.get(path))
                config, _ = entity_nodes.decode_settings(path, data)
            except NoNode:
                continue
            except MalformedNode as malformed:
                warn(f"{malformed}: no such user can authenticate; set its password again (kafkalite users add)")
                continue
            credentials = {mechanism: config[mechanism] for mechanism in SCRAM_HASHES if mechanism in config}
            if user is not None and credentials:
                found[user] = {}
                for mechanism, text in credentials.items():
                    with contextlib.suppress(ValueError):
                        found[user][mechanism] = read_credential(mechanism, text).iterations
    return dict(sorted(found.items()))
