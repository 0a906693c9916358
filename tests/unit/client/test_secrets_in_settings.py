"""Known secrets in every security setting, rightly and wrongly given: no error, warning or object shows them."""

from __future__ import annotations

import logging

import pytest
import trustme

from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.client.config import (
    ADMIN_SETTINGS,
    CONSUMER_SETTINGS,
    PRODUCER_SETTINGS,
    admin_config,
    consumer_config,
    producer_config,
)
from spark_kafkalite.client.registry_consumer.config import connector_config
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.processes.java_process import JavaToolFailed
from spark_kafkalite.registry.served.listener import RegistryListener
from spark_kafkalite.security.settings import JVM_ONLY_SETTINGS, SECURITY_SETTINGS
from spark_kafkalite.settings import Setting
from tests import canary
from tests.lab.certificates import STORE_PASSWORD, Authority
from tests.seeds import SOAK

SECRET_SETTINGS = [setting for setting in SECURITY_SETTINGS if setting.kind == "password"]
CONFIGS = {
    "producer": producer_config,
    "consumer": consumer_config,
    "admin": admin_config,
    "connector": lambda settings, keywords: connector_config({"group.id": "g", **settings}, keywords),
}
COMBINATIONS = [("PLAINTEXT", "PLAIN"), ("SSL", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512")]
COMBINATIONS += [("SASL_PLAINTEXT", each) for each in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI", "nonsense")]
LOOKS_LIKE_ONE = [name for name in canary.SECRETS if name not in ("password", "client secret")]


class Seen:
    """Everything that was said while settings were taken."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.texts: list[str] = []
        self._log = caplog
        caplog.set_level(logging.DEBUG)

    def take(self, make, settings: dict[str, object]) -> object:
        made: object = None
        try:
            made = make(settings)
        except (KafkaliteError, NotImplementedError) as error:
            self.texts += canary.exception_texts(error)
        self.texts += canary.object_texts(made)
        return made

    def check(self) -> None:
        self.texts += [self._log.text, *(repr(record.args) for record in self._log.records)]
        assert [leak for text in self.texts for leak in canary.leaks(text)] == []


@pytest.fixture
def seen(caplog):
    return Seen(caplog)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture(scope="module")
def trust():
    """A certificate to trust: to load those of the system takes a while."""
    return trustme.CA().cert_pem.bytes().decode()


def given(name: str, secret: str, **more: str) -> dict[str, object]:
    return {
        "bootstrap.servers": "127.0.0.1:1",
        **{key.replace("_", "."): value for key, value in more.items()},
        name: secret,
    }


@pytest.mark.parametrize("secret", canary.SECRETS)
@pytest.mark.parametrize("setting", SECRET_SETTINGS, ids=lambda setting: setting.name)
def test_a_secret_in_its_setting(seen, trust, setting, secret):
    # In the soak each with each, else each setting and each secret with each of them.
    turn = SECRET_SETTINGS.index(setting) + list(canary.SECRETS).index(secret)
    for protocol, mechanism in COMBINATIONS if SOAK else COMBINATIONS[turn % 4 :: 4]:
        more = {"security_protocol": protocol, "sasl_mechanism": mechanism}
        if setting.name == "sasl.password":
            more["sasl_username"] = "alice"
        if not setting.name.startswith("ssl.truststore"):
            more["ssl_truststore_certificates"] = trust
        if setting.name.startswith("ssl.keystore.c"):
            more["ssl_keystore_key"] = canary.KEY
        value = canary.SECRETS[secret]
        seen.take(lambda settings: producer_config(settings, {}), given(setting.name, value, **more))
    seen.check()


@pytest.mark.parametrize("client", CONFIGS)
def test_all_secrets_at_once(seen, client):
    secrets = {"sasl.username": "alice"} | {setting.name: canary.PASSWORD for setting in SECRET_SETTINGS}
    for protocol, mechanism in COMBINATIONS:
        settings = {**given("client.id", "c"), **secrets, "security.protocol": protocol, "sasl.mechanism": mechanism}
        seen.take(lambda settings: CONFIGS[client](settings, {}), settings)
        del settings["sasl.jaas.config"]
        seen.take(lambda settings: CONFIGS[client](settings, {}), settings)
    seen.check()


@pytest.mark.parametrize("secret", LOOKS_LIKE_ONE)
@pytest.mark.parametrize("setting", SECURITY_SETTINGS, ids=lambda setting: setting.name)
def test_what_looks_like_a_secret_in_a_setting_that_is_none(seen, setting, secret):
    seen.take(lambda settings: producer_config(settings, {}), given(setting.name, canary.SECRETS[secret]))
    if setting.kind != "password":
        assert any(setting.name in text for text in seen.texts)
    seen.check()


@pytest.mark.parametrize("secret", canary.SECRETS)
@pytest.mark.parametrize(
    "name",
    [
        "sasl.pasword",
        "sasl.jaas.confg",
        "sasl.oauthbearer.clientsecret",
        "ssl.keystore.keys",
        "ssl.truststore.pasword",
        "sasl.token",
        "sasl.login.callback.handler.class",
        "delegation.hmac",
    ],
)
def test_a_secret_under_a_name_that_is_not_known(seen, name, secret):
    for make in CONFIGS.values():
        seen.take(lambda settings, make=make: make(settings, {}), given(name, canary.SECRETS[secret]))
    for group in (PRODUCER_SETTINGS, CONSUMER_SETTINGS, ADMIN_SETTINGS):
        seen.take(group.parse, {name: canary.SECRETS[secret]})
        seen.texts += group.parse_usable({name: canary.SECRETS[secret]})[1]
    assert seen.texts
    if name != "sasl.login.callback.handler.class":
        seen.check()


@pytest.mark.parametrize("secret", LOOKS_LIKE_ONE)
@pytest.mark.parametrize("name", sorted(JVM_ONLY_SETTINGS | {"sasl.login.class", "interceptor.classes"}))
def test_what_looks_like_a_secret_in_a_setting_of_the_jvm(seen, name, secret):
    seen.take(lambda settings: producer_config(settings, {}), given(name, canary.SECRETS[secret]))
    assert "has no effect in this client" in seen._log.text
    seen.check()


@pytest.mark.parametrize("secret", LOOKS_LIKE_ONE)
def test_a_secret_where_a_name_should_be(seen, secret):
    value = canary.SECRETS[secret]
    seen.take(lambda settings: producer_config(settings, {}), given(value, "x"))
    seen.take(PRODUCER_SETTINGS.parse, {value: "x"})
    seen.check()


@pytest.mark.parametrize(
    "setting",
    [
        Setting("a.password", "password", None, "", choices=("x", "y")),
        Setting("a.password", "password", None, "", form=("[a-z]+", "of small letters")),
        Setting("a.password", "password", None, "", choices=("x",), form=("[a-z]+", "of small letters")),
    ],
)
@pytest.mark.parametrize("secret", canary.SECRETS)
def test_bounds_of_a_secret_setting(seen, setting, secret):
    seen.take(setting.parse, canary.SECRETS[secret])
    assert any("a.password=" in text for text in seen.texts)
    seen.check()


@pytest.mark.parametrize("kind", ["boolean", "int", "long", "double"])
@pytest.mark.parametrize("secret", LOOKS_LIKE_ONE)
def test_what_looks_like_a_secret_in_a_number(seen, kind, secret):
    seen.take(Setting("a.number", kind, None, "").parse, canary.SECRETS[secret])
    assert any("a.number=" in text for text in seen.texts)
    # What was not shown is not to be found behind the error either, by those who show the whole chain.
    seen.check()


@pytest.mark.parametrize("form", ["pem", "pkcs12", "jks"])
def test_wrong_passwords_of_stores(seen, authority, form):
    certificate = authority.issue("client")
    stores = {
        "pem": lambda: (certificate.pem_file("right"), authority.pem_file()),
        "pkcs12": lambda: (certificate.pkcs12_file(), authority.pkcs12_file()),
        "jks": lambda: (certificate.jks_file(), authority.jks_file()),
    }
    try:
        keys, trust = map(str, stores[form]())
    except JavaToolFailed as error:
        pytest.skip(str(error))
    for settings in (
        {"ssl.keystore.location": keys, "ssl.keystore.password": canary.PASSWORD},
        {"ssl.keystore.location": keys, "ssl.key.password": canary.PASSWORD},
        {"ssl.keystore.location": keys, "ssl.keystore.password": STORE_PASSWORD, "ssl.key.password": canary.PASSWORD},
        {"ssl.truststore.location": trust, "ssl.truststore.password": canary.PASSWORD},
    ):
        before = len(seen.texts)
        settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", **settings}
        seen.take(lambda settings: producer_config(settings, {}), settings)
        assert len(seen.texts) > before
    assert any("password" in text for text in seen.texts)
    seen.check()


@pytest.mark.parametrize(
    "settings",
    [
        {"ssl.keystore.key": "PEM", "ssl.keystore.certificate.chain": canary.KEY},
        {"ssl.keystore.key": "PEM"},
        {"ssl.keystore.key": "ENCRYPTED", "ssl.keystore.certificate.chain": "CHAIN"},
        {
            "ssl.keystore.key": "ENCRYPTED",
            "ssl.keystore.certificate.chain": "CHAIN",
            "ssl.key.password": canary.PASSWORD,
        },
        {"ssl.keystore.key": canary.KEY, "ssl.keystore.certificate.chain": "CHAIN"},
        {"ssl.truststore.certificates": canary.KEY},
        {"ssl.truststore.certificates": canary.PASSWORD},
    ],
)
def test_keys_and_certificates_in_settings(seen, authority, settings):
    certificate = authority.issue("client")
    texts = {"PEM": certificate.key_pem(), "ENCRYPTED": certificate.key_pem("right"), "CHAIN": certificate.chain_pem}
    settings = {name: texts.get(value, value) for name, value in settings.items()}
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", **settings}
    seen.take(lambda settings: producer_config(settings, {}), settings)
    assert seen.texts
    # A key that is right is a secret as well.
    middle = texts["PEM"].splitlines()[1]
    assert not any(middle in text for text in seen.texts)
    seen.check()


def test_the_registry(seen):
    settings = {"group.id": "g", "zookeeper.connect": "127.0.0.1:1"}
    for digest in (canary.CLIENT_SECRET, f"user:{canary.CLIENT_SECRET}"):
        seen.take(lambda given: connector_config(given, {}), {**settings, "zookeeper.digest": digest})
        seen.take(lambda given: RegistryListener.parse("127.0.0.1:1", **given), {"digest": digest})
    assert any("zookeeper_connect" in text for text in seen.texts)
    assert any("registry.listener.digest=" in text for text in seen.texts)
    seen.check()


def test_a_broker(seen):
    settings = {"registry.listener": "127.0.0.1:0", "registry.listener.digest": f"user:{canary.CLIENT_SECRET}"}
    assert seen.take(BrokerConfig.from_properties, settings)
    seen.take(BrokerConfig.from_properties, {**settings, "registry.listener.digest": canary.CLIENT_SECRET})
    seen.take(BrokerConfig.from_properties, {**settings, "registry.listener.digst": f"user:{canary.CLIENT_SECRET}"})
    seen.take(BrokerConfig.from_properties, {**settings, "zookeeper.connect": canary.PLAIN_JAAS})
    assert sum("registry.listener.dig" in text for text in seen.texts) > 3
    seen.check()
