"""The node from which brokers take blocks of producer ids, /latest_producer_id_block. Pure: bytes in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry.node_json import (
    MAX_INT32,
    MAX_INT64,
    MOST_FIELDS_BYTES,
    MalformedNode,
    decode_object,
    encode_object,
    no_fields,
    number,
    reading,
    unknown_fields,
)

PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
PRODUCER_ID_BLOCK_SIZE: Final = 1000
_FIELDS: Final = frozenset(("version", "broker", "block_start", "block_end"))


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """A range of producer ids, both ends inclusive, and the broker that took it."""

    broker_id: BrokerId
    first: int
    last: int
    unknown: Mapping[str, Any] = field(default_factory=no_fields)

    def encode(self) -> bytes:
        known = {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        return encode_object({**known, **self.unknown})

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        fields = decode_object(PRODUCER_ID_BLOCK, data)
        with reading(PRODUCER_ID_BLOCK, data):
            first = number(fields["block_start"], 0, MAX_INT64)
            last = number(fields["block_end"], first, MAX_INT64)
            unknown = unknown_fields(PRODUCER_ID_BLOCK, fields, _FIELDS, MOST_FIELDS_BYTES)
            return cls(BrokerId(number(fields["broker"], 0, MAX_INT32)), first, last, unknown)

    @classmethod
    def after(cls, last: ProducerIdBlock, broker_id: BrokerId) -> ProducerIdBlock:
        """Return the block after ``last``. Raises MalformedNode if no block is left."""
        first = last.last + 1
        if first > MAX_INT64 - PRODUCER_ID_BLOCK_SIZE:
            raise MalformedNode(
                f"registry node {PRODUCER_ID_BLOCK} states that all producer ids up to {first - 1} are in use, which "
                "leaves none: set block_end to the largest id that producers really have"
            )
        return replace(cls.from_number(first, broker_id), unknown=last.unknown)

    @classmethod
    def from_number(cls, first: int, broker_id: BrokerId) -> ProducerIdBlock:
        """Return the block that begins with the id ``first``."""
        return cls(broker_id, first, first + PRODUCER_ID_BLOCK_SIZE - 1)
