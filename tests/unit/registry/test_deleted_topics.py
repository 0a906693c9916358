"""The node that names the topics that the controller has deleted."""

from __future__ import annotations

import pytest

from spark_kafkalite.registry.deleted_topics import KEPT_MS, MOST_TOPICS, DeletedTopics
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import MAX_DATA_BYTES
from spark_kafkalite.registry.znodes import new_uuid, uuid_text


def test_what_is_written_is_read_in_the_order_of_the_deletions() -> None:
    noted = DeletedTopics().with_added(["b"], 1).with_added(["a"], 2).with_added(["b"], 3)
    assert list(noted.deleted_ms.items()) == [("a", 2), ("b", 3)]
    assert DeletedTopics.decode(noted.encode()) == noted
    assert noted.encode() == b'{"version":1,"topics":[["a",2],["b",3]]}'


def test_a_deletion_is_forgotten_after_seven_days() -> None:
    noted = DeletedTopics().with_added(["a"], 5).with_added(["b"], 4 + KEPT_MS)
    assert list(noted.deleted_ms) == ["a", "b"]
    assert list(noted.with_added(["c"], 5 + KEPT_MS).deleted_ms) == ["b", "c"]


def test_the_oldest_deletions_go_when_there_are_too_many_and_the_node_stays_small() -> None:
    names = [uuid_text(new_uuid()) for _ in range(MOST_TOPICS)]
    noted = DeletedTopics().with_added(names, 1_764_000_000_000).with_added(["next"], 1_764_000_000_001)
    assert list(noted.deleted_ms) == [*names[1:], "next"]
    assert len(noted.encode()) < MAX_DATA_BYTES // 2


def test_fields_of_a_newer_version_are_kept() -> None:
    noted = DeletedTopics.decode(b'{"version":1,"topics":[],"new":[1]}')
    assert noted.with_added(["a"], 1).encode() == b'{"version":1,"topics":[["a",1]],"new":[1]}'


@pytest.mark.parametrize("data", [b"", b"{}", b'{"topics":[["a"]]}', b'{"topics":[["a",-1]]}', b'{"topics":[[1,1]]}'])
def test_a_node_that_cannot_be_read_names_its_path(data: bytes) -> None:
    with pytest.raises(MalformedNode, match="/kafkalite/deleted_topics"):
        DeletedTopics.decode(data)
