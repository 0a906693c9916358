from __future__ import annotations

import runpy

import pytest

from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages import SCHEMAS
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from spark_kafkalite.wire.messages.produce import LeaderIdAndEpoch, PartitionProduceResponse
from tests.paths import PROJECT

GENERATOR = PROJECT / "scripts" / "generate_messages.py"


def test_the_generated_files_are_what_the_generator_writes():
    stale_files = runpy.run_path(str(GENERATOR))["stale_files"]
    assert not stale_files(), "run python scripts/generate_messages.py"


@pytest.mark.parametrize("api", SCHEMAS.values(), ids=lambda api: api.name)
def test_the_table_leads_to_the_classes(api):
    for cls, is_request in ((api.request_class, True), (api.response_class, False)):
        assert issubclass(cls, ApiMessage)
        assert api.key == cls.API_KEY
        assert cls.IS_REQUEST is is_request


def test_messages_are_compared_and_shown_by_their_fields():
    broker = MetadataResponseBroker(node_id=1, host="h", port=9092)
    assert broker == MetadataResponseBroker(node_id=1, host="h", port=9092)
    assert broker != MetadataResponseBroker(node_id=2, host="h", port=9092)
    assert broker != MetadataRequest()
    assert repr(broker) == "MetadataResponseBroker(node_id=1, host='h', port=9092, rack=None)"


def test_default_lists_and_structs_are_not_shared():
    MetadataResponse().brokers.append(MetadataResponseBroker())
    assert not MetadataResponse().brokers
    PartitionProduceResponse().current_leader.leader_id = 5
    fresh = PartitionProduceResponse()
    assert fresh.current_leader == LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)


def test_none_is_a_null_array_and_not_the_default():
    assert MetadataRequest().topics == []
    assert MetadataRequest(topics=None).topics is None


def test_a_misspelt_field_is_an_error():
    with pytest.raises(TypeError):
        MetadataRequest(topic=[])
    with pytest.raises(AttributeError):
        MetadataRequest().topic = []
