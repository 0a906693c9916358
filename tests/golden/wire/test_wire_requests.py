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
    header, position = read_request_header(frame)
    assert header[:2] == (entry["api_key"], entry["version"])
    message = codec.decode_request(header.api_key, header.api_version, frame, position)
    assert codec.encode_request(message, header.api_version, header.correlation_id, header.client_id) == frame


@pytest.mark.parametrize("entry", [e for e in CAPTURED if e["api_key"] == 0], ids=lambda e: e["client"])
def test_a_clients_produce_is_parsed_by_hand(entry):
    frame = bytes.fromhex(entry["frame"])
    header, position = read_request_header(frame)
    request = packed.parse_produce(frame, position, header.api_version)
    ((topic, ((partition, records),)),) = request.topics
    assert (topic, partition) == ("golden", 0)
    assert b"value" in bytes(records)
    pieces, _ = packed.pack_produce_request(
        header.correlation_id, header.client_id, header.api_version, *request[1:], request.transactional_id
    )
    assert b"".join(pieces) == frame


@pytest.mark.parametrize("entry", [e for e in CAPTURED if e["api_key"] == 1], ids=lambda e: e["client"])
def test_a_clients_fetch_is_parsed_by_hand(entry):
    frame = bytes.fromhex(entry["frame"])
    header, position = read_request_header(frame)
    request = packed.parse_fetch(frame, position, header.api_version)
    ((topic, (partition,)),) = request.topics
    assert (topic, partition.partition, partition.fetch_offset) == ("golden", 0, 0)
    assert packed.pack_fetch_request(header.correlation_id, header.client_id, header.api_version, request) == frame
