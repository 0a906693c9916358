"""Our broker accepts the tokens of an identity provider from the clients of others and ours (OAUTHBEARER)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiokafka
import aiokafka.abc
import aiokafka.errors
import pytest

from spark_kafkalite import Admin
from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from spark_kafkalite.security.http_request import URLS_VARIABLE
from tests.interop.security.aiokafka_client import sent_by_aiokafka
from tests.interop.security.kafka_python_client import asked_by_kafka_python
from tests.interop.security.lasting_sessions import wait_for_lasting_sessions
from tests.interop.security.numbered_load import NumberedLoad
from tests.interop.security.test_reference_clients import reason_of_refusal
from tests.interop.support.sasl_broker import Endpoint, words_of_kafka, words_of_librdkafka, words_of_python
from tests.lab.apache_kafka import kafka_tool, properties_text
from tests.lab.certificates import LOOPBACK, Authority
from tests.lab.token_endpoint import BEGINNINGS, TokenEndpoint
from tests.patience import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

USER: Final = "carol"
SECRET: Final = "carol's secret"
_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_MECHANISM: Final = "OAUTHBEARER"


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenEndpoint]:
    with TokenEndpoint(client_id=USER, client_secret=SECRET) as running:
        yield running


class Lab(NamedTuple):
    """A broker that takes the tokens of the issuer on two listeners; ``endpoints`` by the name of the listener."""

    broker: BrokerProcess
    endpoints: dict[str, Endpoint]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, issuer: TokenEndpoint) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("broker")
    authority = Authority(directory / "certificates", "ours")
    clear, tls = (f"127.0.0.1:{port}" for port in free_ports(2))
    overrides = {
        "listeners": f"SASL_PLAINTEXT://{clear},SASL_SSL://{tls}",
        "ssl.keystore.location": authority.issue("broker", *LOOPBACK).pem_file(),
        "sasl.enabled.mechanisms": _MECHANISM,
        "sasl.oauthbearer.jwks.endpoint.url": issuer.jwks_url,
        "sasl.oauthbearer.expected.issuer": issuer.issuer,
        "sasl.oauthbearer.expected.audience": "kafka,other",
        "sasl.oauthbearer.clock.skew.seconds": 0,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{USER}",
        "logging.level": "DEBUG",
    }
    endpoints = {"SASL_PLAINTEXT": Endpoint(clear), "SASL_SSL": Endpoint(tls, authority.pem_file())}
    with BrokerProcess(directory / "data", overrides=overrides) as running:
        words = words_of_kafka(endpoints["SASL_SSL"], _MECHANISM)
        with Admin({**words, "sasl.token.provider": provider(issuer)}) as admin:
            admin.create_topic("sent", 1, 1)
        yield Lab(running, endpoints)
        log = running.stderr_path.read_text()
        assert "Traceback" not in log
        assert not any(beginning in log for beginning in BEGINNINGS)


def provider(issuer: TokenEndpoint) -> str:
    """Return the name of a function that returns a token, for sasl.token.provider."""
    _TOKENS["good"] = issuer.token
    return f"{__name__}:good_token"


_TOKENS: dict[str, Callable[[], str]] = {}


def good_token() -> str:
    return _TOKENS["good"]()


def ours(endpoint: Endpoint, token: str, directory: Path) -> str | None:
    file = directory / "token"
    file.write_text(token, encoding="ascii")
    try:
        with Admin({**words_of_kafka(endpoint, _MECHANISM), "sasl.token.file": str(file)}) as admin:
            assert "sent" in admin.list_topics()
    except SaslAuthenticationFailed as error:
        return str(error)
    return None


def librdkafka(endpoint: Endpoint, token: str, directory: Path) -> str | None:
    words = words_of_librdkafka(endpoint, _MECHANISM)
    return reason_of_refusal({**words, "oauth_cb": lambda _: (token, time.time() + 60)})


def kafka_python(endpoint: Endpoint, token: str, directory: Path) -> str | None:
    from kafka.net.sasl.oauth import AbstractTokenProvider  # not before: it warns

    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return token

    return asked_by_kafka_python({**words_of_python(endpoint, _MECHANISM), "sasl_oauth_token_provider": Provider()})


def aio(endpoint: Endpoint, token: str, directory: Path) -> str | None:
    class Provider(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return token

    return sent_by_aiokafka({**words_of_python(endpoint, _MECHANISM), "sasl_oauth_token_provider": Provider()})


@pytest.mark.parametrize("listener", ["SASL_SSL", pytest.param("SASL_PLAINTEXT", marks=pytest.mark.soak)])
@pytest.mark.parametrize("client", [ours, librdkafka, kafka_python, aio])
def test_a_token_is_taken_and_a_bad_one_is_not(
    lab: Lab, issuer: TokenEndpoint, tmp_path: Path, client: Callable[..., str | None], listener: str
) -> None:
    endpoint = lab.endpoints[listener]
    assert client(endpoint, issuer.token(), tmp_path) is None
    assert client(endpoint, issuer.token(aud=["x", "other"]), tmp_path) is None
    with TokenEndpoint(subject=USER) as forger, TokenEndpoint(subject=USER, signed=False) as unsigned:
        bad = {
            "forged": forger.token(iss=issuer.issuer),
            "expired": issuer.token(iat=int(time.time()) - 7200, exp=int(time.time()) - 3600),
            "for others": issuer.token(aud="others"),
            "by others": issuer.token(iss="others"),
            "unsigned": unsigned.token(iss=issuer.issuer),
        }
    # These two try again and again, and the broker answers an address with many failures late.
    names = ["forged"] if client in (kafka_python, aio) else list(bad)
    for name in names:
        reason = client(endpoint, bad[name], tmp_path)
        assert reason is not None, name
        assert client in (kafka_python, aio) or "invalid_token" in reason


def java(settings: dict[str, str], directory: Path, issuer: TokenEndpoint) -> subprocess.CompletedProcess[str]:
    config = directory / "client.properties"
    config.write_text(properties_text(settings))
    return kafka_tool(
        "org.apache.kafka.tools.TopicCommand", "--list",
        "--bootstrap-server", settings["bootstrap.servers"], "--command-config", str(config),
        jvm_options=(*SHORT_LIVED_OPTIONS, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}"),
        check=False,
    )  # fmt: skip


@pytest.mark.kafka
def test_javas_client_gets_its_token_itself(lab: Lab, issuer: TokenEndpoint, tmp_path: Path) -> None:
    settings = {
        **words_of_kafka(lab.endpoints["SASL_SSL"], _MECHANISM),
        "sasl.oauthbearer.token.endpoint.url": issuer.url,
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f'{_MODULE} clientId="{USER}" clientSecret="{SECRET}" extension_tenant="x";',
    }
    done = java(settings, tmp_path, issuer)
    assert "sent" in done.stdout.split(), done.stderr
    with TokenEndpoint(client_id=USER, client_secret=SECRET) as forger:
        refused = java({**settings, "sasl.oauthbearer.token.endpoint.url": forger.url}, tmp_path, forger)
    assert refused.returncode != 0
    assert 'SaslAuthenticationException: {"status":"invalid_token"}' in refused.stdout + refused.stderr


def test_clients_live_longer_than_their_tokens(
    lab: Lab, issuer: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends a session with its token, so clients authenticate again with the next one."""
    import confluent_kafka

    # Clients take the next token in the last fifth, which must be longer than the second between two authentications.
    life_s = 8
    monkeypatch.setenv(URLS_VARIABLE, issuer.url)
    monkeypatch.setattr(issuer, "lifetime_s", life_s)
    endpoint = lab.endpoints["SASL_SSL"]
    load = NumberedLoad(
        {
            **words_of_kafka(endpoint, _MECHANISM),
            "sasl.oauthbearer.token.endpoint.url": issuer.url,
            "sasl.oauthbearer.client.credentials.client.id": USER,
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
            "sasl.login.refresh.min.period.seconds": "0",
            "sasl.login.refresh.buffer.seconds": "0",
        },
        "many-tokens",
        pause_s=0.05,
    )
    producer: Any = confluent_kafka.Producer(
        {
            **words_of_librdkafka(endpoint, _MECHANISM),
            "oauth_cb": lambda _: (issuer.token(), time.time() + life_s - 1),
        }
    )

    def produce() -> None:
        for _ in range(15 * life_s):
            producer.produce("sent", b"x")
            assert producer.flush(60) == 0
            producer.poll(0.1)

    load.start()
    try:
        wait_for_lasting_sessions(lab.broker, produce)
    finally:
        load.finish()
    assert load.sent and load.answers


