import pytest

from spark_kafkalite.broker.network.listeners import check_part, parse_listeners
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.settings import SecurityProtocol

PLAIN = ("PLAINTEXT:PLAINTEXT",)


def test_defaults_to_what_is_listened_on() -> None:
    (listener,) = parse_listeners(["PLAINTEXT://127.0.0.1:0"], [], PLAIN)
    bound = listener.bound(4711)
    assert (bound.host, bound.port, bound.endpoint) == ("127.0.0.1", 4711, "PLAINTEXT://127.0.0.1:4711")


def test_advertised_port_0_is_the_bound_one_and_another_stays() -> None:
    listeners = parse_listeners(
        ["PLAINTEXT://0.0.0.0:0", "OUT://[::1]:9093"],
        ["PLAINTEXT://log1.example:0", "OUT://out.example:19093"],
        [*PLAIN, "OUT:PLAINTEXT"],
    )
    assert [one.bound(5).endpoint for one in listeners] == [
        "PLAINTEXT://log1.example:5",
        "OUT://out.example:19093",
    ]
    assert listeners[1].host == "::1"


@pytest.mark.parametrize("address", ["PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://:9092", "PLAINTEXT://[::]:9092"])
def test_every_interface_needs_an_advertised_host(address: str) -> None:
    with pytest.raises(ConfigError, match=r"means every interface.*set advertised.listeners=PLAINTEXT://HOST:9092"):
        parse_listeners([address], [], PLAIN)


@pytest.mark.parametrize(
    ("listeners", "advertised", "message"),
    [
        ([], [], "listeners is empty"),
        (["127.0.0.1:9092"], [], "not of the form NAME://HOST:PORT"),
        (["PLAINTEXT://h:99999"], [], "port 99999 is above 65535"),
        (["PLAINTEXT://h:1", "plaintext://h:2"], [], "names the listener PLAINTEXT twice"),
        (
            ["INNER://h:1"],
            [],
            "unknown security protocol INNER; set .*map=...,INNER:PROTOCOL",
        ),
        (["PLAINTEXT://h:1"], ["OUT://h:1"], "OUT, which is not one of listeners"),
        (["PLAINTEXT://h:1"], ["PLAINTEXT://0.0.0.0:1"], "advertised.listeners=.* means every interface"),
        (["PLAINTEXT://h:1", "B://h:1"], [], "both listen on h:1"),
    ],
)
def test_what_is_refused(listeners: list[str], advertised: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_listeners(listeners, advertised, [*PLAIN, "B:PLAINTEXT", "OUT:PLAINTEXT"])


def test_a_listener_has_the_protocol_that_the_map_gives_its_name() -> None:
    listeners = parse_listeners(
        ["PLAINTEXT://h:1", "in-side://h:2", "SASL_PLAINTEXT://h:3"], [], ["IN-SIDE:sasl_plaintext"]
    )
    assert [listener.protocol.value for listener in listeners] == ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_PLAINTEXT"]
    assert listeners[1].protocol is SecurityProtocol.SASL_PLAINTEXT


def test_the_narrowest_value_of_a_setting_counts() -> None:
    values = {
        "ssl.client.auth": "none",
        "listener.name.in.ssl.client.auth": "required",
        "sasl.jaas.config": "all",
        "listener.name.in.scram-sha-256.sasl.jaas.config": "one",
        "unset": None,
    }
    inner, outer = parse_listeners(["IN://h:1", "OUT://h:2"], [], ["IN:PLAINTEXT", "OUT:PLAINTEXT"], values)
    assert (inner.setting("ssl.client.auth"), outer.setting("ssl.client.auth")) == ("required", "none")
    assert inner.setting("ssl.client.auth", "PLAIN") == "required"
    assert inner.setting("sasl.jaas.config", "SCRAM-SHA-256") == "one"
    assert inner.setting("sasl.jaas.config", "PLAIN") == "all"
    assert outer.setting("sasl.jaas.config", "SCRAM-SHA-256") == "all"
    assert inner.setting("unset") is None


@pytest.mark.parametrize("part", ["in", "in.plain", "a.b", "a.b.scram-sha-512"])
def test_a_part_is_a_listener_or_a_mechanism_of_one(part: str) -> None:
    check_part("name", part, ["IN", "A.B", "A"])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("internl", r"name: there is no listener 'internl'; did you mean 'internal'\?"),
        ("zzz", r"name: there is no listener 'zzz'; known are internal, out"),
        ("internal.scram-sha-265", r"there is no SASL mechanism 'scram-sha-265'; did you mean 'scram-sha-256'\?"),
        ("internal.kerberos", r"there is no SASL mechanism 'kerberos'; known are plain, "),
    ],
)
def test_a_part_that_does_not_exist_is_named(part: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_part("name", part, ["INTERNAL", "OUT"])
