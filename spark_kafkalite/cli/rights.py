"""The right that a command needs to show a whole cluster. Without it brokers leave things out, without an error."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from spark_kafkalite.errors import ClusterAuthorizationFailed, KafkaError

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin

NOT_DESCRIBED: Final = (
    "this client may not DESCRIBE the cluster, so topics, groups and disks can be missing here, and their problems; "
    "allow it: kafkalite acls add --allow-principal User:NAME --operation Describe --cluster --topic '*' "
    "--group '*'"
)


def may_describe_cluster(admin: Admin) -> bool:
    """Return whether the client may DESCRIBE the cluster; True also where the broker does not know the question."""
    with suppress(KafkaError):
        try:
            admin.list_partition_reassignments()
        except ClusterAuthorizationFailed:
            return False
    return True
