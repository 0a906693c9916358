"""One file per API; :func:`load` imports them, which registers them with ``dispatch``."""

from __future__ import annotations

from importlib import import_module

API_MODULES = (
    "alter_client_quotas",
    "alter_configs",
    "alter_partition_reassignments",
    "alter_user_scram_credentials",
    "api_versions",
    "compare_replicas",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_log_dirs",
    "describe_topic_partitions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "incremental_alter_configs",
    "init_producer_id",
    "join_group",
    "leave_group",
    "list_config_resources",
    "list_groups",
    "list_offsets",
    "list_partition_reassignments",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
)


def load() -> None:
    """Register every API."""
    for name in API_MODULES:
        import_module(f"{__name__}.{name}")