def test_keys_that_change_and_an_issuer_that_is_away(tmp_path: Path) -> None:
    """A broker starts without the issuer, lets nobody in, and does so with a new key as soon as it is published."""
    (port,) = free_ports(1)
    keys = tmp_path / "keys.json"
    with TokenEndpoint(subject=USER) as first, TokenEndpoint(subject=USER) as second:

        def publish(*issuers: TokenEndpoint) -> None:
            named = [{**each.jwks()["keys"][0], "kid": f"k{number}"} for number, each in enumerate(issuers)]
            keys.with_suffix(".new").write_text(json.dumps({"keys": named}))
            keys.with_suffix(".new").rename(keys)

        publish(first)
        overrides = {
            "listeners": f"URL://127.0.0.1:{port},FILE://127.0.0.1:{free_ports(1)[0]}",
            "listener.security.protocol.map": "URL:SASL_PLAINTEXT,FILE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.url.sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:1/jwks",
            "listener.name.file.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": 1000,
            "sasl.oauthbearer.allow.unverified.issuer": "true",
            "sasl.oauthbearer.expected.audience": "kafka",
        }
        with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
            assert "invalid_token" in str(ours(Endpoint(broker.bootstrap), first.token(), tmp_path))
            file = Endpoint(overrides["listeners"].partition("FILE://")[2])

            def accepts(token: str) -> bool:
                settings = {**words_of_kafka(file, _MECHANISM), "sasl.token.file": str(tmp_path / "token")}
                (tmp_path / "token").write_text(token, encoding="ascii")
                try:
                    with Admin(settings) as admin:
                        admin.list_topics()
                except SaslAuthenticationFailed:
                    return False
                return True

            assert accepts(first.token(headers={"kid": "k0"}))
            publish(first, second)
            wait_until(lambda: accepts(second.token(headers={"kid": "k1"})), "the new key is known")
            assert accepts(first.token(headers={"kid": "k0"}))
