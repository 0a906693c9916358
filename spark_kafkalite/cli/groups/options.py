"""What the commands about groups share: options, how their values are read, and the way to both offset stores."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from spark_kafkalite.cli.offsets.texts import parse_partitions
from spark_kafkalite.cli.options import bootstrap_option, client_settings, json_option, reachable_admin
from spark_kafkalite.client.offset_stores.store import ZOOKEEPER
from spark_kafkalite.errors import BrokerUnreachable, GroupIdNotFound, RegistryError
from spark_kafkalite.model import CommittedOffsets, TopicPartition, topic_name_problem

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.offset_stores.coordinator import CoordinatorOffsets
    from spark_kafkalite.client.offset_stores.registry import RegistryOffsets
    from spark_kafkalite.client.offset_stores.store import GroupStore
    from spark_kafkalite.client.registry_link import RegistryLink

Function = TypeVar("Function", bound=Callable[..., Any])

_ZOOKEEPER_WITHIN_S: Final = 5.0
_ANSWER_WITHIN_S: Final = 15.0
_CONNECT = re.compile(r"[^\s,/:]+:[0-9]{1,5}(,[^\s,/:]+:[0-9]{1,5})*(/\S*)?|\[[0-9a-fA-F:.]+\]:[0-9]{1,5}(/\S*)?")

zookeeper_option = click.option(
    "--zookeeper",
    metavar="HOST:PORT[,...][/CHROOT]",
    help="Groups of registry consumers, in this ZooKeeper (or on this host 'kafkalite registry' or a broker's "
    "registry.listener). Brokers are those that it names, unless --bootstrap-server does.",
)
group_option = click.option("--group", "groups", multiple=True, metavar="NAME", help="The group. Repeatable.")
all_groups_option = click.option("--all-groups", is_flag=True, help="All groups there are.")
topic_option = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[:N,N-N]",
    help="A topic, or some of its partitions: 'events', 'events:0,4-7'. Repeatable.",
)

all_topics_option = click.option("--all-topics", is_flag=True, help="Every partition that the group has an offset for.")


def place_options(function: Function) -> Function:
    """Add the options for the places of groups, and --json. The function gets ``places`` for them while it runs."""

    @wraps(function)
    def with_places(
        *,
        zookeeper: str | None,
        bootstrap_server: str,
        command_config: str | None,
        command_properties: tuple[str, ...],
        timeout_ms: int | None,
        **others: Any,
    ) -> Any:
        with ExitStack() as stack:
            where = Places(bootstrap_server, command_config, command_properties, zookeeper, timeout_ms, stack)
            return function(places=where, **others)

    timeout = click.option(
        "--timeout",
        "timeout_ms",
        type=click.IntRange(min=1),
        metavar="MS",
        help="How long to wait for brokers and for rebalances to end.",
    )
    return zookeeper_option(bootstrap_option(timeout(json_option(cast("Function", with_places)))))


@dataclass
class Places:
    """The brokers and, where --zookeeper is given, the registry; each is connected to when it is first needed.

    What needs client modules is imported then, too: they cost every start of a command to load.
    """

    bootstrap_server: str
    command_config: str | None
    command_properties: tuple[str, ...]
    zookeeper: str | None
    timeout_ms: int | None
    # What it closes at the end.
    stack: ExitStack
    _admin: Admin | None = None
    _registry: RegistryLink | None = None

    @property
    def admin(self) -> Admin:
        """The administrator of the brokers. Raises BrokerUnreachable."""
        if self._admin is None:
            bootstrap_server = self.bootstrap_server
            if self.zookeeper is not None and not self.brokers_given:
                bootstrap_server = ",".join(self._broker_addresses())
                if not bootstrap_server:
                    raise BrokerUnreachable(
                        f"the registry at {self.zookeeper} names no live broker; give --bootstrap-server"
                    )
            settings = client_settings(bootstrap_server, self.command_config, self.command_properties)
            if self.timeout_ms is not None:
                settings["default.api.timeout.ms"] = str(self.timeout_ms)
            self._admin = self.stack.enter_context(reachable_admin(settings))
        return self._admin

    @property
    def brokers_given(self) -> bool:
        """Whether brokers are named, so that a command that can do without them asks them."""
        return click.get_current_context().get_parameter_source("bootstrap_server") is not ParameterSource.DEFAULT

    def groups(self) -> list[str]:
        """Return the ids of all groups, in order, of the place that the command is about."""
        if self.zookeeper is None:
            return [each.group_id for each in self.admin.list_groups()]
        from spark_kafkalite.client.offset_stores.registry import groups_in

        return groups_in(self.registry)

    def store(self, group: str) -> GroupStore:
        """Return a group in the place that the command is about."""
        return self.at_coordinator(group) if self.zookeeper is None else self.in_registry(group)

    def at_coordinator(self, group: str) -> CoordinatorOffsets:
        """Return a group at its coordinator."""
        from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
        from spark_kafkalite.client.offset_stores.coordinator import CoordinatorOffsets

        return CoordinatorOffsets(CoordinatorLink(self.admin.cluster, group))

    def in_registry(self, group: str) -> RegistryOffsets:
        """Return a group in the registry. Raises as :attr:`registry`."""
        from spark_kafkalite.client.offset_stores.registry import RegistryOffsets

        return RegistryOffsets(self.registry, group)

    def _broker_addresses(self) -> list[str]:
        from spark_kafkalite.client.registry_consumer.cluster import live_brokers

        return [f"{each.host}:{each.port}" for each in live_brokers(self.registry).values()]

    @property
    def registry(self) -> RegistryLink:
        """The registry. Raises UsageError without --zookeeper, RegistryError when nothing answers there."""
        if self._registry is None:
            if self.zookeeper is None:
                raise click.UsageError("this needs --zookeeper HOST:PORT, the registry that the group's offsets lie in")
            from spark_kafkalite.client.registry_link import RegistryLink
            from spark_kafkalite.registry.store import ConnectionLoss
            from spark_kafkalite.registry.zookeeper import open_zookeeper

            checked_connect(self.zookeeper)
            # Not a line for every failed attempt: ours comes when they are given up.
            log = logging.getLogger("spark_kafkalite.registry.zookeeper")
            level = log.level
            log.setLevel(logging.CRITICAL)
            try:
                store = open_zookeeper(self.zookeeper, connect_timeout_s=_ZOOKEEPER_WITHIN_S, make_chroot=False)
            except ConnectionLoss as error:
                raise RegistryError(
                    f"--zookeeper {self.zookeeper}: nothing there answers in ZooKeeper's protocol within "
                    f"{_ZOOKEEPER_WITHIN_S:g} s; give the address of the ensemble or, on this host, of 'kafkalite "
                    "registry' or of a broker's registry.listener"
                ) from error
            finally:
                log.setLevel(level)
            self.stack.callback(store.close)
            self._registry = RegistryLink(answer_within_s=_ANSWER_WITHIN_S)
            self._registry.replace(store)
        return self._registry


def checked_connect(text: str) -> str:
    """Return the address of a registry. Raises UsageError for what is none."""
    if not _CONNECT.fullmatch(text):
        raise click.UsageError(f"--zookeeper {text}: not of the form HOST:PORT[,HOST:PORT][/CHROOT]")
    return text


def chosen_groups(groups: Iterable[str], all_groups: bool) -> list[str] | None:
    """Return the groups that were named, None for all. Raises UsageError for both or neither."""
    names = list(dict.fromkeys(groups))
    if all_groups and names:
        raise click.UsageError("--group and --all-groups exclude each other")
    if not names and not all_groups:
        raise click.UsageError("name the group with --group NAME, or give --all-groups")
    if "" in names:
        raise click.UsageError("--group '': a group's name is not empty")
    return None if all_groups else names


def no_such_group(group: str, place: str) -> GroupIdNotFound:
    """Return the error for a group that is not there."""
    if place == ZOOKEEPER:
        return GroupIdNotFound(
            f"there is no group {group!r} in the registry; 'kafkalite groups list --zookeeper HOST:PORT' shows those "
            "that there are"
        )
    return GroupIdNotFound(f"there is no group {group!r}; 'kafkalite groups list' shows those that there are")


def parse_topics(texts: Iterable[str]) -> dict[str, set[int] | None]:
    """Return the partitions (None: all) of each topic in 'events' or 'events:0,4-7'. Raises UsageError."""
    wanted: dict[str, set[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.strip().partition(":")
        if problem := topic_name_problem(topic):
            raise click.UsageError(f"--topic {text}: {problem}")
        try:
            partitions = parse_partitions(numbers, "--topic") if colon else None
        except click.UsageError:
            raise click.UsageError(f"--topic {text}: not of the form TOPIC:0,2 or TOPIC:0-3") from None
        known = wanted.get(topic, set())
        wanted[topic] = None if known is None or partitions is None else known | partitions
    return wanted


def is_wanted(topic_partition: TopicPartition, topics: Mapping[str, set[int] | None]) -> bool:
    """Whether a partition is among those of :func:`parse_topics`; all of them are for no topics."""
    topic, partition = topic_partition
    return not topics or (topic in topics and partition in (topics[topic] or {partition}))


def offsets_of(store: GroupStore, topics: Mapping[str, set[int] | None]) -> CommittedOffsets:
    """Return a group's offsets of these topics and partitions, all of them for no topics."""
    return {each: found for each, found in store.read().items() if is_wanted(each, topics)}


def chosen_topics(topics: tuple[str, ...], all_topics: bool) -> dict[str, set[int] | None]:
    """Return what was named with --topic, nothing for --all-topics. Raises UsageError for both or neither."""
    if bool(topics) == all_topics:
        raise click.UsageError("name topics with --topic NAME[:N,N], or give --all-topics")
    return parse_topics(topics)
