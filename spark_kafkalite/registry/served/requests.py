"""What each request of ZooKeeper's protocol does on the embedded tree. No network, no threads.

:func:`parse` turns a request's type and body into a function that the registry's writer thread runs in its turn; that
function gives the answer's body, or raises the error whose number :func:`error_code` knows. Refused by name are the
node types that the tree has not (containers, nodes with a time to live) and changing the ensemble.

Answers were compared with those of ZooKeeper 3.9.5. What differs: null data comes back as empty; a refused write takes
no zxid; events carry zxid -1, as before 3.9; children are sorted. Source: org.apache.zookeeper.ZooDefs.OpCode,
FinalRequestProcessor, PrepRequestProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark_kafkalite.errors import FrameError, RegistryError
from spark_kafkalite.registry import store
from spark_kafkalite.registry.served.jute import (
    RequestReader,
    write_acl,
    write_buffer,
    write_int,
    write_multi_header,
    write_stat,
    write_string,
    write_strings,
)
from spark_kafkalite.registry.store import (
    Check,
    Delete,
    EventType,
    NodeError,
    Operation,
    SetData,
    Watcher,
    WatchEvent,
)
from spark_kafkalite.registry.tree.acl import AclEntry, CreateWithAcl, InvalidAcl, Permission, SetAcl
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.watches import WatchKind

PING: Final = 11
AUTH: Final = 100
CLOSE_SESSION: Final = -11
CREATE: Final = 1
DELETE: Final = 2
GET_DATA: Final = 4
SET_DATA: Final = 5
GET_CHILDREN: Final = 8
CHECK: Final = 13
CREATE_2: Final = 15
_CREATE_CONTAINER: Final = 19
_CREATE_TTL: Final = 21
_RESULT_ERROR: Final = -1

_EPHEMERAL: Final = 1
_SEQUENTIAL: Final = 2
# Container, and persistent or sequential with a time to live.
_REFUSED_FLAGS: Final = frozenset({4, 5, 6})


class Unimplemented(RegistryError):
    """The tree does not have this function."""


class UnknownRequest(Unimplemented):
    """No request has this number; the connection cannot be trusted any further."""


class NoWatcher(RegistryError):
    """The session has no such watch."""


class AnswerTooLarge(RegistryError):
    """The answer is too large for one frame."""


class ReconfigDisabled(RegistryError):
    """There is no ensemble to change."""


_CODES: Final[dict[type[BaseException], int]] = {
    store.NoNode: -101,
    store.NoAuth: -102,
    store.BadVersion: -103,
    store.NoChildrenForEphemerals: -108,
    store.NodeExists: -110,
    store.NotEmpty: -111,
    store.SessionExpired: -112,
    InvalidAcl: -114,
    store.BadArguments: -8,
    Unimplemented: -6,
    UnknownRequest: -6,
    FrameError: -5,
    store.ConnectionLoss: -4,
    NoWatcher: -121,
    ReconfigDisabled: -123,
    store.OutOfRoom: -125,
}
SYSTEM_ERROR: Final = -1
# In a multi: what comes after the refused operation.
_NOT_REACHED: Final = -2


def error_code(error: BaseException) -> int:
    """Return ZooKeeper's number of an error; what should not happen is SYSTEM_ERROR.

    ZooKeeper has no number for a full disk, because its server then ends. OutOfRoom is QUOTAEXCEEDED.
    """
    return _CODES.get(type(error), SYSTEM_ERROR)


@dataclass(frozen=True, slots=True)
class Requester:
    """The source of a request: a session, and the watcher that its watches call."""

    registry: EmbeddedRegistry
    session_id: int
    watcher: Watcher


class Answer(NamedTuple):
    """The body of an answer, and the events that leave right before it."""

    body: bytes
    events: Sequence[WatchEvent] = ()


Run = Callable[[Requester], Answer]


def parse(request_type: int, reader: RequestReader) -> Run:
    """Return what to run for a request. Raises FrameError for a malformed body, Unimplemented and the like."""
    parser = _PARSERS.get(request_type)
    if parser is None:
        raise UnknownRequest(f"request type {request_type} is not known")
    return parser(reader)


# Writes -------------------------------------------------------------------------------------------------------------


def _read_operation(kind: int, reader: RequestReader) -> Operation | SetAcl:
    path = reader.string()
    if kind in (CREATE, CREATE_2):
        data, entries, flags = reader.buffer() or b"", reader.acl(), reader.int32()
        return _create(path, data, entries, flags, with_stat=kind == CREATE_2)
    if kind in (_CREATE_CONTAINER, _CREATE_TTL):
        raise Unimplemented(f"cannot create {path}: the tree has neither containers nor nodes with a time to live")
    if kind == DELETE:
        return Delete(path, reader.int32())
    if kind == SET_DATA:
        return SetData(path, reader.buffer() or b"", reader.int32())
    if kind == CHECK:
        return Check(path, reader.int32())
    raise FrameError(f"operation {kind} cannot be part of a multi")


def _create(path: str, data: bytes, entries: list[AclEntry], flags: int, *, with_stat: bool) -> CreateWithAcl:
    if flags in _REFUSED_FLAGS:
        raise Unimplemented(f"cannot create {path}: the tree has neither containers nor nodes with a time to live")
    if flags & ~(_EPHEMERAL | _SEQUENTIAL):
        raise store.BadArguments(f"cannot create {path}: flags {flags} are not known", path)
    return CreateWithAcl(
        path,
        data,
        ephemeral=bool(flags & _EPHEMERAL),
        sequential=bool(flags & _SEQUENTIAL),
        acl=tuple(entries),
        with_stat=with_stat,
    )


def _write(kind: int) -> Callable[[RequestReader], Run]:
    def parser(reader: RequestReader) -> Run:
        operation = _read_operation(kind, reader)
        return lambda asked: Answer(_result(kind, asked.registry.apply([operation], asked.session_id)[0]))

    return parser


def _result(kind: int, result: Any) -> bytes:
    if kind == CREATE:
        return write_string(result)
    if kind == CREATE_2:
        path, stat = result
        return write_string(path) + write_stat(stat)
    return write_stat(result) if kind == SET_DATA else b""


def _set_acl(reader: RequestReader) -> Run:
    path, entries, version = reader.string(), reader.acl(), reader.int32()
    operation = SetAcl(path, tuple(entries), version)
    return lambda asked: Answer(write_stat(asked.registry.apply([operation], asked.session_id)[0]))


def _multi(reader: RequestReader) -> Run:
    kinds: list[int] = []
    operations: list[Operation | SetAcl] = []
    while True:
        kind, done = reader.multi_header()
        if done:
            break
        if len(operations) >= store.MAX_MULTI_OPERATIONS:
            raise store.BadArguments(f"a multi of more than {store.MAX_MULTI_OPERATIONS} operations", "/")
        operations.append(_read_operation(kind, reader))
        kinds.append(kind)

    def run(asked: Requester) -> Answer:
        parts = []
        try:
            results = asked.registry.apply(operations, asked.session_id)
        except NodeError as error:
            for index in range(len(kinds)):
                before = 0 if index < error.operation_index else _NOT_REACHED
                code = error_code(error) if index == error.operation_index else before
                parts.append(write_multi_header(_RESULT_ERROR, False, code) + write_int(code))
        else:
            for kind, result in zip(kinds, results, strict=True):
                parts.append(write_multi_header(kind, False, 0) + _result(kind, result))
        return Answer(b"".join((*parts, write_multi_header(_RESULT_ERROR, True, -1))))

    return run


# Reads --------------------------------------------------------------------------------------------------------------


# ZooKeeper's clients take 1 MiB (jute.maxbuffer); others take more, but no client should need this much at once.
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024


def _check_answer(size: int, what: str) -> None:
    if size > MAX_ANSWER_BYTES:
        raise AnswerTooLarge(f"{what} are {size} bytes or more; {MAX_ANSWER_BYTES} are the most in one answer")


def _exists(reader: RequestReader) -> Run:
    path, watch = reader.string(), reader.boolean()

    def run(asked: Requester) -> Answer:
        stat = asked.registry.tree.exists(path, asked.session_id, asked.watcher if watch else None)
        if stat is None:
            raise store.NoNode(f"registry node {path} does not exist", path)
        return Answer(write_stat(stat))

    return run


def _get_data(reader: RequestReader) -> Run:
    path, watch = reader.string(), reader.boolean()

    def run(asked: Requester) -> Answer:
        data, stat = asked.registry.tree.get(path, asked.session_id, asked.watcher if watch else None)
        return Answer(write_buffer(data) + write_stat(stat))

    return run


def _get_children(with_stat: bool) -> Callable[[RequestReader], Run]:
    def parser(reader: RequestReader) -> Run:
        path, watch = reader.string(), reader.boolean()

        def run(asked: Requester) -> Answer:
            tree = asked.registry.tree
            children = tree.children(path, asked.session_id, asked.watcher if watch else None)
            _check_answer(sum(map(len, children)) + 4 * len(children), f"the names of the children of {path}")
            names = write_strings(children)
            return Answer(names + write_stat(tree.nodes[path].stat()) if with_stat else names)

        return run

    return parser


def _multi_read(reader: RequestReader) -> Run:
    steps: list[tuple[int, Run]] = []
    while True:
        kind, done = reader.multi_header()
        if done:
            break
        if kind not in (GET_DATA, GET_CHILDREN):
            raise FrameError(f"operation {kind} cannot be part of a multi of reads")
        if len(steps) >= store.MAX_MULTI_OPERATIONS:
            raise store.BadArguments(f"a multi of more than {store.MAX_MULTI_OPERATIONS} operations", "/")
        steps.append((kind, parse(kind, reader)))

    def run(asked: Requester) -> Answer:
        parts = []
        size = 0
        for kind, step in steps:
            _check_answer(size, f"what {len(steps)} reads in one multi give")
            try:
                parts.append(write_multi_header(kind, False, 0) + step(asked).body)
                size += len(parts[-1])
            except NodeError as error:
                code = error_code(error)
                parts.append(write_multi_header(_RESULT_ERROR, False, code) + write_int(code))
        return Answer(b"".join((*parts, write_multi_header(_RESULT_ERROR, True, -1))))

    return run


def _get_acl(reader: RequestReader) -> Run:
    path = reader.string()

    def run(asked: Requester) -> Answer:
        acl, stat = asked.registry.tree.acl(path, asked.session_id)
        return Answer(write_acl(acl) + write_stat(stat))

    return run


def _sync(reader: RequestReader) -> Run:
    path = reader.string()
    return lambda _: Answer(write_string(path))


def _get_ephemerals(reader: RequestReader) -> Run:
    prefix = reader.optional_string() or "/"

    def run(asked: Requester) -> Answer:
        own = asked.registry.tree.sessions[asked.session_id]
        return Answer(write_strings(sorted(path for path in own if path.startswith(prefix))))

    return run


def _count_below(reader: RequestReader) -> Run:
    path = reader.string()
    return lambda asked: Answer(write_int(asked.registry.tree.count_below(path, asked.session_id)))


def _who_am_i(_: RequestReader) -> Run:
    def run(asked: Requester) -> Answer:
        own = sorted(asked.registry.tree.identities.get(asked.session_id, ()))
        # The user, not the hash of the password.
        pairs = b"".join(write_string(scheme) + write_string(name.partition(":")[0]) for scheme, name in own)
        return Answer(write_int(len(own)) + pairs)

    return run


def _reconfig(_: RequestReader) -> Run:
    raise ReconfigDisabled("this registry is one server; there is no ensemble to change")


# Watches ------------------------------------------------------------------------------------------------------------

# AddWatchMode
_ADD_MODES: Final = {0: WatchKind.PERSISTENT, 1: WatchKind.RECURSIVE}
# Watcher.WatcherType; "any" is all kinds
_WATCHER_TYPES: Final = {
    1: (WatchKind.CHILDREN,),
    2: (WatchKind.DATA,),
    3: tuple(WatchKind),
    4: (WatchKind.PERSISTENT,),
    5: (WatchKind.RECURSIVE,),
}


def _add_watch(reader: RequestReader) -> Run:
    path, mode = reader.string(), reader.int32()
    if mode not in _ADD_MODES:
        raise FrameError(f"watch mode {mode} is not known")

    def run(asked: Requester) -> Answer:
        store.check_path(path)
        asked.registry.tree.watches.add(_ADD_MODES[mode], path, asked.session_id, asked.watcher)
        return Answer(write_int(0))

    return run


def _end_watches(*, remove: bool) -> Callable[[RequestReader], Run]:
    def parser(reader: RequestReader) -> Run:
        path, watcher_type = reader.string(), reader.int32()
        if watcher_type not in _WATCHER_TYPES:
            raise FrameError(f"watcher type {watcher_type} is not known")

        def run(asked: Requester) -> Answer:
            watches = asked.registry.tree.watches
            kinds = [kind for kind in _WATCHER_TYPES[watcher_type] if watches.has(kind, path, asked.session_id)]
            if not kinds:
                raise NoWatcher(f"session {asked.session_id} has no such watch on {path}")
            if remove:
                for kind in kinds:
                    watches.remove(kind, path, asked.session_id)
            return Answer(b"")

        return run

    return parser


def _set_watches(*, also_persistent: bool) -> Callable[[RequestReader], Run]:
    """Watches of an earlier connection: one whose event was missed meanwhile fires at once, the others are left."""

    def parser(reader: RequestReader) -> Run:
        seen_zxid = reader.int64()
        lists = [reader.vector(RequestReader.string) for _ in range(5 if also_persistent else 3)]
        data, exist, children, persistent, recursive = (*lists, [], [])[:5]

        def run(asked: Requester) -> Answer:
            tree = asked.registry.tree
            events: list[WatchEvent] = []

            def left(kind: WatchKind, paths: list[str], missed: Callable[[str], EventType | None]) -> None:
                for path in paths:
                    node = tree.nodes.get(path)
                    if node is not None:
                        try:
                            tree.check_access(node, path, Permission.READ, asked.session_id)
                        except store.NoAuth:
                            continue
                    event = missed(path)
                    if event is None:
                        tree.watches.add(kind, path, asked.session_id, asked.watcher)
                    else:
                        events.append(WatchEvent(event, path))

            def data_event(path: str) -> EventType | None:
                if path not in tree.nodes:
                    return EventType.DELETED
                return EventType.DATA_CHANGED if tree.nodes[path].mzxid > seen_zxid else None

            def children_event(path: str) -> EventType | None:
                if path not in tree.nodes:
                    return EventType.DELETED
                return EventType.CHILDREN_CHANGED if tree.nodes[path].pzxid > seen_zxid else None

            left(WatchKind.DATA, data, data_event)
            left(WatchKind.DATA, exist, lambda path: EventType.CREATED if path in tree.nodes else None)
            left(WatchKind.CHILDREN, children, children_event)
            left(WatchKind.PERSISTENT, persistent, lambda _: None)
            left(WatchKind.RECURSIVE, recursive, lambda _: None)
            return Answer(b"", events)

        return run

    return parser


_PARSERS: Final[dict[int, Callable[[RequestReader], Run]]] = {
    CREATE: _write(CREATE),
    DELETE: _write(DELETE),
    3: _exists,
    GET_DATA: _get_data,
    SET_DATA: _write(SET_DATA),
    6: _get_acl,
    7: _set_acl,
    GET_CHILDREN: _get_children(with_stat=False),
    9: _sync,
    12: _get_children(with_stat=True),
    14: _multi,
    CREATE_2: _write(CREATE_2),
    16: _reconfig,
    17: _end_watches(remove=False),
    18: _end_watches(remove=True),
    _CREATE_CONTAINER: _write(_CREATE_CONTAINER),
    _CREATE_TTL: _write(_CREATE_TTL),
    22: _multi_read,
    101: _set_watches(also_persistent=False),
    103: _get_ephemerals,
    104: _count_below,
    105: _set_watches(also_persistent=True),
    106: _add_watch,
    107: _who_am_i,
}
