import pytest

from spark_kafkalite.broker.network.listeners import parse_listeners
from spark_kafkalite.errors import ConfigError

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
        (["SSL://h:1"], [], "security protocol SSL; served are PLAINTEXT"),
        (["PLAINTEXT://h:1"], ["OUT://h:1"], "OUT, which is not one of listeners"),
        (["PLAINTEXT://h:1"], ["PLAINTEXT://0.0.0.0:1"], "advertised.listeners=.* means every interface"),
        (["PLAINTEXT://h:1", "B://h:1"], [], "both listen on h:1"),
    ],
)
def test_what_is_refused(listeners: list[str], advertised: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_listeners(listeners, advertised, [*PLAIN, "B:PLAINTEXT", "OUT:PLAINTEXT"])
