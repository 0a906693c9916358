"""What brokers tell each other of damaged logs: Kafka's own messages with one more tagged field, which others skip."""

from __future__ import annotations

import pytest

from spark_kafkalite.errors import FrameError
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.packed import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    NodeEndpoint,
    pack_fetch_body,
    pack_fetch_response,
    parse_fetch,
    parse_fetch_answer,
)
from spark_kafkalite.wire.packed.replica_damage import UNCOUNTED, ReplicaDamage, pack_damage, parse_damage

_ID = b"i" * 16
_ENTRIES = [
    ReplicaDamage(_ID, 3, 7, 1, ((5, 9), (20, 2**40))),
    ReplicaDamage(b"j" * 16, 0, 2, 4, (), UNCOUNTED, 12),
]


def test_it_comes_back_as_it_went() -> None:
    assert parse_damage(pack_damage(_ENTRIES)) == _ENTRIES
    assert pack_damage([]) == b"" and parse_damage(b"") == []
    data = pack_damage(_ENTRIES)
    for length in range(1, len(data)):
        if length != len(pack_damage(_ENTRIES[:1])):
            with pytest.raises(FrameError):
                parse_damage(data[:length])


@pytest.mark.parametrize("version", [15, 17])
def test_a_request_has_it_and_others_skip_it(version: int) -> None:
    asked = [(_ID, [FetchPartition(3, 10, 100, 7, 6, 0)])]
    damage = pack_damage(_ENTRIES)
    with_it = FetchRequest(asked, replica_id=2, replica_epoch=9, damage=damage)
    body = pack_fetch_body(version, with_it)
    assert parse_fetch(memoryview(body), 0, version) == with_it
    # As a reader that knows Kafka's fields alone.
    message = codec.decode_request(1, version, memoryview(body), 0)
    assert message.replica_state.replica_id == 2 and message.topics[0].partitions[0].fetch_offset == 10
    without = with_it._replace(damage=b"")
    assert parse_fetch(memoryview(pack_fetch_body(version, without)), 0, version) == without


@pytest.mark.parametrize("endpoints", [(), (NodeEndpoint(1, "h", 9, None),)])
def test_an_answer_has_it_beside_endpoints(endpoints: tuple[NodeEndpoint, ...]) -> None:
    damage = pack_damage(_ENTRIES)
    for said in (damage, b""):
        topics = [(_ID, [FetchedPartition(3, 0, 5, 5, 0, b"")])]
        pieces, _ = pack_fetch_response(1, 17, topics, 0, 0, 4, endpoints, said)
        answer = parse_fetch_answer(memoryview(b"".join(bytes(each) for each in pieces))[5:], 17)  # type: ignore[arg-type]
        assert (answer.damage, tuple(answer.node_endpoints), answer.session_id) == (said, endpoints, 4)
