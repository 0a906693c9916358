"""The source and the sink at secured listeners of Apache Kafka, in the session of the tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs import hadoop_load, replay
from spark_kafkalite.spark import fetch_token
from tests.lab.apache_kafka import properties_text
from tests.lab.certificates import STORE_PASSWORD, Authority
from tests.lab.secure_kafka import (
    ALICE,
    BOB,
    OAUTHBEARER,
    PLAIN,
    SCRAM_256,
    SCRAM_512,
    SecuredListener,
    SecureKafka,
    jaas,
)
from tests.lab.token_endpoint import HttpAnswer, TokenEndpoint
from tests.patience import wait_until
from tests.seeds import SOAK

from .job_runs import BY_TASKS
from .topics import Topics, await_end, last_line

pytestmark = pytest.mark.kafka

_COUNTER = itertools.count()
WRONG_JAAS = jaas(SCRAM_512, username=ALICE.name, password="wrong-canary")


def options_of(client: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in client.items()}


@pytest.fixture
def topics(secure_kafka: SecureKafka, spark: SparkSession) -> Iterator[Topics]:
    """Topics on the secured cluster, made and filled through its open listener."""
    with Topics(secure_kafka.bootstrap, spark, f"secured{next(_COUNTER)}") as made:
        yield made


def ways_in(kafka: SecureKafka) -> dict[str, dict[str, str]]:
    """Return client settings that differ in how they log in and in the form of their keys."""
    certificate = kafka.authority.issue(ALICE.name)
    return {
        "SCRAM over TLS": kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512),
        "user and password": {
            **kafka.client_settings(SecuredListener.SASL_PLAINTEXT),
            "sasl.mechanism": PLAIN,
            "sasl.username": ALICE.name,
            "sasl.password": ALICE.password,
        },
        "client certificate in PKCS12": {
            **kafka.client_settings(SecuredListener.SSL),
            "bootstrap.servers": kafka.address(SecuredListener.MTLS.listener_name),
            "ssl.keystore.location": str(certificate.pkcs12_file()),
            "ssl.keystore.password": STORE_PASSWORD,
        },
    }


_WAYS = ("SCRAM over TLS", "user and password", "client certificate in PKCS12")


@pytest.mark.parametrize("ways", [_WAYS, *([3 * (way,) for way in _WAYS] if SOAK else [])], ids="-".join)
def test_written_and_read_as_batch_and_as_stream(
    topics: Topics, secure_kafka: SecureKafka, spark: SparkSession, checkpoint: str, ways: tuple[str, ...]
) -> None:
    """A way in for each use; the soak has each use by each way."""
    written, read, streamed = (options_of(ways_in(secure_kafka)[way]) for way in ways)
    topic = topics.new(2)
    spark.range(500).selectExpr("CAST(id AS STRING) AS value").repartition(2).write.format("kafkalite").options(
        **written, topic=topic
    ).mode("append").save()
    expected = sorted(str(number) for number in range(500))
    # The bootstrap address is among the options that are given.
    given: dict[str, Any] = dict(read)
    assert sorted(topics.values(topic, **given)) == expected
    given = dict(streamed)
    assert sorted(topics.run(topics.stream(topic, **given), checkpoint)) == expected


def test_a_stream_writes(topics: Topics, secure_kafka: SecureKafka, tmp_path: Path) -> None:
    given: dict[str, Any] = options_of(secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_256))
    source, target = topics.new(), topics.new()
    topics.fill(source, range(100))
    copied = topics.stream(source, **given).select("value").writeStream.format("kafkalite")
    query = (
        copied.options(**given, topic=target, checkpointLocation=str(tmp_path / "copy"))
        .trigger(availableNow=True)
        .start()
    )
    await_end(query)
    assert topics.values(target) == [str(number) for number in range(100)]


# Refusals -----------------------------------------------------------------------------------------------------------


def wrong_doors(kafka: SecureKafka, directory: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Return settings that are refused, and what the last line of the error begins with and names."""
    scram = kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512)
    tls = kafka.client_settings(SecuredListener.SSL)
    other = Authority(directory, "somebody")
    return {
        "wrong password": (
            scram | {"sasl.jaas.config": WRONG_JAAS},
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=SCRAM-SHA-512: ... kafka.sasl.jaas.config",
        ),
        "wrong password in clear": (
            kafka.client_settings(SecuredListener.SASL_PLAINTEXT)
            | {"sasl.mechanism": PLAIN, "sasl.username": ALICE.name, "sasl.password": "wrong-canary"},
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=PLAIN: ... kafka.sasl.",
        ),
        "mechanism not offered": (
            kafka.client_settings(SecuredListener.SASL_PLAINTEXT)
            | {"sasl.mechanism": "OAUTHBEARER", "sasl.token.file": str(_token_file(directory))},
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=OAUTHBEARER: ... PLAIN",
        ),
        "unknown authority": (
            tls | {"ssl.truststore.location": str(other.pem_file())},
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.security.protocol=SSL: ... kafka.ssl.truststore",
        ),
        "certificate expired": (
            kafka.client_settings(SecuredListener.EXPIRED),
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.security.protocol=SSL: ... expired",
        ),
        "certificate of another host": (
            kafka.client_settings(SecuredListener.WRONG_HOST),
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.security.protocol=SSL: ... "
            "kafka.ssl.endpoint.identification.algorithm",
        ),
        "no client certificate": (
            tls | {"bootstrap.servers": kafka.address(SecuredListener.MTLS.listener_name)},
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.security.protocol=SSL: ... kafka.ssl.keystore",
        ),
        "plaintext at a TLS port": (
            {"bootstrap.servers": kafka.address(SecuredListener.SSL.listener_name)},
            "[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers=127.0.0.1: ... kafka.security.protocol",
        ),
        "TLS at a plaintext port": (
            tls | {"bootstrap.servers": kafka.bootstrap},
            "[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers=127.0.0.1: ... kafka.security.protocol",
        ),
        "authentication where there is none": (
            scram | {"bootstrap.servers": kafka.address(SecuredListener.SSL.listener_name)},
            "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=SCRAM-SHA-512: ... kafka.security.protocol",
        ),
        "no rights": (
            kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512, BOB),
            "[KAFKALITE_AUTHORIZATION_FAILED] subscribe=secret-topic: ... DESCRIBE",
        ),
    }


