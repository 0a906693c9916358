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
    assert config.layers[0].values.keys() == {"broker.id", "num.partitions", "log.retention.hours"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log.retention.hour", "1", "did you mean 'log.retention.hours'"),
        ("broker.id", "-1", "must be at least 0"),
        ("num.partitions", "many", "not a valid int"),
        ("log.dirs", " , ", "log.dirs is empty"),
        ("registry.listener", "2181", "not of the form HOST:PORT"),
        ("registry.listener", "0.0.0.0:2181", "serves this host only"),
        ("log.dirs", "a,./a", "named twice"),
        ("compression.type", "brotli", "must be one of"),
        ("log.message.timestamp.type", "Yesterday", "must be one of"),
        ("broker.rack", "r" * 256, "must be a text of at most 255 characters"),
    ],
)
def test_what_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.from_properties({name: value})


def test_every_setting_is_documented_and_named_once() -> None:
    names = [name for setting in BROKER_SETTINGS for name in (setting.name, *setting.synonyms)]
    assert len(names) == len(set(names))
    assert all(setting.doc.endswith(".") for setting in BROKER_SETTINGS)


CONNECT = {"zookeeper.connect": "h:2181"}


def test_where_a_registry_elsewhere_is() -> None:
    assert BrokerConfig.from_properties({}).zookeeper is None
    plain = BrokerConfig.from_properties({"zookeeper.connect": "[::1]:2181,h:2182/a/b"}).zookeeper
    assert plain is not None
    assert (plain.connect, plain.digest, plain.set_acl) == ("[::1]:2181,h:2182/a/b", None, False)
    assert (plain.session_timeout_ms, plain.connection_timeout_ms) == (18_000, 18_000)
    given = {
        **CONNECT,
        "zookeeper.digest": "u:secret",
        "zookeeper.set.acl": "true",
        "zookeeper.session.timeout.ms": "5000",
        "zookeeper.connection.timeout.ms": "7000",
    }
    other = BrokerConfig.from_properties(given).zookeeper
    assert other is not None
    assert (other.digest, other.set_acl) == ("u:secret", True)
    assert (other.session_timeout_ms, other.connection_timeout_ms) == (5000, 7000)
    assert "secret" not in repr(other)
    assert other.auth == ("digest", "u:secret")


