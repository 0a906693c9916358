"""``metrics.*``: addresses, tokens, and what is refused at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite.broker.metrics.health import BrokerHealth, BrokerState
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError

TOKEN = "0123456789abcdef0123456789abcdef"


def load(**settings: object) -> BrokerConfig:
    return BrokerConfig.load(overrides={name.replace("_", "."): value for name, value in settings.items()})


def test_without_the_setting_there_is_none() -> None:
    assert load().metrics_listener is None


def test_loopback_needs_no_token() -> None:
    listener = load(metrics_listener="[::1]:9644").metrics_listener
    assert listener is not None
    access = listener.access
    assert (access.host, access.port, access.is_loopback) == ("::1", 9644, True)


@pytest.mark.parametrize("address", ["0.0.0.0:9644", "[::]:9644", ":9644", "192.0.2.1:9644"])
def test_other_hosts_need_a_token_or_the_operators_word(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"other hosts reach this address.*metrics\.token\.file"):
        load(metrics_listener=address)
    assert load(metrics_listener=address, metrics_listener_insecure=True).metrics_listener is not None
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    assert load(metrics_listener=address, metrics_token_file=str(token)).metrics_listener is not None


@pytest.mark.parametrize("address", ["9644", "localhost", "localhost:http", "localhost:70000"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="not of the form HOST:PORT"):
        load(metrics_listener=address)


def test_tokens_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(metrics_listener="127.0.0.1:0", metrics_token_file=str(tmp_path / "none"))
    token = tmp_path / "token"
    token.write_text("short-and-secret")
    load(metrics_listener="127.0.0.1:0", metrics_token_file=str(token))
    token.write_text("too-short")
    with pytest.raises(ConfigError, match=r"9 characters; give one line") as caught:
        load(metrics_listener="127.0.0.1:0", metrics_token_file=str(token))
    assert "too-short" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"has no effect without metrics\.listener"):
        load(metrics_token_file=str(token))


def test_readiness() -> None:
    health = BrokerHealth()
    assert health.why_not_ready() == ["the broker starts"]
    health.enter(BrokerState.RUNNING)
    assert health.why_not_ready() == []
    health.is_registered = lambda: False
    assert health.why_not_ready() == ["the broker has no session with the registry"]
    health.enter(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
    assert health.why_not_ready() == ["the broker stops: it hands its partitions over"]
