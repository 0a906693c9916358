"""Tokens on their way from the driver to the tasks."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkFiles

from spark_kafkalite.client.config import ClientConfig, consumer_config
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.security.tokens import HeldToken
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.reading.read_plan import ReadTask
from spark_kafkalite.spark.workers import task_tokens
from spark_kafkalite.spark.workers.connections import reading_config
from spark_kafkalite.spark.workers.task_tokens import token_for_tasks, use_token
from tests.lab.token_endpoint import TokenEndpoint


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenEndpoint]:
    with TokenEndpoint(signed=False) as running:
        monkeypatch.setenv("KAFKALITE_OAUTHBEARER_ALLOWED_URLS", running.url)
        yield running


def settings_of(endpoint: TokenEndpoint, scope: str) -> dict[str, str]:
    """Return settings whose tokens no other test's client holds: ``scope`` is part of what a source of them is."""
    return {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "sasl.oauthbearer.client.credentials.client.id": "client",
        "sasl.oauthbearer.client.credentials.client.secret": "secret",
        "sasl.oauthbearer.scope": scope,
    }


def config_of(settings: Mapping[str, str]) -> ClientConfig:
    return consumer_config(dict(settings), {}).client


def token_of(config: ClientConfig) -> HeldToken:
    token = config.security.current_token()
    assert token is not None
    return token


def living(value: str = "e30.handed.over", life_s: float = 600.0) -> HeldToken:
    return HeldToken(value, time.time() + life_s)


def test_the_driver_asks_once_for_all_tasks(endpoint: TokenEndpoint) -> None:
    config = config_of(settings_of(endpoint, "driver"))
    tokens = [token_for_tasks(config, {}, "subscribe=t") for _ in range(100)]
    assert tokens == [token_of(config)] * 100
    assert len(endpoint.requests) == 1


def test_a_task_uses_the_token_that_came_with_it(endpoint: TokenEndpoint) -> None:
    config = config_of(settings_of(endpoint, "task"))
    task = pickle.loads(pickle.dumps(ReadTask((), living())))
    use_token(config, task.token)
    assert token_of(config).value == "e30.handed.over"
    assert endpoint.requests == []


def test_a_token_that_expired_on_the_way_is_replaced_once_after_a_while(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(task_tokens, "time", SimpleNamespace(sleep=waited.append))
    config = config_of(settings_of(endpoint, "late"))
    for _ in range(5):
        use_token(config, living(life_s=-1.0))
        assert token_of(config).value != "e30.handed.over"
    assert len(endpoint.requests) == 1
    assert len(waited) == 1
    assert 0 <= waited[0] <= 2


def test_where_no_token_is_needed_none_is_made() -> None:
    config = config_of({"bootstrap.servers": "h:1"})
    assert token_for_tasks(config, {}, "subscribe=t") is None
    use_token(config, living())
    password = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    assert config_of({"bootstrap.servers": "h:1", **password, "sasl.password": "p"}).security.current_token() is None


def test_a_token_that_does_not_tell_when_it_expires_stays_with_who_fetched_it(tmp_path: Path) -> None:
    path = tmp_path / "opaque"
    path.write_text("opaque")
    config = config_of(file_settings(str(path)))
    assert token_of(config).expires_at_s is None
    assert token_for_tasks(config, {}, "subscribe=t") is None


def test_no_token_is_the_users_error(endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKALITE_OAUTHBEARER_ALLOWED_URLS")
    settings = settings_of(endpoint, "refused")
    with pytest.raises(SparkConditionError) as refused:
        token_for_tasks(config_of(settings), settings, "subscribe=t")
    line = str(refused.value).splitlines()[-1]
    assert line.startswith("[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=OAUTHBEARER: ")
    assert "kafka.sasl.oauthbearer.token.endpoint.url=" in line
    assert "KAFKALITE_OAUTHBEARER_ALLOWED_URLS does not list this URL" in line


def test_no_text_of_a_task_shows_its_token() -> None:
    task = ReadTask((), living("e30.canary.x"))
    assert "canary" not in repr(task) + str(vars(task))


# Tokens in files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "shipped"
    directory.mkdir()
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(directory))
    return directory


def file_settings(path: str) -> dict[str, str]:
    return {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.token.file": path,
    }


def test_a_shipped_token_warns_with_its_expiry(shipped: Path, caplog: pytest.LogCaptureFixture) -> None:
    # {"exp":4102444800}, which is the year 2100
    (shipped / "jwt").write_text("e30.eyJleHAiOjQxMDI0NDQ4MDB9.canary")
    with caplog.at_level(logging.WARNING):
        reading_config(file_settings("/nowhere/jwt"))
        reading_config(file_settings("/nowhere/jwt"))
    assert caplog.text.count(f"{shipped}/jwt is the copy that Spark has shipped, which is never renewed") == 1
    assert "its token expires at 2100-01-01T00:00:00Z" in caplog.text
    assert "canary" not in caplog.text


def test_a_token_from_the_driver_serves_where_there_is_no_file(shipped: Path) -> None:
    settings = file_settings("/nowhere/missing")
    config = reading_config(settings, living())
    assert token_of(config.client).value == "e30.handed.over"
    with pytest.raises(KafkaliteError):
        reading_config(file_settings("/nowhere/another"))


def test_a_file_at_its_path_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "jwt"
    path.write_text("e30.e30.first")
    config = reading_config(file_settings(str(path)))
    assert token_of(config.client).value == "e30.e30.first"
    path.write_text("e30.e30.second")
    assert token_of(config.client).value == "e30.e30.second"
