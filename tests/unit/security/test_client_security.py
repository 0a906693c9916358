"""What a client's security settings amount to, and stores that are replaced while the client lives."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.client.config import ADMIN_SETTINGS
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.client_security import PLAINTEXT, ClientSecurity, client_security
from tests.lab.certificates import Authority


def security(**given: str) -> ClientSecurity:
    values: Mapping[str, Any] = {name.replace("_", "."): value for name, value in given.items()}
    return client_security({**ADMIN_SETTINGS.defaults(), **values})


def trusted(made: ClientSecurity) -> list[str]:
    """Return the names of the authorities that the next connection trusts."""
    context = made.tls_context
    assert context is not None
    subjects = [dict(pair for relative in each["subject"] for pair in relative) for each in context.get_ca_certs()]
    return [str(each["organizationName"]) for each in subjects]


def replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


def test_plaintext_needs_nothing() -> None:
    assert security() is PLAINTEXT
    assert PLAINTEXT.tls_context is None


def test_a_store_that_was_replaced_is_read_for_the_next_connection(tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "1", "first"), Authority(tmp_path / "2", "second")
    store = tmp_path / "trusted.pem"
    store.write_text(first.pem)
    made = security(security_protocol="SSL", ssl_truststore_location=str(store))
    assert trusted(made) == ["first"]
    assert made.tls_context is made.tls_context
    replace(store, second.pem)
    assert trusted(made) == ["second"]


def test_a_store_that_is_being_written_leaves_the_old_one_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Authority(tmp_path / "1", "first"), Authority(tmp_path / "2", "second")
    store = tmp_path / "trusted.pem"
    store.write_text(first.pem)
    made = security(security_protocol="SSL", ssl_truststore_location=str(store))
    for replaced in ("-----BEGIN CERTIFICATE-----\nTUlJ", ""):
        replace(store, replaced)
        with caplog.at_level(logging.WARNING):
            assert trusted(made) == ["first"]
        assert f"ssl.truststore.location={store}" in caplog.text
        caplog.clear()
    store.unlink()
    assert trusted(made) == ["first"]
    replace(store, second.pem)
    assert trusted(made) == ["second"]


def test_a_store_whose_name_no_file_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the name of a file"):
        security(security_protocol="SSL", ssl_truststore_location="a\0b")