def _token_file(directory: Path) -> Path:
    path = directory / "jwt"
    path.write_text("e30.e30.x")
    return path


@pytest.mark.parametrize(
    "door",
    [
        "wrong password",
        "wrong password in clear",
        "mechanism not offered",
        "unknown authority",
        "certificate expired",
        "certificate of another host",
        "no client certificate",
        "plaintext at a TLS port",
        "TLS at a plaintext port",
        "authentication where there is none",
        "no rights",
    ],
)
def test_a_wrong_door_is_one_line_after_one_attempt(
    secure_kafka: SecureKafka, spark: SparkSession, tmp_path: Path, door: str
) -> None:
    client, said = wrong_doors(secure_kafka, tmp_path)[door]
    begin, names = said.split(": ... ")
    reader = spark.read.format("kafkalite").options(**options_of(client), subscribe="secret-topic")
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        reader.option("fetchOffset.numRetries", 50).load()
    line = last_line(caught.value)
    assert line.startswith(begin)
    assert names in line
    assert "canary" not in str(caught.value)
    # An error that was tried again says how often; tests/unit/client/test_wrong_doors.py bounds the one attempt.
    assert "given up after" not in line
    assert "fetchOffset.numRetries" not in line


def test_a_write_with_a_wrong_password_is_an_error_of_the_plan(
    secure_kafka: SecureKafka, spark: SparkSession, tmp_path: Path
) -> None:
    client, _ = wrong_doors(secure_kafka, tmp_path)["wrong password"]
    writer = spark.sql("SELECT 'v' AS value").write.format("kafkalite").options(**options_of(client), topic="t")
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        writer.mode("append").save()
    assert last_line(caught.value).startswith(
        "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=SCRAM-SHA-512: broker 127.0.0.1:"
    )
    assert "canary" not in str(caught.value)


def test_a_right_that_is_missing_fails_the_task_and_is_named(
    topics: Topics, secure_kafka: SecureKafka, spark: SparkSession
) -> None:
    given: dict[str, Any] = options_of(secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512, BOB))
    topic = topics.new()
    topics.fill(topic, range(3))
    secure_kafka.allow(BOB, "Describe", resource=("topic", topic))
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        topics.read(topic, **given).count()
    line = last_line(caught.value)
    assert line.startswith(f"[KAFKALITE_AUTHORIZATION_FAILED] reading {topic}-0[")
    assert "READ" in line
    writer = spark.sql("SELECT 'v' AS value").write.format("kafkalite").options(**given, topic=topic)
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        writer.mode("append").save()
    line = last_line(caught.value)
    assert line.startswith(f"[KAFKALITE_AUTHORIZATION_FAILED] topic={topic}: ")
    assert "WRITE" in line


# Jobs ---------------------------------------------------------------------------------------------------------------


def test_a_job_with_a_file_of_settings(topics: Topics, secure_kafka: SecureKafka, tmp_path: Path) -> None:
    topic = topics.new()
    topics.fill(topic, range(20))
    config = tmp_path / "client.properties"
    config.touch(0o600)
    settings = secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512)
    address = settings.pop("bootstrap.servers")
    arguments = ["--bootstrap-server", address, "--topic", topic, "--command-config", str(config), "--json"]
    load = [*arguments, "--destination", str(tmp_path / "loaded"), *BY_TASKS]

    config.write_text(properties_text(settings | {"sasl.jaas.config": WRONG_JAAS}))
    failed = CliRunner().invoke(hadoop_load.main, load)
    assert failed.exit_code == 3
    (line,) = failed.output.splitlines()
    assert "refuses the credentials" in line
    assert "sasl.jaas.config" in line
    assert "canary" not in line

    config.write_text(properties_text(settings))
    done = CliRunner().invoke(hadoop_load.main, load)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == 20
    target = topics.new()
    done = CliRunner().invoke(replay.main, [*arguments, "--from-timestamp", "0", "--to-topic", target])
    assert done.exit_code == 0, done.output
    assert topics.values(target) == [str(number) for number in range(20)]
    written = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert ALICE.password not in written + done.output
    assert "jaas" not in written + done.output


