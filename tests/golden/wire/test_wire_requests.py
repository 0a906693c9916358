from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.header import read_request_header

CAPTURED = json.loads((Path(__file__).parent / "requests.json").read_text())
frame_ids = [f"{entry['client'].split()[0]}-{entry['api_key']}-v{entry['version']}" for entry in CAPTURED]


@pytest.mark.parametrize("entry", CAPTURED, ids=frame_ids)
def test_a_clients_request_is_read_and_rewritten_to_the_same_bytes(entry):
    frame = bytes.fromhex(entry["frame"])
    (api_key, version, correlation_id, client_id), position = read_request_header(frame)
    assert (api_key, version) == (entry["api_key"], entry["version"])
    message = codec.decode_request(api_key, version, frame, position)
    assert codec.encode_request(message, version, correlation_id, client_id) == frame


@pytest.mark.parametrize("entry", [e for e in CAPTURED if e["api_key"] == 0], ids=lambda e: e["client"])
def test_a_clients_produce_is_parsed_by_hand(entry):
    frame = bytes.fromhex(entry["frame"])
    (_, version, correlation_id, client_id), position = read_request_header(frame)
    request = packed.parse_produce(frame, position, version)
    ((topic, ((partition, records),)),) = request.topics
    assert (topic, partition) == ("golden", 0)
    assert b"value" in bytes(records)
    pieces, _ = packed.pack_produce_request(correlation_id, client_id, version, *request[1:], request.transactional_id)
    assert b"".join(pieces) == frame


@pytest.mark.parametrize("entry", [e for e in CAPTURED if e["api_key"] == 1], ids=lambda e: e["client"])
def test_a_clients_fetch_is_parsed_by_hand(entry):
    frame = bytes.fromhex(entry["frame"])
    (_, version, correlation_id, client_id), position = read_request_header(frame)
    request = packed.parse_fetch(frame, position, version)
    ((topic, (partition,)),) = request.topics
    assert (topic, partition.partition, partition.fetch_offset) == ("golden", 0, 0)
    assert packed.pack_fetch_request(correlation_id, client_id, version, request) == frame
