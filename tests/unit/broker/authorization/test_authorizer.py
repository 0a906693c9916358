"""What a session may do and remembers of it, super users, brokers, and the lines of the audit log."""

from __future__ import annotations

import logging

import pytest

from spark_kafkalite.acls import AccessControlEntry, Operation, PatternType, PermissionType, Resource, ResourceType
from spark_kafkalite.broker.authorization.acl_table import AclTable, AclVerdict
from spark_kafkalite.broker.authorization.authorizer import Authorizer, SessionRights
from spark_kafkalite.broker.authorization.authorizer_log import AuthorizerLog
from spark_kafkalite.broker.event_log import AUDIT_LOGGER
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.wire.api_keys import ApiKey

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE = Operation.READ, Operation.WRITE
T = Resource(TOPIC, PatternType.LITERAL, "t")


def entry(principal: str = "User:alice", operation: Operation = READ, host: str = "*") -> AccessControlEntry:
    return AccessControlEntry(principal, host, operation, PermissionType.ALLOW)


def session_of(authorizer: Authorizer, user: str | None = "alice", host: str = "10.0.0.1") -> Session:
    session = Session(f"{host}:1234", Listener("P", "h", 1, "h", 1))
    session.rights = SessionRights(authorizer, session)
    if user is not None:
        session.principal = f"User:{user}"
    return session


def may(session: Session, operation: Operation = READ, name: str | None = "t") -> bool:
    assert session.rights is not None
    return session.rights.may(ApiKey.FETCH, operation, TOPIC, name)


def test_a_session_obeys_a_change_at_once() -> None:
    authorizer = Authorizer()
    session = session_of(authorizer)
    assert not may(session)
    authorizer.put(T, [entry()])
    assert may(session)
    authorizer.put(T, [])
    assert not may(session)


def test_a_session_asks_the_table_once_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    authorizer = Authorizer()
    authorizer.put(T, [entry()])
    session, asked = session_of(authorizer), []
    decide = AclTable.decide
    monkeypatch.setattr(AclTable, "decide", lambda *arguments: asked.append(arguments) or decide(*arguments))
    assert all(may(session) for _ in range(10))
    assert not any(may(session, WRITE) for _ in range(10))
    assert len(asked) == 2


def test_what_a_session_remembers_is_bounded() -> None:
    authorizer = Authorizer()
    session = session_of(authorizer)
    for number in range(10_000):
        may(session, name=f"t{number}")
    assert session.rights is not None
    assert len(session.rights._known) <= 4096


def test_names_that_a_client_makes_up_stay_no_longer_than_the_request() -> None:
    authorizer = Authorizer()
    authorizer.put(Resource(TOPIC, PatternType.PREFIXED, "mine"), [entry()])
    session, log = session_of(authorizer), authorizer.audit
    for number in range(20):
        assert may(session, name=f"mine{number}" + "x" * 32_000)
        assert not may(session, name=f"other{number}" + "x" * 32_000)
    assert session.rights is not None
    kept = [name for _, _, name in (*session.rights._known, *session.rights._allowed, *log._counts)]
    assert all(name is None or len(name) <= 255 for name in kept)


def test_a_client_that_authenticates_as_another_has_the_rights_of_that_one() -> None:
    authorizer = Authorizer()
    authorizer.put(T, [entry()])
    session = session_of(authorizer)
    assert may(session)
    session.principal = "User:bob"
    assert not may(session)


def test_super_users_may_do_everything_whatever_is_denied() -> None:
    authorizer = Authorizer({"User:admin", "User:CN=ops,O=Example"})
    authorizer.put(T, [AccessControlEntry("User:*", "*", Operation.ALL, PermissionType.DENY)])
    assert may(session_of(authorizer, "admin")) and may(session_of(authorizer, "CN=ops,O=Example"), name=None)
    assert not may(session_of(authorizer, "Admin"))