def test_how_a_broker_authenticates_to_zookeeper() -> None:
    by_password = {**CONNECT, "zookeeper.digest": "u:secret", "zookeeper.sasl.mechanism": "DIGEST-MD5"}
    by_ticket = {**CONNECT, "zookeeper.set.acl": "true", "zookeeper.sasl.mechanism": "GSSAPI"}
    for given, auth in ((CONNECT, None), (by_password, ("DIGEST-MD5", "u:secret")), (by_ticket, ("GSSAPI", ""))):
        address = BrokerConfig.from_properties(given).zookeeper
        assert address is not None and address.auth == auth


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zookeeper.connect": "h"}, r"zookeeper\.connect=h: not of the form HOST:PORT"),
        ({"zookeeper.connect": "h:0"}, "not of the form HOST:PORT"),
        ({"zookeeper.connect": "h:2181,"}, "not of the form HOST:PORT"),
        ({"zookeeper.connect": "h:2181/a/"}, "must not end with"),
        ({**CONNECT, "zookeeper.digest": "secret"}, "not of the form USER:PASSWORD"),
        ({**CONNECT, "zookeeper.set.acl": "true"}, r"zookeeper\.set\.acl=true: needs zookeeper\.digest"),
        ({**CONNECT, "zookeeper.sasl.mechanism": "DIGEST-MD5"}, r"needs zookeeper\.digest=USER:PASSWORD"),
        (
            {**CONNECT, "zookeeper.sasl.mechanism": "GSSAPI", "zookeeper.digest": "u:secret"},
            r"zookeeper\.digest=\*+\(redacted\): without effect with zookeeper\.sasl\.mechanism=GSSAPI",
        ),
        ({"zookeeper.sasl.mechanism": "GSSAPI"}, r"there is no zookeeper\.connect"),
        ({"zookeeper.digest": "u:secret"}, r"there is no zookeeper\.connect"),
        ({"zookeeper.set.acl": "true"}, r"there is no zookeeper\.connect"),
        (
            {**CONNECT, "registry.dir": "d"},
            r"registry\.dir=d: with zookeeper\.connect=h:2181 .* leave registry\.dir out",
        ),
        ({**CONNECT, "registry.listener": "127.0.0.1:1"}, r"leave registry\.listener out"),
        ({**CONNECT, "inter.broker.listener.name": "INNER"}, r"INNER: not one of listeners \(PLAINTEXT\)"),
    ],
)
def test_what_is_refused_of_a_registry_elsewhere(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        BrokerConfig.from_properties(given)
    assert "secret" not in str(refused.value)


def test_which_listener_the_other_brokers_connect_to() -> None:
    listeners = {
        "listeners": "CLIENTS://127.0.0.1:1,INNER://127.0.0.1:2",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INNER:PLAINTEXT",
    }
    assert BrokerConfig.from_properties(listeners).inner_listener.name == "CLIENTS"
    listeners["inter.broker.listener.name"] = "inner"
    assert BrokerConfig.from_properties(listeners).inner_listener.name == "INNER"


def test_the_registry_is_served_when_asked_for() -> None:
    assert BrokerConfig.from_properties({}).registry_listener is None
    given = {"registry.listener": "[::1]:2181", "registry.listener.digest": "user:secret"}
    listener = BrokerConfig.from_properties(given).registry_listener
    assert listener is not None
    assert (listener.host, listener.port, listener.digest) == ("::1", 2181, "user:secret")


# What config/server.properties of Apache Kafka 3.9 sets for a broker with ZooKeeper.
_OF_APACHE_KAFKA = """
broker.id=0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


def test_the_file_of_a_plain_kafka_broker_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(_OF_APACHE_KAFKA, encoding="utf-8")
    config = BrokerConfig.load(path)
    assert config["num.io.threads"] == 8
    assert config.without_effect == (
        "num.network.threads",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    )


def test_a_file_for_kraft_is_explained_with_all_its_names() -> None:
    with pytest.raises(ConfigError, match=r"3 unknown .*process\.roles.*controller\.quorum.*listener\.names.*no KRaft"):
        BrokerConfig.from_properties(
            {
                "process.roles": "broker,controller",
                "controller.quorum.voters": "1@localhost:9093",
                "controller.listener.names": "CONTROLLER",
                "share.coordinator.state.topic.min.isr": 1,
            }
        )


TWO_LISTENERS = {
    "listeners": "IN://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2",
    "listener.security.protocol.map": "IN:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
}


def test_a_setting_of_one_listener_is_taken_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    lines = [f"{name}={value}" for name, value in TWO_LISTENERS.items()]
    path.write_text("\n".join([*lines, "listener.name.IN.ssl.client.auth=requested", "ssl.client.auth=required"]))
    inner, outer = BrokerConfig.load(path, {"listener.name.in.ssl.protocol": "TLSv1.2"}).listeners
    assert (inner.setting("ssl.client.auth"), outer.setting("ssl.client.auth")) == ("requested", "required")
    assert (inner.setting("ssl.protocol"), outer.setting("ssl.protocol")) == ("TLSv1.2", "TLSv1.3")


def test_the_inner_listener_is_named_by_itself_or_by_its_protocol() -> None:
    def inner(**more: str) -> str:
        named = {name.replace("_", "."): value for name, value in more.items()}
        return BrokerConfig.from_properties(TWO_LISTENERS | named).inner_listener.name

    assert inner() == "IN"
    assert inner(inter_broker_listener_name="sasl_plaintext") == "SASL_PLAINTEXT"
    assert inner(security_inter_broker_protocol="SASL_PLAINTEXT") == "SASL_PLAINTEXT"
    with pytest.raises(ConfigError, match=r"protocol=PLAINTEXT: not one of .*; set .*listener.name=IN instead"):
        inner(security_inter_broker_protocol="PLAINTEXT")
    with pytest.raises(ConfigError, match="give one of them"):
        inner(security_inter_broker_protocol="PLAINTEXT", inter_broker_listener_name="IN")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("listener.name.inn.ssl.client.auth", "there is no listener 'inn'"),
        ("listener.name.in.plane.ssl.client.auth", "no SASL mechanism 'plane'; did you mean 'plain'"),
    ],
)
def test_a_setting_of_a_listener_that_does_not_exist_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.from_properties(TWO_LISTENERS | {name: "none"})
