"""What a client may do, as Metadata and the Describe APIs return it: everything, because there is no authorizer.

Bits are numbered as in org.apache.kafka.common.acl.AclOperation. Source: kafka.security.authorizer.AclEntry.
"""

from __future__ import annotations

from typing import Final

NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8))
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
# What Kafka says of an ACL then.
NO_AUTHORIZER: Final = "No Authorizer is configured."
