"""The messages that only brokers send each other, in requests that are not Kafka's: one module per API.

``SCHEMAS`` is to them what ``messages.SCHEMAS`` is to Kafka's. They are written by hand, in the form of the generated
ones. Their keys lie above all of Kafka's, they are never flexible, and they are never advertised to clients. A broker
sends one only to a broker whose version of the inner wire has it (``registry.znodes.INNER_WIRE_VERSION``).
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import ApiSchema

_NEVER_FLEXIBLE: Final = 32767

SCHEMAS: Final[dict[int, ApiSchema]] = {
    int(ApiKey.COMPARE_REPLICAS): ApiSchema(ApiKey.COMPARE_REPLICAS, 0, 0, _NEVER_FLEXIBLE, "inner"),
}
