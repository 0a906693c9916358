"""Decisions by ACLs: against a reference that is read at a glance, and the cases that people ask about."""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.acls import (
    EVERYONE,
    OPERATIONS,
    AccessControlEntry,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    Resource,
    ResourceType,
)
from spark_kafkalite.broker.authorization.acl_table import AclTable, host_text
from tests.seeds import SOAK

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
CASES = 1_000_000 if SOAK else 10_000
# Decisions about one set of ACLs.
_OF_ONE_SET = 50


def acl(
    name: str,
    operation: Operation = READ,
    permission: PermissionType = ALLOW,
    *,
    principal: str = "User:a",
    host: str = "*",
    pattern: PatternType = LITERAL,
    kind: ResourceType = TOPIC,
) -> Acl:
    return Acl(Resource(kind, pattern, name), AccessControlEntry(principal, host, operation, permission))


def reference(acls: list[Acl], principal: str, host: str, operation: Operation, name: str) -> bool | None:
    """What Kafka's documentation says about a topic: True, False, or None where there is no ACL on it."""
    implying = {operation, ALL}
    if operation is DESCRIBE:
        implying |= {READ, WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        implying |= {Operation.ALTER_CONFIGS}
    found = False
    allowed = False
    for (kind, pattern, pattern_name), entry in acls:
        if kind is not TOPIC:
            continue
        if pattern is PREFIXED and not name.startswith(pattern_name):
            continue
        if pattern is LITERAL and pattern_name not in (name, "*"):
            continue
        found = True
        if entry.principal not in (principal, "User:*") or entry.host not in (host, "*"):
            continue
        if entry.permission is DENY and entry.operation in (operation, ALL):
            return False
        if entry.permission is ALLOW and entry.operation in implying:
            allowed = True
    return allowed if found else None


NAMES = ("a", "ab", "abc", "b", "ba", "*", "a*")
HOSTS = ("10.0.0.1", "10.0.0.2", "::1")
PRINCIPALS = ("User:a", "User:b")


def random_acl(chance: random.Random) -> Acl:
    kind = TOPIC if chance.random() < 0.9 else GROUP
    return acl(
        chance.choice(NAMES),
        chance.choice((*OPERATIONS[kind], ALL)),
        ALLOW if chance.random() < 0.7 else DENY,
        principal=chance.choice((*PRINCIPALS, EVERYONE)),
        host=chance.choice((*HOSTS, "*", "*")),
        pattern=PREFIXED if chance.random() < 0.4 else LITERAL,
        kind=kind,
    )


def test_decisions_are_those_of_the_reference_however_the_acls_came_and_went() -> None:
    chance = random.Random(CASES)
    table, present = AclTable(), dict.fromkeys(random_acl(chance) for _ in range(5))
    for each in present:
        table.put(each.resource, [other.entry for other in present if other.resource == each.resource])
    seen: set[bool | None] = set()
    for _ in range(CASES // _OF_ONE_SET):
        # One comes or goes, and the table follows; sometimes few are left.
        changed = chance.choice(list(present)) if present and chance.random() < 0.5 else random_acl(chance)
        if changed in present and chance.random() < 0.9:
            del present[changed]
        else:
            present[changed] = None
        table.put(changed.resource, [each.entry for each in present if each.resource == changed.resource])
        acls = list(present)
        fresh = AclTable(acls)
        for _ in range(_OF_ONE_SET):
            principal, host, name = chance.choice(PRINCIPALS), chance.choice(HOSTS), chance.choice(NAMES)
            operation = chance.choice(OPERATIONS[TOPIC])
            verdict = table.decide(principal, host, operation, TOPIC, name)
            expected = reference(acls, principal, host, operation, name)
            assert (None if verdict.is_open else verdict.allowed) == expected, (acls, principal, host, operation, name)
            assert fresh.decide(principal, host, operation, TOPIC, name).allowed == verdict.allowed
            seen.add(expected)
            if verdict.by is not None:
                assert (verdict.by.entry.permission is ALLOW) == verdict.allowed
    assert seen == {True, False, None}


def decided(acls: list[Acl], operation: Operation, name: str, principal: str = "User:a", host: str = "1.1.1.1") -> bool:
    return AclTable(acls).decide(principal, host, operation, TOPIC, name).allowed


def test_a_deny_wins_over_every_allow() -> None:
    acls = [acl("orders", ALL), acl("ord", READ, DENY, pattern=PREFIXED), acl("*", READ)]
    assert not decided(acls, READ, "orders")
    assert decided(acls, WRITE, "orders")
    assert decided(acls, READ, "other")


def test_a_deny_of_describe_does_not_deny_read_and_reading_implies_describing() -> None:
    acls = [acl("t", READ), acl("t", DESCRIBE, DENY, principal="User:b"), acl("t", READ, principal="User:b")]
    assert decided(acls, DESCRIBE, "t")
    assert decided(acls, READ, "t", "User:b")
    assert not decided(acls, DESCRIBE, "t", "User:b")
    assert not decided(acls, WRITE, "t")


def test_one_acl_for_anybody_ends_the_openness_of_its_resource() -> None:
    table = AclTable([acl("t", READ, principal="User:b")])
    assert table.decide("User:a", "h", READ, TOPIC, "t") == (False, None, False)
    assert table.decide("User:a", "h", READ, TOPIC, "u").is_open
    assert table.decide("User:a", "h", READ, GROUP, "t").is_open


@pytest.mark.parametrize(
    ("written", "seen"), [("0:0:0:0:0:0:0:1", "::1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("FE80::1", "fe80::1")]
)
def test_a_host_is_an_address_however_it_is_written(written: str, seen: str) -> None:
    assert host_text(written) == seen
    assert decided([acl("t", READ, host=written)], READ, "t", host=host_text(seen))
    assert not decided([acl("t", READ, host=written)], READ, "t", host="10.9.9.9")


def test_hosts_have_no_ranges_and_no_names() -> None:
    assert not decided([acl("t", READ, host="1.1.1.0/24")], READ, "t")


def any_allowed(*acls: Acl) -> bool | None:
    verdict = AclTable(acls).decide_any("User:a", "h", WRITE, TOPIC)
    return None if verdict.is_open else verdict.allowed


def test_some_topic_is_writable_unless_denies_cover_what_is_allowed() -> None:
    assert any_allowed() is None
    assert any_allowed(acl("t", WRITE)) is True
    assert any_allowed(acl("t", ALL), acl("t", WRITE, DENY)) is None
    assert any_allowed(acl("t", WRITE), acl("u", WRITE, DENY)) is True
    assert any_allowed(acl("tab", WRITE, pattern=PREFIXED), acl("ta", ALL, DENY, pattern=PREFIXED)) is None
    assert any_allowed(acl("ta", WRITE, pattern=PREFIXED), acl("tab", ALL, DENY, pattern=PREFIXED)) is True
    assert any_allowed(acl("ta", WRITE, pattern=PREFIXED), acl("ta", WRITE, DENY)) is True
    assert any_allowed(acl("*", WRITE), acl("t", ALL, DENY, pattern=PREFIXED)) is True
    assert any_allowed(acl("*", WRITE), acl("*", WRITE, DENY)) is False
    assert any_allowed(acl("t", READ)) is None


def test_what_is_taken_away_leaves_nothing() -> None:
    table = AclTable([acl("ab", READ, pattern=PREFIXED), acl("cd", READ, pattern=PREFIXED)])
    assert table.put(Resource(TOPIC, PREFIXED, "ab"), ())
    assert not table.put(Resource(TOPIC, PREFIXED, "ab"), ())
    assert [resource.name for resource, _ in table.resources()] == ["cd"]
    assert table.decide("User:a", "h", READ, TOPIC, "abc").is_open
    assert table.decide("User:a", "h", READ, TOPIC, "cde").allowed
