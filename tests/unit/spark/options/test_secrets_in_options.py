"""Known secrets in every option of the source and the sink: no error, warning or object shows them."""

from __future__ import annotations

import logging
import pickle

import pyarrow as pa
import pytest
import trustme
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.security.settings import JVM_ONLY_SETTINGS, SECURITY_SETTINGS
from spark_kafkalite.spark.options.declarations import READER_OPTIONS, WRITER_OPTIONS
from spark_kafkalite.spark.options.options import reader_options, writer_options
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.read_plan import ReadPlan
from spark_kafkalite.spark.sink.writer import KafkaliteBatchWriter, KafkaliteStreamWriter
from spark_kafkalite.spark.source import KafkaliteDataSource
from tests import canary
from tests.seeds import SOAK

SECRET_SETTINGS = [setting for setting in SECURITY_SETTINGS if setting.kind == "password"]
LOOKS_LIKE_ONE = [name for name in canary.SECRETS if name not in ("password", "client secret")]
IN_ITS_OPTION = ["password", "PLAIN JAAS line", "key", "delegation token"]
PROTOCOLS = [("PLAINTEXT", "PLAIN"), ("SSL", "PLAIN"), ("SASL_PLAINTEXT", "SCRAM-SHA-256")]
ROWS = StructType([StructField("value", BinaryType())])


@pytest.fixture(scope="module")
def trust():
    """A certificate to trust: to load those of the system takes a while."""
    return trustme.CA().cert_pem.bytes().decode()


@pytest.fixture
def said(caplog):
    """Give options to all that takes them, and collect what it says."""
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []

    def take(options: dict[str, str]) -> list[str]:
        reading = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **options}
        writing = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **options}
        for make in (
            lambda: KafkaliteDataSource(reading),
            lambda: KafkaliteDataSource(reading).reader(ROWS),
            lambda: KafkaliteDataSource(reading).streamReader(ROWS),
            lambda: reader_options(reading),
            lambda: ReadPlan.of(reader_options(reading), pa.schema([])),
            lambda: KafkaliteBatchReader(reader_options(reading), ROWS),
            lambda: KafkaliteBatchWriter(writer_options(writing), ROWS),
            lambda: KafkaliteStreamWriter(writer_options(writing), ROWS),
        ):
            try:
                made = make()
            except KafkaliteError as error:
                texts.extend(canary.exception_texts(error))
                # As Spark sends it from one Python process to another.
                texts.extend(canary.exception_texts(pickle.loads(pickle.dumps(error))))
            else:
                texts.extend(canary.object_texts(made, pickle.loads(pickle.dumps(made))))
        return texts

    yield take
    texts += [caplog.text, *(repr(record.args) for record in caplog.records)]
    assert [leak for text in texts for leak in canary.leaks(text)] == []


# What the client makes of others is tried in its own tests.
@pytest.mark.parametrize("secret", IN_ITS_OPTION)
@pytest.mark.parametrize("setting", SECRET_SETTINGS, ids=lambda setting: setting.name)
def test_a_secret_in_its_option(said, trust, setting, secret):
    name = f"kafka.{setting.name}"
    turn = SECRET_SETTINGS.index(setting) + IN_ITS_OPTION.index(secret)
    for protocol, mechanism in PROTOCOLS if SOAK else [PROTOCOLS[turn % len(PROTOCOLS)]]:
        options = {"kafka.security.protocol": protocol, "kafka.sasl.mechanism": mechanism}
        if not setting.name.startswith("ssl.truststore"):
            options["kafka.ssl.truststore.certificates"] = trust
        said({**options, name: canary.SECRETS[secret]})
        said({**options, name.upper().replace("KAFKA.", "kafka."): canary.SECRETS[secret]})


@pytest.mark.parametrize("secret", canary.SECRETS)
@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.pasword",
        "kafka.sasl.jass.config",
        "kafka.ssl.keystore.passwd",
        "sasl.jaas.config",
        "kafka.oauth.secret",
        "saslPassword",
        "token",
        "kafka.token",
        "kafka.sasl.token.hmac",
        "kafka.delegation.token",
    ],
)
def test_a_secret_under_a_name_that_is_not_known(said, name, secret):
    assert said({name: canary.SECRETS[secret]})


NAMES = [
    *(f"kafka.{setting.name}" for setting in SECURITY_SETTINGS),
    *(f"kafka.{name}" for name in sorted(JVM_ONLY_SETTINGS)),
    *(setting.name for group in (READER_OPTIONS, WRITER_OPTIONS) for setting in group),
    "subscripe",
    "path",
    "kafka.client.id",
    "kafka.acks",
    "kafka.linger.ms",
    "kafka.auto.offset.reset",
    "exactlyOnce",
]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        (name, secret)
        for at, name in enumerate(NAMES)
        for turn, secret in enumerate(LOOKS_LIKE_ONE)
        # In the soak each in each, else two or three in each.
        if SOAK or (at + turn) % 3 == 0
    ],
)
def test_what_looks_like_a_secret_in_any_option(said, name, secret):
    said({name: canary.SECRETS[secret]})


@pytest.mark.parametrize("secret", LOOKS_LIKE_ONE)
def test_a_secret_where_a_name_should_be(said, secret):
    said({canary.SECRETS[secret]: "x"})
    said({f"kafka.{canary.SECRETS[secret]}": "x"})


def test_the_search_can_fail(caplog):
    options = reader_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.client.id": canary.PASSWORD})
    assert any(map(canary.leaks, canary.object_texts(options)))
