from __future__ import annotations

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.registry.served.listener import RegistryListener


def test_an_address_is_parsed_and_shown_with_the_bound_port() -> None:
    assert RegistryListener.parse("127.0.0.1:0").address(4711) == "127.0.0.1:4711"
    assert RegistryListener.parse("[::1]:2181").address(2181) == "[::1]:2181"


@pytest.mark.parametrize("address", ["", "2181", ":2181", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="not of the form HOST:PORT"):
        RegistryListener.parse(address)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
@pytest.mark.parametrize("digest", [None, "user:secret"])
def test_other_hosts_are_not_served(host: str, digest: str | None) -> None:
    with pytest.raises(ConfigError, match=r"registry\.listener=.*: the embedded registry serves this host only.*docs/"):
        RegistryListener.parse(f"{host}:2181", digest=digest)


@pytest.mark.parametrize("digest", ["user", "user:", ":secret", ""])
def test_a_digest_names_user_and_password_and_is_not_shown(digest: str) -> None:
    with pytest.raises(ConfigError, match=r"digest=\*+\(redacted\): "):
        RegistryListener.parse("127.0.0.1:2181", digest=digest)
