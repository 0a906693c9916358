"""Which version of each API client and broker both know.

A connection begins with ApiVersions, which asks the broker what it serves; each request then goes in the highest
version that is also in :data:`SUPPORTED`, our side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from spark_kafkalite.errors import UnsupportedVersion
from spark_kafkalite.version import VERSION
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest

# The lowest and highest version of each API that the code in this package sends. Fetch ends before topic ids (13),
# OffsetCommit and OffsetFetch before them (10). SaslHandshake begins with the version whose tokens come in frames, and
# OffsetForLeaderEpoch with the one that consumers may ask without rights on the cluster (KIP-320).
SUPPORTED: Final[dict[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 10),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 9),
    ApiKey.METADATA: (1, 12),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.FIND_COORDINATOR: (0, 4),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (3, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
API_VERSIONS_MAX: Final = 3


def version_for(api_key: int, served: Mapping[int, tuple[int, int]], name: str) -> int:
    """Return the version to use for an API with the broker of that name.

    Raises UnsupportedVersion when broker and client share none.
    """
    lowest, highest = SUPPORTED[api_key]
    if api_key not in served:
        raise UnsupportedVersion(f"broker {name} does not serve {ApiKey(api_key).api_name} (API {api_key})")
    broker_lowest, broker_highest = served[api_key]
    version = min(highest, broker_highest)
    if version < max(lowest, broker_lowest):
        raise UnsupportedVersion(
            f"broker {name} serves {ApiKey(api_key).api_name} in versions {broker_lowest} to "
            f"{broker_highest}, this client speaks {lowest} to {highest}"
        )
    return version


def api_versions_request() -> ApiVersionsRequest:
    """Return the first request of a connection; it names this client's software."""
    return ApiVersionsRequest(client_software_name="spark-kafkalite", client_software_version=_software_version())


@cache
def _software_version() -> str:
    """Our version, as the protocol allows it to be written (brokers refuse other characters)."""
    return re.sub(r"[^a-zA-Z0-9.\-]", "-", VERSION).strip(".-") or "0"
