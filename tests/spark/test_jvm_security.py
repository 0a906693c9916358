"""Spark's own JVM connector at secured listeners of our broker: it reads and writes, and is refused in Kafka's words.

Only collected on the PySpark that the connector's jars are of; see conftest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafkalite import Admin
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.lab.certificates import LOOPBACK, Authority
from tests.lab.secure_kafka import ALICE, BOB, OAUTHBEARER, PLAIN, SCRAM_512, jaas
from tests.lab.token_endpoint import TokenEndpoint
from tests.pool.names import own_numbers

from .topics import await_end

pytestmark = [pytest.mark.spark, pytest.mark.versions]

_NUMBERS: Final = own_numbers()
_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


class Secured(NamedTuple):
    """A broker where ALICE may do all and BOB nothing; ``ways`` are ALICE's options for each way in.

    The broker takes no tokens of ``stranger``.
    """

    authority: Authority
    stranger: TokenEndpoint
    ways: Mapping[str, dict[str, str]]
    admin: Admin


@pytest.fixture(scope="module")
def secured(
    spark: SparkSession, identity_provider: TokenEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "certificates", "ours")
    sasl, mutual = (f"127.0.0.1:{port}" for port in free_ports(2))
    users = " ".join(f'user_{user.name}="{user.password}"' for user in (ALICE, BOB))
    overrides = {
        "listeners": f"SASL_SSL://{sasl},MTLS://{mutual}",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,MTLS:SSL",
        "inter.broker.listener.name": "MTLS",
        "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM_512},{OAUTHBEARER}",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": identity_provider.jwks_url,
        "sasl.oauthbearer.expected.issuer": identity_provider.issuer,
        "sasl.oauthbearer.expected.audience": "kafka",
        "ssl.keystore.location": authority.issue("broker", *LOOPBACK).pem_file(),
        "ssl.truststore.location": authority.pem_file(),
        "listener.name.mtls.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ALICE.name}",
    }
    tls = {"security.protocol": "SASL_SSL", **trust(authority)}
    passwords = {
        mechanism: {**tls, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas_of(mechanism, ALICE.password)}
        for mechanism in (PLAIN, SCRAM_512)
    }
    token = {
        **tls,
        "sasl.mechanism": OAUTHBEARER,
        "sasl.jaas.config": jaas(OAUTHBEARER, clientId="client", clientSecret="secret"),
        "sasl.login.callback.handler.class": _HANDLER,
        "sasl.oauthbearer.token.endpoint.url": identity_provider.url,
    }
    certificate = {"security.protocol": "SSL", **trust(authority), **key_of(authority, ALICE.name)}
    stranger = TokenEndpoint(subject=ALICE.name)
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty(_ALLOWED_URLS, f"{identity_provider.url},{stranger.url}")
    with (
        BrokerProcess(directory / "data", overrides=overrides),
        stranger,
        Admin({"bootstrap.servers": mutual, **certificate}) as admin,
    ):
        for user in (ALICE, BOB):
            admin.set_password(user.name, user.password, mechanism=SCRAM_512)
        given = {name: {"bootstrap.servers": sasl, **each} for name, each in {**passwords, OAUTHBEARER: token}.items()}
        given["mTLS"] = {"bootstrap.servers": mutual, **certificate}
        ways = {way: {f"kafka.{name}": value for name, value in each.items()} for way, each in given.items()}
        yield Secured(authority, stranger, ways, admin)


def trust(authority: Authority) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.pem_file())}


def key_of(authority: Authority, name: str) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(authority.issue(name).pem_file())}


def jaas_of(mechanism: str, password: str, user: str = ALICE.name) -> str:
    return jaas(mechanism, username=user, password=password)


def new_topic(secured: Secured) -> str:
    topic = f"jvm-secured-{next(_NUMBERS)}"
    secured.admin.create_topic(topic, 1, 1)
    return topic


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(20).selectExpr("CAST(id AS STRING) AS value").coalesce(1)


def write(frame: DataFrame, options: Mapping[str, str], topic: str) -> None:
    frame.write.format("kafka").options(**options, topic=topic).mode("append").save()


def read(spark: SparkSession, options: Mapping[str, str], topic: str) -> list[str]:
    frame = spark.read.format("kafka").options(**options, subscribe=topic).load().orderBy("offset")
    return [bytes(row.value).decode() for row in frame.collect()]


def copy(spark: SparkSession, options: Mapping[str, str], topic: str, target: str, checkpoint: Path) -> None:
    """Write what a stream reads to another topic, up to where the first one ends."""
    stream = spark.readStream.format("kafka").options(**options, subscribe=topic, startingOffsets="earliest").load()
    writer = stream.select("value").writeStream.format("kafka").options(**options, topic=target)
    await_end(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())


@pytest.mark.parametrize("way", [PLAIN, SCRAM_512, OAUTHBEARER, "mTLS"])
def test_written_and_read_as_batch_and_as_stream(
    spark: SparkSession, secured: Secured, tmp_path: Path, way: str
) -> None:
    options, topic, target = secured.ways[way], new_topic(secured), new_topic(secured)
    write(rows(spark), options, topic)
    copy(spark, options, topic, target, tmp_path)
    assert read(spark, options, topic) == read(spark, options, target) == [str(number) for number in range(20)]


def refusals(secured: Secured, directory: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Return options that are refused, and the error of Kafka that Spark ends with."""
    other = Authority(directory, "other")
    scram, mutual = secured.ways[SCRAM_512], secured.ways["mTLS"]
    not_trusted = {"kafka.ssl.truststore.location": str(other.pem_file())}
    key = {f"kafka.{name}": value for name, value in key_of(other, ALICE.name).items()}
    invalid = "SaslAuthenticationException: Authentication failed during authentication due to invalid credentials"
    return {
        "wrong password of PLAIN": (
            {**secured.ways[PLAIN], "kafka.sasl.jaas.config": jaas_of(PLAIN, "wrong-canary")},
            "SaslAuthenticationException: Authentication failed: Invalid username or password",
        ),
        "wrong password of SCRAM": (
            {**scram, "kafka.sasl.jaas.config": jaas_of(SCRAM_512, "wrong-canary")},
            f"{invalid} with SASL mechanism {SCRAM_512}",
        ),
        "token of a stranger": (
            {**secured.ways[OAUTHBEARER], "kafka.sasl.oauthbearer.token.endpoint.url": secured.stranger.url},
            'SaslAuthenticationException: {"status":"invalid_token"}',
        ),
        "wrong authority under SASL": ({**scram, **not_trusted}, "SslAuthenticationException: SSL handshake failed"),
        "wrong authority": ({**mutual, **not_trusted}, "SslAuthenticationException: SSL handshake failed"),
        "wrong client certificate": ({**mutual, **key}, "SslAuthenticationException: "),
        "no right": (
            {**scram, "kafka.sasl.jaas.config": jaas_of(SCRAM_512, BOB.password, BOB.name)},
            "TopicAuthorizationException: ",
        ),
    }


@pytest.mark.parametrize("act", ["read", "write", pytest.param("stream", marks=pytest.mark.soak)])
def test_a_refusal_ends_it_with_kafkas_error(spark: SparkSession, secured: Secured, tmp_path: Path, act: str) -> None:
    """Nothing hangs: the test's own limit of time would end it."""
    topic = new_topic(secured)
    for case, (options, error) in refusals(secured, tmp_path).items():
        with pytest.raises(Exception, match=re.escape(f"org.apache.kafka.common.errors.{error}")) as caught:
            if act == "read":
                read(spark, options, topic)
            elif act == "write":
                write(rows(spark), options, topic)
            else:
                copy(spark, options, topic, topic, tmp_path / case)
        assert "canary" not in str(caught.value), case
    (end,) = secured.admin.list_offsets({TopicPartition(topic, 0): LATEST_TIMESTAMP}).values()
    assert end is not None and end.offset == 0
