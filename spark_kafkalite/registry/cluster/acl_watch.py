"""Keeps a broker's ACLs current through Kafka's notices (``notice_watch``), which every change leaves
(``acl_changes``).

The ACLs outlive the session: while the registry is unavailable, the last known ones hold. A node that cannot be read
denies everything to all but super users (``acl_nodes.UNREADABLE``), whatever it held before. So a broker that has just
started decides as the others do.

Lives in one event loop.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Iterable
from typing import Final

from spark_kafkalite.acls import AccessControlEntry, PatternType, Resource, ResourceType
from spark_kafkalite.redaction import shown_name
from spark_kafkalite.registry import acl_changes, acl_nodes
from spark_kafkalite.registry.cluster.notice_watch import NoticeWatch, each
from spark_kafkalite.registry.guarded_nodes import make_private
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import NoNode, Store, answer

_LOG = logging.getLogger(__name__)

# Nodes that are read at the same time.
_AT_ONCE: Final = 200

# By which option a command names a resource; ``kafkalite acls`` has not all types.
_OPTIONS: Final = {
    ResourceType.TOPIC: "kafkalite acls delete --topic",
    ResourceType.GROUP: "kafkalite acls delete --group",
    ResourceType.CLUSTER: "kafkalite acls delete --cluster",
    ResourceType.TRANSACTIONAL_ID: "kafkalite acls delete --transactional-id",
    ResourceType.DELEGATION_TOKEN: "kafka-acls --remove --delegation-token",
    ResourceType.USER: "kafka-acls --remove --user-principal",
}

# Takes what the ACLs of a resource say, nothing where it has none.
Put = Callable[[Resource, Collection[AccessControlEntry]], None]


class AclFollower:
    """Where the ACLs go: ``put`` takes those of one resource, ``known`` gives the resources that have some, with
    them."""

    def __init__(self, put: Put, known: Callable[[], Iterable[tuple[Resource, acl_changes.Entries]]]) -> None:
        self.put = put
        self.known = known
        # As NoticeWatch takes them.
        self.roots = dict.fromkeys((acl_nodes.LITERAL_ACLS, acl_nodes.EXTENDED_ACLS), 0)
        # Those whose nodes cannot be read, with the reason that is in the log.
        self._unreadable: dict[Resource, str] = {}

    async def follow(self, store: Store) -> AclWatch:
        """Read all ACLs in a new session, and follow their changes until the result is closed. Raises RegistryError."""
        watch = AclWatch(store, self)
        try:
            await watch.start()
        except BaseException:
            watch.close()
            raise
        return watch

    def take(self, resource: Resource, entries: Collection[AccessControlEntry]) -> None:
        """Take up the ACLs in a node, or none where there is no node."""
        self.put(resource, entries)
        if self._unreadable.pop(resource, None) is not None:
            _LOG.info("the ACLs of %s can be read again, and hold", _what(resource))

    def seal(self, resource: Resource, malformed: MalformedNode) -> None:
        """Deny everything on a resource, because its node cannot be read. It is logged once for each content."""
        self.put(resource, acl_nodes.UNREADABLE)
        if self._unreadable.get(resource) != str(malformed):
            self._unreadable[resource] = str(malformed)
            _LOG.error(
                "only super users may use %s: %s. Delete its ACLs (%s), and add those that are needed again",
                _what(resource),
                malformed,
                _deletion(resource),
            )


def _what(resource: Resource) -> str:
    kind = resource.resource_type.name.lower().replace("_", " ")
    names = "names that begin with " if resource.pattern_type is PatternType.PREFIXED else ""
    return f"{kind} {names}{shown_name(resource.name)!r}"


def _deletion(resource: Resource) -> str:
    """Return the command that deletes the ACLs of a resource, for the log."""
    name = "" if resource.resource_type is ResourceType.CLUSTER else f" {shlex.quote(resource.name)}"
    pattern = " --resource-pattern-type prefixed" if resource.pattern_type is PatternType.PREFIXED else ""
    return f"{_OPTIONS[resource.resource_type]}{name}{pattern}"


class AclWatch(NoticeWatch):
    """Follows the notices of one session."""

    def __init__(self, store: Store, acls: AclFollower) -> None:
        super().__init__(store, acl_nodes.CHANGES.values(), "all ACLs", acls.roots)
        self._acls = acls

    async def make_nodes(self) -> None:
        await acl_changes.make_base_nodes(self._store)
        await make_private(self._store, acl_nodes.ROOT_PATHS)

    def is_notice(self, name: str) -> bool:
        return acl_nodes.is_notice(name)

    async def read_named(self, parent: str, notices: list[str]) -> None:
        named = await each(self._resource_of, (f"{parent}/{name}" for name in notices), _AT_ONCE)
        await each(self._read, dict.fromkeys(resource for resource in named if resource is not None), _AT_ONCE)

    async def _resource_of(self, path: str) -> Resource | None:
        """Return the resource that a notice names, None where that is not known; then everything is read again."""
        try:
            data, _ = await answer(self._store.get(path))
            return acl_nodes.decode_notice(path, data)
        except (NoNode, MalformedNode) as error:
            self.not_readable(error)
            return None

    async def write_again(self, root: str) -> int:
        known = {
            each: entries for each, entries in self._acls.known() if acl_nodes.acl_path(each).startswith(f"{root}/")
        }

        async def write(resource: Resource) -> None:
            await acl_changes.alter_acls(self._store, resource, lambda old: old or known[resource])

        await each(write, known, _AT_ONCE)
        return len(known)

    async def read_all(self) -> None:
        kinds = [(pattern, kind) for pattern in PatternType for kind in ResourceType]
        found = [resource for some in await each(self._resources, kinds, _AT_ONCE) for resource in some]
        await each(self._read, found, _AT_ONCE)
        for gone in {resource for resource, _ in self._acls.known()}.difference(found):
            self._acls.take(gone, ())

    async def _resources(self, kind: tuple[PatternType, ResourceType]) -> list[Resource]:
        pattern_type, resource_type = kind
        try:
            names = await answer(self._store.children(acl_nodes.type_path(pattern_type, resource_type)))
        except NoNode:
            return []
        return [Resource(resource_type, pattern_type, name) for name in names]

    async def _read(self, resource: Resource) -> None:
        path = acl_nodes.acl_path(resource)
        try:
            data, _ = await answer(self._store.get(path))
            self._acls.take(resource, acl_nodes.decode_acls(path, data))
        except NoNode:
            self._acls.take(resource, ())
        except MalformedNode as malformed:
            self._acls.seal(resource, malformed)