def test_a_broker_is_known_by_what_it_has_proved_and_not_by_a_name() -> None:
    authorizer = Authorizer()
    user = session_of(authorizer, "broker-1")
    assert not may(user)
    broker = session_of(authorizer)
    broker.prove_broker(1, b"proof")
    assert may(broker) and may(broker, WRITE, None)
    assert broker.rights is not None and broker.rights.is_unlimited


def test_a_host_may_be_named_in_either_form() -> None:
    authorizer = Authorizer()
    authorizer.put(T, [entry(host="0:0:0:0:0:0:0:1")])
    assert may(session_of(authorizer, host="[::1]"))
    assert not may(session_of(authorizer))


def test_everyone_may_use_what_has_no_acl_if_the_operator_wants_it() -> None:
    authorizer = Authorizer(allows_everyone=True)
    session = session_of(authorizer, None)
    assert may(session) and may(session, WRITE, None)
    authorizer.put(T, [entry("User:bob")])
    assert not may(session)
    assert may(session, name="u")


def test_operations_are_bits_of_what_is_allowed() -> None:
    authorizer = Authorizer()
    authorizer.put(T, [entry(operation=Operation.ALTER_CONFIGS)])
    session = session_of(authorizer)
    assert session.rights is not None
    expected = 1 << Operation.ALTER_CONFIGS | 1 << Operation.DESCRIBE_CONFIGS
    assert session.rights.operations_on(TOPIC, "t") == expected
    assert session.rights.operations_on(CLUSTER) == 0


def test_listeners_hear_of_changes_only() -> None:
    authorizer, heard = Authorizer(), []
    authorizer.add_listener(lambda: heard.append(authorizer.generation))
    authorizer.put(T, [entry()])
    authorizer.put(T, [entry()])
    assert heard == [1]


class Lines:
    """An audit log, and the clock that it reads."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 0.0
        self.audit = AuthorizerLog(lambda: self.now_s)
        self._caplog = caplog

    def write(self, name: str = "t", *, principal: str = "User:a", allowed: bool = False) -> None:
        verdict = AclVerdict(allowed, None, is_open=not allowed)
        self.audit.write(principal, "10.0.0.1", ApiKey.PRODUCE, WRITE, TOPIC, name, verdict)

    def __call__(self) -> list[str]:
        return self._caplog.messages


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(logging.getLogger(AUDIT_LOGGER), "propagate", True)
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    return Lines(caplog)


def test_a_denial_is_a_line_in_the_words_of_kafka(lines: Lines) -> None:
    lines.write()
    assert lines() == [
        "Principal = User:a is Denied operation = WRITE from host = 10.0.0.1 on resource = Topic:LITERAL:t for request "
        "= Produce based on allow.everyone.if.no.acl.found=false, because the resource has no ACL"
    ]


def test_denials_are_bounded_for_each_resource_and_in_all(lines: Lines) -> None:
    for _ in range(100):
        lines.write()
    assert len(lines()) == 3
    for number in range(5000):
        lines.write(f"t{number}", principal=f"User:{number % 20}")
    assert len(lines()) < 2100
    before = len(lines())
    lines.now_s = 10.0
    lines.write()
    assert lines()[before].endswith("more denials were not written)")
    assert len(lines()) == before + 1


def test_a_principal_with_many_denials_keeps_no_other_out_of_the_log(lines: Lines) -> None:
    for number in range(5000):
        lines.write(f"made-up-{number}")
    assert len(lines()) == 200
    lines.write("secret", principal="User:b")
    assert "User:b" in lines()[200]
    lines.now_s = 10.0
    lines.write("one more")
    assert "(4800 more denials were not written)" in lines()[201]


def test_what_is_allowed_is_written_at_debug_only(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    lines.write(allowed=True)
    assert lines() == []
    caplog.set_level(logging.DEBUG, AUDIT_LOGGER)
    lines.write(allowed=True)
    assert "is Allowed" in lines()[0]


def test_names_of_clients_cannot_forge_lines(lines: Lines) -> None:
    lines.write("a\nPrincipal = User:admin is Allowed" + "x" * 1000, principal="User:b\x1b[2J")
    (line,) = lines()
    assert "\n" not in line and "\x1b" not in line
    assert len(line) < 700
