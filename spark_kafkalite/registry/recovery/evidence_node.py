"""/kafkalite/recovered: which evidence of a registry that was lost is settled. Pure: bytes in, values out.

A broker does not start with a registry that has not come as far as its log directories have seen one
(``registry-zxid-checkpoint``). A registry that was made again from the logs names here, of each broker whose logs were
read, the transaction that its directories named then. A broker whose directories still name exactly this one takes the
registry, and notes there how far this one has come. So the node settles the evidence once: an older copy of the new
registry is refused again.

The node is JSON, ``{"version":1,"zxids":{"N":"ZXID",...}}`` with the numbers of brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry.node_json import (
    MAX_INT32,
    MAX_INT64,
    decode_object,
    encode_object,
    mapping,
    number,
    reading,
)

PATH: Final = "/kafkalite/recovered"


def encode(zxids: Mapping[BrokerId, int]) -> bytes:
    return encode_object({"version": 1, "zxids": {str(broker): str(zxid) for broker, zxid in sorted(zxids.items())}})


def decode(data: bytes) -> dict[BrokerId, int]:
    """Return the transaction that each broker's directories named. Raises MalformedNode."""
    fields = decode_object(PATH, data)
    with reading(PATH, data):
        return {
            BrokerId(number(broker, 0, MAX_INT32)): number(zxid, 0, MAX_INT64)
            for broker, zxid in mapping(fields["zxids"]).items()
        }
