from __future__ import annotations

import pytest

from spark_kafkalite.registry.store import BadVersion, Create, Delete, NoAuth, NodeError, SetData
from spark_kafkalite.registry.tree.acl import (
    OPEN_ACL,
    AclEntry,
    CreateWithAcl,
    InvalidAcl,
    Permission,
    SetAcl,
    allows,
    checked,
    digest_identity,
    from_text,
    masked,
    to_text,
)
from spark_kafkalite.registry.tree.tree import Tree

USER = digest_identity("user:secret")
OTHER = digest_identity("other:secret")


def test_a_digest_is_zookeepers() -> None:
    # As DigestAuthenticationProvider.generateDigest prints it.
    assert digest_identity("super:test") == ("digest", "super:D/InIHSb7yEEbrWz8b9l71RjZJU=")


def test_who_is_allowed() -> None:
    acl = (AclEntry(Permission.READ, "world", "anyone"), AclEntry(Permission.ALL, *USER))
    assert allows(acl, Permission.READ, [])
    assert not allows(acl, Permission.WRITE, [OTHER])
    assert allows(acl, Permission.WRITE, [OTHER, USER])
    assert allows(OPEN_ACL, Permission.ADMIN, [])


def test_auth_stands_for_whoever_asks() -> None:
    entry = AclEntry(Permission.ALL, "auth", "")
    assert checked([entry, entry], [USER], "/a") == (AclEntry(Permission.ALL, *USER),)
    with pytest.raises(InvalidAcl, match="authenticated"):
        checked([entry], [], "/a")


@pytest.mark.parametrize("entry", [("ip", "127.0.0.1"), ("world", "everyone"), ("digest", "user"), ("", "")])
def test_what_cannot_be_named(entry: tuple[str, str]) -> None:
    with pytest.raises(InvalidAcl):
        checked([AclEntry(31, *entry)], [], "/a")


def test_an_empty_list_is_refused_and_the_open_one_is_recognised() -> None:
    with pytest.raises(InvalidAcl, match="empty"):
        checked([], [], "/a")
    assert checked([AclEntry(31, "world", "anyone")], [], "/a") is OPEN_ACL


def test_texts_and_masks() -> None:
    acl = (AclEntry(1, "world", "anyone"), AclEntry(31, *USER))
    assert from_text(to_text(acl)) == acl
    assert from_text(to_text(OPEN_ACL)) is OPEN_ACL
    assert masked(acl) == (AclEntry(1, "world", "anyone"), AclEntry(31, "digest", "user:x"))


def served_tree() -> Tree:
    """Session 1 has proved to be the user, session 2 nothing; session 3 is of this process."""
    tree = Tree()
    tree.open_session(1, {USER})
    tree.open_session(2, set())
    tree.open_session(3)
    acl = (AclEntry(Permission.READ, "world", "anyone"), AclEntry(Permission.ALL, "auth", ""))
    tree.apply([CreateWithAcl("/a", acl=acl)], 1, 1, 0)
    return tree


def test_a_tree_checks_each_operation() -> None:
    tree = served_tree()
    refused: list[Create | SetData | Delete | SetAcl] = [
        SetData("/a", b"x"),
        Create("/a/b"),
        SetAcl("/a", OPEN_ACL),
    ]
    for operation in refused:
        with pytest.raises(NoAuth):
            tree.apply([operation], 2, 2, 0)
    tree.apply([SetData("/a", b"x"), Create("/a/b")], 1, 2, 0)
    with pytest.raises(NoAuth):
        tree.apply([Delete("/a/b")], 2, 3, 0)
    tree.apply([SetData("/a", b"y")], 3, 4, 0)
    assert tree.get("/a", 2)[0] == b"y"


def test_reads_need_a_permission_and_hashes_are_the_administrators() -> None:
    tree = served_tree()
    assert tree.acl("/a", 2)[0][1].id == "user:x"
    assert tree.acl("/a", 1)[0][1].id == USER[1]
    tree.apply([SetAcl("/a", (AclEntry(Permission.ALL, *USER),), 0)], 1, 5, 0)
    for read in (tree.get, tree.children, tree.acl):
        with pytest.raises(NoAuth):
            read("/a", 2)
    with pytest.raises(BadVersion):
        tree.apply([SetAcl("/a", OPEN_ACL, 0)], 1, 6, 0)


def test_an_event_tells_nothing_to_who_may_not_read() -> None:
    tree = served_tree()
    seen: list[int] = []
    tree.exists("/secret", 1, lambda _: seen.append(1))
    tree.exists("/secret", 2, lambda _: seen.append(2))
    tree.apply([CreateWithAcl("/secret", acl=(AclEntry(Permission.ALL, *USER),))], 1, 7, 0)
    for watcher, event in tree.drain()[1]:
        watcher(event)
    assert seen == [1]


def test_a_refused_acl_change_in_a_transaction_is_taken_back() -> None:
    tree = served_tree()
    before = tree.acl("/a", 1)
    with pytest.raises(NodeError):
        tree.apply([SetAcl("/a", OPEN_ACL), Delete("/missing")], 1, 8, 0)
    assert tree.acl("/a", 1) == before
