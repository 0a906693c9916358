"""Nodes of ACLs: the bytes are those of Apache Kafka, and what cannot be read is said to be so."""

from __future__ import annotations

import json

import pytest

from spark_kafkalite.acls import AccessControlEntry, Operation, PatternType, PermissionType, Resource, ResourceType
from spark_kafkalite.registry import acl_nodes
from spark_kafkalite.registry.node_json import MalformedNode

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ = AccessControlEntry("User:alice", "*", Operation.READ, PermissionType.ALLOW)
CONFIGS = AccessControlEntry("User:bob", "10.0.0.1", Operation.DESCRIBE_CONFIGS, PermissionType.DENY)


@pytest.mark.parametrize(
    ("resource", "path", "notice"),
    [
        (Resource(ResourceType.TOPIC, LITERAL, "foo"), "/kafka-acl/Topic/foo", b"Topic:foo"),
        (
            Resource(ResourceType.TRANSACTIONAL_ID, LITERAL, "a:b"),
            "/kafka-acl/TransactionalId/a:b",
            b"TransactionalId:a:b",
        ),
        (
            Resource(ResourceType.GROUP, PREFIXED, "foo"),
            "/kafka-acl-extended/prefixed/Group/foo",
            b'{"version":1,"resourceType":"GROUP","name":"foo","patternType":"PREFIXED"}',
        ),
    ],
)
def test_paths_and_notices_are_those_of_kafka(resource: Resource, path: str, notice: bytes) -> None:
    assert acl_nodes.acl_path(resource) == path
    assert acl_nodes.encode_notice(resource) == notice
    parent = acl_nodes.CHANGES[resource.pattern_type]
    assert acl_nodes.decode_notice(f"{parent}/acl_changes_0000000001", notice) == resource


def test_a_notice_of_a_tool_may_name_the_type_in_capitals() -> None:
    found = acl_nodes.decode_notice(f"{acl_nodes.LITERAL_CHANGES}/acl_changes_1", b"TRANSACTIONAL_ID:x")
    assert found == Resource(ResourceType.TRANSACTIONAL_ID, LITERAL, "x")


def test_a_node_has_the_fields_of_kafka() -> None:
    data = acl_nodes.encode_acls({READ, CONFIGS})
    assert json.loads(data) == {
        "version": 1,
        "acls": [
            {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"},
            {"principal": "User:bob", "permissionType": "Deny", "operation": "DescribeConfigs", "host": "10.0.0.1"},
        ],
    }
    assert acl_nodes.decode_acls("/kafka-acl/Topic/t", data) == {READ, CONFIGS}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version":1}',
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Perhaps","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":1,"permissionType":"Allow","operation":"Read","host":"*"}]}',
    ],
)
def test_what_is_no_list_of_acls_is_named(data: bytes) -> None:
    with pytest.raises(MalformedNode, match="/kafka-acl/Topic/t"):
        acl_nodes.decode_acls("/kafka-acl/Topic/t", data)


@pytest.mark.parametrize("data", [b"", b"Topic", b"Fish:x", b"\xff:x"])
def test_what_is_no_notice_is_named(data: bytes) -> None:
    with pytest.raises(MalformedNode, match="acl_changes_1"):
        acl_nodes.decode_notice(f"{acl_nodes.LITERAL_CHANGES}/acl_changes_1", data)


def test_only_sequence_nodes_are_notices() -> None:
    assert acl_nodes.is_notice("acl_changes_0000000012")
    assert not any(map(acl_nodes.is_notice, ("acl_changes_000000001x", "acl_changes_12", "other_0000000012")))


def test_everything_about_acls_is_for_brokers_alone() -> None:
    assert all(map(acl_nodes.is_private, acl_nodes.BASE_PATHS))
    assert not acl_nodes.is_private("/brokers/topics/kafka-acl")