# Delegation tokens --------------------------------------------------------------------------------------------------


def test_a_token_of_sparks_own_logs_in_until_it_is_revoked(
    topics: Topics, secure_kafka: SecureKafka, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    made = secure_kafka.delegation_token()
    _give_to_hadoops_user(spark, "main", made.token_id, made.hmac)
    path = tmp_path / "token"
    path.write_text(fetch_token(spark, "main"))
    topic = topics.new()
    topics.fill(topic, range(10))
    client = secure_kafka.client_settings(SecuredListener.REAUTHENTICATION) | {"sasl.mechanism": SCRAM_256}
    given: dict[str, Any] = {**options_of(client), "tokenFile": path}
    assert len(topics.values(topic, **given)) == 10
    with pytest.raises(ConfigError, match=r"cluster_id=other: .*it has some of main\); set spark.kafka.clusters.other"):
        fetch_token(spark, "other")

    query, values = topics.collect(topics.stream(topic, **given), checkpoint, {"processingTime": "200 milliseconds"})
    wait_until(lambda: len(values) == 10, "the ten records of the stream")
    secure_kafka.expire(made)
    with pytest.raises(StreamingQueryException) as caught:
        await_end(query)
    line = last_line(caught.value)
    assert line.startswith("[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=SCRAM-SHA-256: ")
    assert f"kafka.sasl.token.file={path}" in line
    assert made.hmac not in str(caught.value)


def _give_to_hadoops_user(spark: SparkSession, cluster_id: str, token_id: str, hmac: str) -> None:
    """Do as Spark does with the tokens that it obtains: KafkaTokenUtil.obtainToken."""
    jvm: Any = spark.sparkContext._jvm
    text = jvm.org.apache.hadoop.io.Text
    service = text(f"kafka.server.delegation.token.{cluster_id}")
    token = jvm.org.apache.hadoop.security.token.Token(
        token_id.encode(), hmac.encode(), text("KAFKA_DELEGATION_TOKEN"), service
    )
    jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().addToken(service, token)


# Tokens of an identity provider -------------------------------------------------------------------------------------


def token_options(kafka: SecureKafka, scope: str) -> dict[str, Any]:
    """Return options whose tokens are those of this test only: workers keep them, and ``scope`` tells them apart."""
    return options_of(
        kafka.client_settings(SecuredListener.SASL_SSL, OAUTHBEARER)
        | {
            "sasl.oauthbearer.token.endpoint.url": kafka.tokens.url,
            "sasl.oauthbearer.client.credentials.client.id": "client",
            "sasl.oauthbearer.client.credentials.client.secret": "secret",
            "sasl.oauthbearer.scope": scope,
        }
    )


def asked_for(tokens: TokenEndpoint, scope: str) -> int:
    """Return how many tokens of a scope were asked for: workers of other tests renew those that they hold."""
    return sum(request.form.get("scope") == scope for request in tokens.requests)


def test_however_many_tasks_the_driver_asks_for_their_token(topics: Topics, secure_kafka: SecureKafka) -> None:
    tasks = 60
    given = token_options(secure_kafka, "tasks")
    topic = topics.new()
    topics.fill(topic, range(tasks))
    frame = topics.read(topic, maxRecordsPerPartition=1, **given)
    assert frame.count() == tasks
    # .load() and the planning of the read, each in a process of its own.
    assert 1 <= asked_for(secure_kafka.tokens, "tasks") <= 2
    assert frame.rdd.getNumPartitions() == tasks


def test_a_stream_outlives_its_tokens_and_ends_with_the_last(
    topics: Topics, secure_kafka: SecureKafka, checkpoint: str
) -> None:
    tokens = secure_kafka.tokens
    given = token_options(secure_kafka, "stream")
    topic, lifetime_s = topics.new(), tokens.lifetime_s
    tokens.lifetime_s = 6.0
    try:
        query, values = topics.collect(
            topics.stream(topic, **given), checkpoint, {"processingTime": "200 milliseconds"}
        )
        sent: list[str] = []
        while asked_for(tokens, "stream") < 5:
            sent.append(f"{len(sent):05}")
            topics.fill(topic, sent[-1:])
            wait_until(lambda: len(values) >= len(sent), lambda: f"record {len(sent)} of the stream")
        assert query.isActive
        assert values == sent

        tokens.answer_always = HttpAnswer(401, b'{"error": "invalid_client"}')
        with pytest.raises(StreamingQueryException) as caught:
            await_end(query)
    finally:
        tokens.answer_always = None
        tokens.lifetime_s = lifetime_s
    line = last_line(caught.value)
    assert line.startswith("[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=OAUTHBEARER: ")
    assert f"kafka.sasl.oauthbearer.token.endpoint.url={tokens.url}: HTTP 401" in line
