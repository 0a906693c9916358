from pathlib import Path

import pytest

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError


def test_without_anything_it_is_broker_1_on_loopback() -> None:
    config = BrokerConfig.load()
    assert (config.broker_id, config.listeners[0].endpoint) == (1, "PLAINTEXT://127.0.0.1:9092")
    assert (config.log_dirs, config.registry_dir) == ((Path("kafkalite-data"),), Path("kafkalite-data/_registry"))
    assert config.topic_defaults["retention.ms"] == 7 * 86_400_000
    assert config["auto.create.topics.enable"] is True


def test_overrides_win_over_the_file_under_every_spelling(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=3\nnum.partitions=4\nlog.retention.hours=2\n# a comment\n")
    config = BrokerConfig.load(path, {"node.id": "5"})
    assert (config.broker_id, config["num.partitions"]) == (5, 4)
    assert config.topic_defaults["retention.ms"] == 7_200_000
    assert config.layers[-1].values.keys() == {"broker.id", "num.partitions", "log.retention.hours"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log.retention.hour", "1", "did you mean 'log.retention.hours'"),
        ("broker.id", "-1", "must be at least 0"),
        ("num.partitions", "many", "not a valid int"),
        ("log.dirs", " , ", "log.dirs is empty"),
        ("registry.listener", "2181", "not of the form HOST:PORT"),
        ("registry.listener", "0.0.0.0:2181", "can be reached from other hosts"),
        ("log.dirs", "a,./a", "named twice"),
        ("compression.type", "brotli", "must be one of"),
        ("log.message.timestamp.type", "Yesterday", "must be one of"),
    ],
)
def test_what_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.from_properties({name: value})


def test_every_setting_is_documented_and_named_once() -> None:
    names = [name for setting in BROKER_SETTINGS for name in (setting.name, *setting.synonyms)]
    assert len(names) == len(set(names))
    assert all(setting.doc.endswith(".") for setting in BROKER_SETTINGS)


@pytest.mark.parametrize("name", ["zookeeper.connect"])
def test_a_setting_of_a_later_version_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{name}=127\.0\.0\.1:2181: .* is not part of this version; leave {name} out"
    ):
        BrokerConfig.from_properties({name: "127.0.0.1:2181"})


def test_the_registry_is_served_when_asked_for() -> None:
    assert BrokerConfig.from_properties({}).registry_listener is None
    given = {"registry.listener": "0.0.0.0:2181", "registry.listener.digest": "user:secret"}
    listener = BrokerConfig.from_properties(given).registry_listener
    assert listener is not None
    assert (listener.host, listener.port, listener.digest) == ("0.0.0.0", 2181, "user:secret")
