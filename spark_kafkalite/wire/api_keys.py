"""The API keys: the numbers by which the protocol names its APIs.

They are those that this system serves or asks for: produce, fetch, metadata, groups, topics, configs, ACLs, quotas,
SASL and reassignments. The key of another API comes with its handler: put it here, then
``scripts/generate_messages.py`` writes its messages. Versions are elsewhere: those that can be encoded in ``messages``,
those that a broker serves in its handlers (``broker.requests.dispatch``), those that the client requests in
``client.network.connection``. Those from :data:`FIRST_OWN_KEY` on are not Kafka's: only brokers send them, to each
other (``wire.inner``).
Source: org.apache.kafka.common.protocol.ApiKeys.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# Far above Kafka's, which are below 100.
FIRST_OWN_KEY: Final = 10_001


class ApiKey(IntEnum):
    """One API of the protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    COMPARE_REPLICAS = FIRST_OWN_KEY

    @property
    def api_name(self) -> str:
        """Kafka's name of it: ``ListOffsets`` for LIST_OFFSETS."""
        return "".join(word.capitalize() for word in self.name.split("_"))
