"""Bounds and times that the pages name are those of the code and of the other pages."""

from __future__ import annotations

import re

from spark_kafkalite.net.descriptors import Descriptors
from spark_kafkalite.registry import store
from spark_kafkalite.registry.served import connection, requests, server, sessions
from spark_kafkalite.wire.codec import MAX_REQUEST_ELEMENTS
from spark_kafkalite.wire.primitives import MAX_REQUEST_BYTES_FIELD
from tests.paths import PROJECT

MIB = 1024 * 1024


def page(name: str) -> str:
    """The text of a page in one line."""
    return " ".join((PROJECT / name).read_text().split())


def test_the_bounds_of_the_registry() -> None:
    text = page("docs/registry.md")
    for count, what in (
        (server.MAX_CONNECTIONS, "connections"),
        (server.MAX_SESSIONS, "sessions"),
        (server.MAX_WATCHES_OF_SESSION, "watches of a session"),
    ):
        assert f"| {count:,} | {what}" in text
    assert f"; {server.MAX_WATCHES:,} together." in text
    assert f"| {store.MAX_DATA_BYTES:,} bytes | data of a node" in text
    assert f"| {requests.MAX_ANSWER_BYTES // MIB} MiB | an answer" in text
    assert f"at most {connection.MAX_IN_FLIGHT:,} unanswered requests" in text
    assert f"or {connection.MAX_IN_FLIGHT_BYTES // MIB} MiB of them" in text
    assert f"more than {connection.MAX_UNSENT_BYTES // MIB} MiB of events" in text
    assert f"timeouts of 0.5 to {sessions.MAX_TIMEOUT_MS // 1000} s" in text
    assert f"ends the session after {sessions.AUTHENTICATE_S:.0f} s" in text


def test_the_bounds_of_requests() -> None:
    text = page("docs/protocol.md")
    assert f"at most {MAX_REQUEST_ELEMENTS:,} array elements" in text
    assert f"has at most {MAX_REQUEST_BYTES_FIELD // MIB} MiB. What is larger" in text


def test_the_numbers_of_open_files() -> None:
    text = page("docs/operations.md")
    match = re.search(r"([\d,]+) partitions and ([\d,]+) connections need `ulimit -n (\d+)`", text)
    assert match is not None
    partitions, connections, limit = (int(number.replace(",", "")) for number in match.groups())
    assert Descriptors(limit).most_partitions >= partitions
    assert Descriptors(limit).most_connections(partitions) >= connections
    assert f"a limit of 256 holds {Descriptors(256).most_partitions} partitions" in text


def test_the_time_of_all_tests_is_the_same_everywhere() -> None:
    assert "`make test` all tests in a quarter of an hour." in page("README.md")
    assert re.search(r"(?m)^test: .* a quarter of an hour on two quiet cores$", (PROJECT / "Makefile").read_text())
    bounds = "15 minutes on two quiet cores, 30 next to a process that takes both, set-up not counted."
    assert f"lint, in one pool | {bounds}" in page("CONTRIBUTING.md")
