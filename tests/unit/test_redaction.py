"""What counts as a secret, by its name or by its looks, and what does not."""

import pickle

import pytest

from spark_kafkalite.client.config import ADMIN_SETTINGS, CONSUMER_SETTINGS, PRODUCER_SETTINGS
from spark_kafkalite.redaction import REDACTED, ShownSettings, is_secret, shown_name, shown_value
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from tests import canary


@pytest.mark.parametrize("prefix", ["", "kafka.", "kafkashaded."])
@pytest.mark.parametrize("setting", SECURITY_SETTINGS, ids=lambda setting: setting.name)
def test_a_declared_setting_is_secret_by_its_name_when_its_kind_says_so(setting, prefix):
    assert is_secret(prefix + setting.name, "x") == (setting.kind == "password")


def test_no_other_setting_of_a_client_is_secret_by_its_name():
    for setting in (*PRODUCER_SETTINGS, *CONSUMER_SETTINGS, *ADMIN_SETTINGS):
        if setting.kind != "password":
            assert not is_secret(setting.name, "1"), setting.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.sasl.jass.config", 'x required username="a" password="b";'),
        ("sasl.passwrd", canary.PLAIN_JAAS),
        ("subscribe", "x password=y"),
        ("topic", "-----BEGIN PRIVATE KEY-----"),
        ("sasl.token.file", canary.TOKEN),
        ("sasl.token.file", canary.SECRETS["delegation token"]),
        ("ssl.keystore.location", canary.KEY),
        ("sasl.username", canary.OAUTH_JAAS),
        ("client.id", "Bearer abcdef"),
        ("sasl.oauthbearer.token.endpoint.url", "https://me:hunter2@idp.example/token"),
        ("kafka.token", "x"),
        ("KAFKALITE_TOKEN", "x"),
        ("zookeeper.digest", "user:x"),
        ("aws.secret.access.key", "x"),
        ("aws_access_key_id", "x"),
        ("delegation.hmac", "x"),
        ("credentials", "x"),
        ("ssl.private.key", "x"),
        ("sasl.client_secret", "x"),
        ("Authorization", "x"),
        ("subscribe", '{"password": "x"}'),
    ],
)
def test_secrets(name, value):
    assert shown_value(name, value) == REDACTED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subscribe", "keys"),
        ("subscribe", "tokens"),
        ("kafka.key.serializer", "x.StringSerializer"),
        ("kafka.ssl.keystore.location", "/run/secrets/kafka/client.jks"),
        ("sasl.token.file", "/var/run/secrets/token"),
        ("tokenfile", "token.txt"),
        ("sasl.token.provider", "company.tokens:kafka_token"),
        ("sasl.oauthbearer.token.endpoint.url", "https://idp.example/oauth2/token"),
        ("kafka.bootstrap.servers", "a.example:9092,[::1]:9093"),
        ("startingOffsets", '{"events":{"0":12,"1":-2}}'),
    ],
)
def test_what_a_reader_needs_is_shown(name, value):
    assert shown_value(name, value) == value


def test_long_values_are_cut_and_all_are_on_one_line():
    assert len(shown_value("assign", "x" * 10_000)) < 400
    assert shown_value("assign", "a\n b") == "a b"


@pytest.mark.parametrize("secret", ["PLAIN JAAS line", "token", "delegation token", "key", "half a JAAS line"])
def test_a_secret_in_the_place_of_a_name(secret):
    assert shown_name(canary.SECRETS[secret]) == REDACTED
    assert shown_name("linger.msec") == "linger.msec"


def test_settings_as_a_whole_hide_their_secrets_and_keep_them():
    settings = ShownSettings({"sasl.password": canary.PASSWORD, "acks": "all", canary.PLAIN_JAAS: "x"})
    for text in (repr(settings), str(settings), f"{settings}"):
        assert canary.leaks(text) == []
        assert "sasl.password" in text
        assert "all" in text
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings["sasl.password"] == canary.PASSWORD
