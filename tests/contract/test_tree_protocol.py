"""The embedded tree's answers beside those of ZooKeeper, request by request and byte by byte where bytes can agree."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafkalite.registry.served.jute import (
    RequestReader,
    write_buffer,
    write_int,
    write_long,
    write_string,
    write_strings,
)
from tests.contract.protocol_client import ProtocolClient

CREATE, DELETE, EXISTS, GET, SET, GET_ACL, SET_ACL, CHILDREN, SYNC = 1, 2, 3, 4, 5, 6, 7, 8, 9
PING, CHILDREN_2, MULTI, CREATE_2, RECONFIG, CHECK_WATCHES, REMOVE_WATCHES = 11, 12, 14, 15, 16, 17, 18
CREATE_CONTAINER, CREATE_TTL, MULTI_READ, AUTH, SET_WATCHES, EPHEMERALS, COUNT, SET_WATCHES_2 = (
    19, 21, 22, 100, 101, 103, 104, 105,
)  # fmt: skip
ADD_WATCH, WHO_AM_I, CHECK = 106, 107, 13
OPEN = write_int(1) + write_int(31) + write_string("world") + write_string("anyone")
YES, NO = b"\1", b"\0"


def acl(*entries: tuple[int, str, str]) -> bytes:
    parts = (write_int(bits) + write_string(scheme) + write_string(name) for bits, scheme, name in entries)
    return b"".join((write_int(len(entries)), *parts))


def create(path: str, data: bytes = b"", flags: int = 0, entries: bytes = OPEN) -> bytes:
    return write_string(path) + write_buffer(data) + entries + write_int(flags)


def step(kind: int, body: bytes) -> bytes:
    return write_int(kind) + NO + write_int(-1) + body


END = write_int(-1) + YES + write_int(-1)


def shown_stat(raw: bytes) -> tuple[Any, ...]:
    """What of a stat two servers can agree on: which of the zxids are the same, and all counters."""
    czxid, mzxid, _, _, version, cversion, aversion, owner, length, children, pzxid = struct.unpack("!qqqqiiiqiiq", raw)
    return mzxid == czxid, pzxid == czxid, version, cversion, aversion, owner != 0, length, children


def as_is(reader: RequestReader) -> Any:
    return reader.remaining


def stat(reader: RequestReader) -> Any:
    return shown_stat(reader._take(68))


def names(reader: RequestReader) -> Any:
    return sorted(reader.vector(RequestReader.string))


def multi(reader: RequestReader) -> Any:
    results: list[Any] = []
    while True:
        kind, done = reader.multi_header()
        if done:
            return results
        results.append((kind, SHOWN.get(kind, as_is)(reader) if kind != -1 else reader.int32()))


SHOWN: dict[int, Callable[[RequestReader], Any]] = {
    CREATE: RequestReader.string,
    CREATE_2: lambda reader: (reader.string(), stat(reader)),
    DELETE: lambda _: None,
    CHECK: lambda _: None,
    EXISTS: stat,
    GET: lambda reader: (reader.buffer(), stat(reader)),
    SET: stat,
    GET_ACL: lambda reader: (reader.acl(), stat(reader)),
    SET_ACL: stat,
    CHILDREN: names,
    CHILDREN_2: lambda reader: (names(reader), stat(reader)),
    SYNC: RequestReader.string,
    MULTI: multi,
    MULTI_READ: multi,
    EPHEMERALS: names,
    COUNT: RequestReader.int32,
    ADD_WATCH: RequestReader.int32,
}


def conversation(root: str) -> list[tuple[int, bytes]]:
    """Requests in order; each says what it is by its type."""
    a, b, e = f"{root}/a", f"{root}/b", f"{root}/e"
    reader_only = acl((1, "world", "anyone"), (31, "auth", ""))
    return [
        (CREATE, create(root)),
        (CREATE, create(root)),
        (CREATE, create(a, b"one")),
        (CREATE_2, create(b, b"two")),
        (CREATE, create(f"{root}/x/y")),
        (CREATE, create(f"{root}/s-", flags=2)),
        (CREATE_2, create(f"{root}/s-", flags=3)),
        (CREATE, create(f"{root}/", flags=2)),
        (CREATE, create(e, b"", 1)),
        (CREATE, create(f"{e}/child")),
        (CREATE, create("relative")),
        (CREATE, create("")),
        (CREATE, create(f"{root}/.")),
        (CREATE, create(f"{root}/c", entries=acl())),
        (CREATE, create(f"{root}/c", entries=acl((31, "nobody", "x")))),
        (CREATE, create(f"{root}/c", entries=acl((31, "auth", "")))),
        (CREATE, create(f"{root}/c", entries=acl((31, "digest", "no-colon")))),
        (EXISTS, write_string(a) + NO),
        (EXISTS, write_string(f"{root}/missing") + YES),
        (GET, write_string(a) + YES),
        (GET, write_string(f"{root}/missing") + YES),
        (SET, write_string(a) + write_buffer(b"changed") + write_int(0)),
        (SET, write_string(a) + write_buffer(b"changed") + write_int(0)),
        (SET, write_string(a) + write_int(-1) + write_int(-1)),
        (SET, write_string(f"{root}/missing") + write_buffer(b"") + write_int(-1)),
        (CHILDREN, write_string(root) + YES),
        (CHILDREN_2, write_string(root) + NO),
        (CHILDREN, write_string(f"{root}/missing") + NO),
        (DELETE, write_string(root) + write_int(-1)),
        (DELETE, write_string(b) + write_int(7)),
        (DELETE, write_string(b) + write_int(0)),
        (DELETE, write_string(b) + write_int(-1)),
        (CREATE, create(f"{root}/missing")),
        (SYNC, write_string(root)),
        (EPHEMERALS, write_string("/")),
        (EPHEMERALS, write_string(e)),
        (EPHEMERALS, write_string("/none")),
        (COUNT, write_string(root)),
        (COUNT, write_string(f"{root}/none")),
        (MULTI, step(CREATE, create(b)) + step(SET, write_string(b) + write_buffer(b"x") + write_int(0))
            + step(CHECK, write_string(a) + write_int(2)) + step(CREATE_2, create(f"{b}/c"))
            + step(DELETE, write_string(f"{b}/c") + write_int(-1)) + END),
        (MULTI, step(SET, write_string(b) + write_buffer(b"y") + write_int(-1))
            + step(CHECK, write_string(a) + write_int(9)) + step(CREATE, create(f"{root}/z")) + END),
        (MULTI, step(DELETE, write_string(f"{root}/none") + write_int(-1)) + END),
        (MULTI, END),
        (GET, write_string(b) + NO),
        (MULTI_READ, step(GET, write_string(b) + NO) + step(CHILDREN, write_string(root) + NO)
            + step(GET, write_string(f"{root}/none") + NO) + END),
        (GET_ACL, write_string(a)),
        (SET_ACL, write_string(a) + reader_only + write_int(0)),
        (AUTH, write_int(0) + write_string("digest") + write_buffer(b"user:secret")),
        (SET_ACL, write_string(a) + reader_only + write_int(5)),
        (SET_ACL, write_string(a) + reader_only + write_int(0)),
        (GET_ACL, write_string(a)),
        (SET, write_string(a) + write_buffer(b"mine") + write_int(-1)),
        (ADD_WATCH, write_string(root) + write_int(1)),
        (ADD_WATCH, write_string(b) + write_int(0)),
        (SET, write_string(b) + write_buffer(b"seen") + write_int(-1)),
        (SET, write_string(b) + write_buffer(b"seen") + write_int(-1)),
        (CREATE, create(f"{b}/c/d")),
        (CREATE, create(f"{b}/c")),
        (DELETE, write_string(f"{b}/c") + write_int(-1)),
        (CHECK_WATCHES, write_string(b) + write_int(4)),
        (REMOVE_WATCHES, write_string(b) + write_int(4)),
        (REMOVE_WATCHES, write_string(b) + write_int(4)),
        (REMOVE_WATCHES, write_string(root) + write_int(3)),
        (SET, write_string(b) + write_buffer(b"unseen") + write_int(-1)),
        (SET_WATCHES, write_long(2**60) + write_strings([a, f"{root}/none"]) + write_strings([b, f"{root}/new"])
            + write_strings([root])),
        (SET_WATCHES_2, write_long(0) + write_strings([b]) + write_strings([]) + write_strings([root])
            + write_strings([e]) + write_strings([])),
        (CREATE, create(f"{root}/new")),
        (SET, write_string(e) + write_buffer(b"1") + write_int(-1)),
        (RECONFIG, write_int(-1) + write_int(-1) + write_int(-1) + write_long(-1)),
        (DELETE, write_string(e) + write_int(-1)),
    ]  # fmt: skip


def held(address: str, root: str) -> list[tuple[Any, ...]]:
    """Hold the conversation and return what came: of each request its error and answer, and the events before it."""
    came = []
    with ProtocolClient(address) as client:
        for number, (kind, body) in enumerate(conversation(root)):
            answer = client.ask(kind, body, -4 if kind == AUTH else None)
            events, client.events = sorted(client.events), []
            shown = SHOWN.get(kind, as_is)(RequestReader(answer.body)) if not answer.error else len(answer.body)
            if kind in (MULTI, MULTI_READ) and answer.error:
                shown = None
            came.append((number, kind, answer.error, shown, events))
    return came


@pytest.mark.zookeeper
def test_a_conversation_goes_as_with_zookeeper(served: str, request: pytest.FixtureRequest) -> None:
    root = f"/t-{uuid.uuid4().hex}"
    real = held(request.getfixturevalue("zookeeper").connect, root)
    ours = held(served, root)
    differences = [(theirs, mine) for theirs, mine in zip(real, ours, strict=True) if theirs != mine]
    assert differences == []
