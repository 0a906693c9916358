import pytest

from spark_kafkalite.client.registry_consumer.config import ConnectorConfig, connector_config
from spark_kafkalite.client.registry_consumer.streams import ConsumerConnector
from spark_kafkalite.errors import ConfigError


def config(**settings: object) -> ConnectorConfig:
    return connector_config({"group.id": "g", "zookeeper.connect": "h:1"}, settings)


def test_defaults_are_those_of_kafka_0_8() -> None:
    defaults = config()
    assert (defaults.session_timeout_ms, defaults.rebalance_backoff_ms, defaults.rebalance_max_retries) == (
        6_000,
        2_000,
        4,
    )
    assert (defaults.auto_commit, defaults.auto_commit_interval_ms, defaults.timeout_ms) == (True, 60_000, -1)
    assert (defaults.offsets_storage, defaults.dual_commit) == ("zookeeper", False)
    assert defaults.consumer.offset_reset == "latest"
    assert defaults.consumer.client.client_id == "g"


def test_kafka_storage_commits_to_both_unless_told_otherwise() -> None:
    assert config(offsets_storage="kafka").dual_commit
    assert not config(offsets_storage="kafka", dual_commit_enabled=False).dual_commit
    assert config(dual_commit_enabled=True).dual_commit


def test_the_backoff_follows_the_sync_time() -> None:
    assert config(zookeeper_sync_time_ms=300).rebalance_backoff_ms == 300
    assert config(zookeeper_sync_time_ms=300, rebalance_backoff_ms=50).rebalance_backoff_ms == 50


def test_both_families_of_names_are_understood() -> None:
    old = config(auto_commit_enable=False, fetch_message_max_bytes=7, auto_offset_reset="smallest")
    new = config(enable_auto_commit=False, max_partition_fetch_bytes=7, auto_offset_reset="earliest")
    assert old == new
    assert (old.auto_commit, old.consumer.max_partition_fetch_bytes) == (False, 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"group\.id is not set"),
        ({"group.id": "a/b"}, r"group\.id='a/b'"),
        ({"group.id": "g", "consumer.id": ".."}, r"consumer\.id='\.\.'"),
        ({"group.id": "g", "zookeeper.digest": "secret"}, r"zookeeper\.digest=\*+\(redacted\): must be user:password"),
        ({"group.id": "g", "zookeeper.sasl.mechanism": "DIGEST-MD5"}, r"DIGEST-MD5: needs zookeeper\.digest"),
        ({"group.id": "g"}, r"zookeeper\.connect is not set"),
        ({"group.id": "g", "zookeeper.connect": "h:1", "offsets.storage": "disk"}, r"offsets\.storage=disk"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsumerConnector(settings)


def test_streams_are_checked_before_anything_is_opened() -> None:
    # Port 1 answers nobody: a connection would fail otherwise.
    connector = ConsumerConnector(group_id="g", zookeeper_connect="127.0.0.1:1")
    with pytest.raises(ConfigError, match="at least one topic"):
        connector.create_message_streams({})
    with pytest.raises(ConfigError, match="t: 0 streams"):
        connector.create_message_streams({"t": 0})
    with pytest.raises(ConfigError, match="a b"):
        connector.create_message_streams({"a b": 1})
    connector.shutdown()
