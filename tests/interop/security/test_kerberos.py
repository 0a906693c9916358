"""Clients that authenticate by Kerberos, against Apache Kafka and a real KDC."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.config import ADMIN_SETTINGS, parse_settings
from spark_kafkalite.errors import (
    BrokerUnreachable,
    ConfigError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from spark_kafkalite.security import kerberos, token_keeper
from spark_kafkalite.security.kerberos import GssapiExchange, KerberosLogin
from spark_kafkalite.security.sasl import login_from
from spark_kafkalite.security.token_keeper import RefreshRules
from tests.interop.support.kerberized_kafka import ALICE, BOB, KerberizedKafka
from tests.interop.support.kerberos_realm import KerberosRealm, clock_off, keys_of, keytab_jaas, spellings
from tests.lab.apache_kafka import kafka_tool, properties_text
from tests.patience import wait_until
from tests.pool.names import own_numbers

pytestmark = [pytest.mark.kafka, pytest.mark.debian]

NUMBERS = own_numbers()


@pytest.fixture(autouse=True)
def _in_the_realm(kerberized_kafka: KerberizedKafka) -> Iterator[None]:
    with kerberized_kafka.realm.entered():
        yield
    token_keeper._KEEPERS.clear()


def settings_of(kafka: KerberizedKafka, user: str | None = ALICE, **changed: str | None) -> dict[str, str]:
    """Return the settings of a client; those changed to None are left out."""
    given = {**kafka.client_settings(user), **{name.replace("_", "."): value for name, value in changed.items()}}
    return {name: value for name, value in given.items() if value is not None}


def refusal(settings: dict[str, str]) -> str:
    """Return the text with which a client of these settings fails to authenticate."""
    with pytest.raises(SaslAuthenticationFailed) as caught, Admin(settings) as admin:
        admin.list_topics()
    return str(caught.value)


def read(settings: dict[str, str], topic: str, group: str) -> list[bytes | None]:
    with Consumer(settings, auto_offset_reset="earliest", group_id=group) as consumer:
        consumer.subscribe([topic])
        return wait_until(lambda: [record.value for record in consumer.poll(1000)], "records")


@pytest.mark.parametrize("encrypted", [False, True])
def test_all_clients_with_a_keytab(kerberized_kafka: KerberizedKafka, encrypted: bool) -> None:
    topic = f"kerberos-{next(NUMBERS)}"
    settings = kerberized_kafka.client_settings(encrypted=encrypted)
    with Admin(settings) as admin, Producer(settings) as producer:
        admin.create_topic(topic, 1)
        producer.send(topic, value=b"first").result(60)
        assert read(settings, topic, f"group-{topic}") == [b"first"]
        assert f"group-{topic}" in {group.group_id for group in admin.list_groups()}


def test_javas_jaas_line_serves_here_too(kerberized_kafka: KerberizedKafka) -> None:
    jaas = keytab_jaas(kerberized_kafka.users[ALICE], kerberized_kafka.named(ALICE), serviceName="kafka")
    own = settings_of(kerberized_kafka, None, sasl_kerberos_service_name=None)
    with Admin({**own, "sasl.jaas.config": jaas}) as admin:
        admin.list_topics()


def test_a_ticket_cache_is_read_again(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    realm, cache = kerberized_kafka.realm, tmp_path / "cache"
    own = settings_of(kerberized_kafka, None)
    with realm.entered(KRB5CCNAME=f"FILE:{cache}"):
        assert "no Kerberos credentials" in refusal(own)
        realm.kinit(ALICE, kerberized_kafka.users[ALICE], cache)
        with Admin(own) as admin:
            admin.list_topics()
        assert "has no ticket of bob" in refusal({**own, "sasl.kerberos.principal": kerberized_kafka.named(BOB)})


def test_several_principals_in_one_process(kerberized_kafka: KerberizedKafka) -> None:
    topic = f"kerberos-{next(NUMBERS)}"
    with Admin(settings_of(kerberized_kafka, ALICE)) as alice, Admin(settings_of(kerberized_kafka, BOB)) as bob:
        alice.create_topic(topic, 1)
        # BOB has no rights, and does not get ALICE's.
        assert topic in alice.list_topics()
        assert topic not in bob.list_topics()
        assert topic in alice.list_topics()


def properties_file(directory: Path, settings: dict[str, str]) -> Path:
    """Write a file for --command-config."""
    path = directory / "client.properties"
    path.touch(0o600)
    path.write_text(properties_text(settings))
    return path


def listed(kafka: KerberizedKafka, properties: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``kafkalite topics list`` in a process with these variables."""
    address = kafka.client_settings()["bootstrap.servers"]
    arguments = ["--bootstrap-server", address, "--command-config", str(properties)]
    return subprocess.run(
        [sys.executable, "-m", "spark_kafkalite.cli", "topics", "list", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_one_properties_file_serves_javas_commands_and_ours(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    topic = f"kerberos-{next(NUMBERS)}"
    jaas = keytab_jaas(kerberized_kafka.users[ALICE], kerberized_kafka.named(ALICE), serviceName="kafka")
    own = settings_of(kerberized_kafka, None, sasl_kerberos_service_name=None)
    properties = properties_file(tmp_path, {**own, "sasl.jaas.config": jaas})
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 127.0.0.1\n")
    kafka_tool(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server", own["bootstrap.servers"], "--command-config", str(properties),
        "--create", "--topic", topic, "--partitions", "1",
        # Java looks an address up backwards, and would ask for the service of localhost.
        jvm_options=(
            *SHORT_LIVED_OPTIONS,
            f"-Djava.security.krb5.conf={kerberized_kafka.realm.krb5_conf}",
            f"-Djdk.net.hosts.file={hosts}",
        ),
    )  # fmt: skip
    done = listed(kerberized_kafka, properties)
    assert done.returncode == 0 and topic in done.stdout.split(), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("life_s", "tickets"), [(6, 3), pytest.param(30, 20, marks=pytest.mark.soak)], ids=["seconds", "minutes"]
)
def test_tickets_are_renewed_while_clients_work(
    kerberized_kafka: KerberizedKafka, tmp_path: Path, life_s: int, tickets: int
) -> None:
    realm, user = kerberized_kafka.realm, f"brief{next(NUMBERS)}"
    realm.add(user, max_life=f"{life_s}sec")
    keytab = realm.keytab(tmp_path / "brief.keytab", user)
    own = settings_of(
        kerberized_kafka,
        None,
        sasl_kerberos_keytab=str(keytab),
        sasl_kerberos_principal=kerberized_kafka.named(user),
        sasl_kerberos_ticket_renew_window_factor="0.5",
    )
    with Admin(own) as kept:
        seen: set[str] = set()
        while len(seen) < tickets:
            kept.list_topics()
            # A connection of its own, with the ticket of now.
            with Admin(own) as admin:
                admin.list_topics()
            seen.update(held_tickets())


def login_in(realm: KerberosRealm, keytab: Path, user: str, **changed: str) -> KerberosLogin:
    """Return a login of its own keeper, by settings alone."""
    login = login_from(
        parse_settings(
            ADMIN_SETTINGS,
            {
                "bootstrap.servers": "localhost",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.keytab": str(keytab),
                "sasl.kerberos.principal": f"{user}@{realm.realm}",
                **{name.replace("_", "."): value for name, value in changed.items()},
            },
            {},
        )
    )
    assert isinstance(login, KerberosLogin)
    return login


def test_a_ticket_outlives_any_number_of_others(kerberized_kafka: KerberizedKafka) -> None:
    """Each keeper has tickets of its own, and none destroys another's."""
    logins = [
        login_in(kerberized_kafka.realm, kerberized_kafka.users[ALICE], ALICE, sasl_kerberos_ticket_renew_jitter=jitter)
        for jitter in (f"{0.01 + number / 1000:.3f}" for number in range(80))
    ]
    for _ in range(2):
        for login in logins:
            assert login.exchange("127.0.0.1").first()
    caches = {login._keeper._held.value for login in logins}  # type: ignore[union-attr]
    assert len(caches) == len(logins)


def test_an_outage_of_the_kdc_is_waited_for(tmp_path: Path) -> None:
    """Once it has served a login; before that it may be a wrong setting."""
    with KerberosRealm(tmp_path / "outage") as realm, realm.entered():
        realm.add("kafka/127.0.0.1")
        realm.add("grace", max_life="4sec")
        login = login_in(realm, realm.keytab(tmp_path / "grace.keytab", "grace"), "grace")
        assert login.exchange("127.0.0.1").first()
        realm.stop()

        def is_an_outage() -> bool:
            try:
                login.exchange("127.0.0.1").first()
            except BrokerUnreachable as error:
                assert f"no KDC of the realm {realm.realm} can be reached ({realm.address})" in str(error)
                return True
            return False

        wait_until(is_an_outage, "the end of the ticket")
        realm.start()
        assert wait_until(lambda: not is_an_outage(), "the KDC")


def test_a_ticket_that_expires_while_it_is_used_is_no_refusal(
    kerberized_kafka: KerberizedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = login_in(kerberized_kafka.realm, kerberized_kafka.users[ALICE], ALICE)
    assert login.exchange("127.0.0.1").first()
    has_expired = False

    def refused(*_: object) -> object:
        nonlocal has_expired
        has_expired = True
        raise SaslAuthenticationFailed("it has expired")

    monkeypatch.setattr(kerberos, "lives", lambda _: not has_expired)
    monkeypatch.setattr(kerberos, "_asked_in_time", refused)
    with pytest.raises(BrokerUnreachable, match="has expired while a connection used it"):
        login.exchange("127.0.0.1")
    # One that was no longer valid before is refused for it: the clocks differ.
    with pytest.raises(SaslAuthenticationFailed, match="it has expired"):
        login.exchange("127.0.0.1")


def test_a_kdc_that_has_never_served_a_ticket_cache_is_not_waited_for(tmp_path: Path) -> None:
    """The ticket is in the cache, and the service's is not."""
    cache = tmp_path / "cache"
    with KerberosRealm(tmp_path / "never") as realm, realm.entered(KRB5CCNAME=f"FILE:{cache}"):
        realm.add("kafka/127.0.0.1", "heidi")
        realm.kinit("heidi", realm.keytab(tmp_path / "heidi.keytab", "heidi"), cache)
        login = KerberosLogin("kafka", None, RefreshRules(0.8, 0.05, 60.0, 0.0))
        realm.stop()
        with pytest.raises(SaslAuthenticationFailed, match="can be reached"):
            login.exchange("127.0.0.1").first()


def test_a_refusal_has_new_tickets_fetched(kerberized_kafka: KerberizedKafka) -> None:
    """A broker's key may have changed since the service's ticket was made."""
    realm, service = kerberized_kafka.realm, f"renewed{next(NUMBERS)}"
    realm.add(f"{service}/127.0.0.1")
    login = login_in(realm, kerberized_kafka.users[BOB], BOB, sasl_kerberos_service_name=service)
    exchange = login.exchange("127.0.0.1")
    exchange.first()
    assert login._keeper is not None
    before = login._keeper._held
    exchange.refused()
    login.exchange("127.0.0.1").first()
    assert login._keeper._held is not before


def held_tickets() -> list[str]:
    return [keeper._held.value for keeper in token_keeper._KEEPERS.values() if keeper._held is not None]


# Errors ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_service_is_named(kerberized_kafka: KerberizedKafka) -> None:
    said = refusal(settings_of(kerberized_kafka, sasl_kerberos_service_name="kafk"))
    assert f"does not know the service kafk/127.0.0.1@{kerberized_kafka.realm.realm}" in said


def test_an_expired_ticket(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    realm, cache = kerberized_kafka.realm, tmp_path / "cache"
    realm.kinit(ALICE, kerberized_kafka.users[ALICE], cache, life="1s")
    with realm.entered(KRB5CCNAME=f"FILE:{cache}"):
        wait_until(
            lambda: subprocess.run(["klist", "-s", "-c", f"FILE:{cache}"], check=False).returncode == 1, "its end"
        )
        assert f"FILE:{cache} has expired: run kinit" in refusal(settings_of(kerberized_kafka, None))


def test_the_key_of_another_principal(kerberized_kafka: KerberizedKafka) -> None:
    carol = f"carol@{kerberized_kafka.realm.realm}"
    said = refusal(settings_of(kerberized_kafka, BOB, sasl_kerberos_principal=carol))
    assert f"bob.keytab has no key of {carol}: it has {kerberized_kafka.named(BOB)}" in said


def test_a_key_that_was_changed_since(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    realm, user = kerberized_kafka.realm, f"old{next(NUMBERS)}"
    realm.add(user)
    keytab = realm.keytab(tmp_path / "old.keytab", user)
    realm.admin(f"cpw -randkey {user}")
    own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": kerberized_kafka.named(user)}
    assert "the key has been changed since" in refusal({**settings_of(kerberized_kafka, None), **own})


def test_a_principal_that_is_locked(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    realm, user = kerberized_kafka.realm, f"locked{next(NUMBERS)}"
    realm.add(user)
    keytab = realm.keytab(tmp_path / "locked.keytab", user)
    realm.admin(f"modprinc -allow_tix {user}")
    own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": kerberized_kafka.named(user)}
    assert f"does not accept {user}@" in refusal({**settings_of(kerberized_kafka, None), **own})


def test_a_missing_keytab_is_told_before_anything_is_sent(kerberized_kafka: KerberizedKafka) -> None:
    with pytest.raises(ConfigError, match="spark-submit --files"):
        Admin(settings_of(kerberized_kafka, sasl_kerberos_keytab="/no/such.keytab"))


def test_a_realm_that_is_not_known(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    with KerberosRealm(tmp_path / "other", "OTHER.TEST") as other:
        other.add("mallory")
        keytab = other.keytab(tmp_path / "mallory.keytab", "mallory")
    own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": "mallory@OTHER.TEST"}
    said = refusal({**settings_of(kerberized_kafka, None), **own})
    assert "OTHER.TEST" in said and "krb5.conf" in said


def test_two_realms_without_trust(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    """Both are known, and the KDC of the user's has no key for the broker's."""
    own_realm = kerberized_kafka.realm
    with KerberosRealm(tmp_path / "stranger", "STRANGER.TEST") as stranger:
        stranger.add("mallory")
        keytab = stranger.keytab(tmp_path / "mallory.keytab", "mallory")
        conf = tmp_path / "krb5.conf"
        known = f"[realms]\n{own_realm.realm} = {{\n  kdc = {own_realm.address}\n}}\n"
        of_hosts = f"[domain_realm]\nlocalhost = {own_realm.realm}\n"
        conf.write_text(stranger.krb5_conf.read_text().replace("[realms]\n", known, 1) + of_hosts)
        own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": "mallory@STRANGER.TEST"}
        # [domain_realm] has no addresses.
        address = settings_of(kerberized_kafka)["bootstrap.servers"].replace("127.0.0.1", "localhost")
        with stranger.entered(KRB5_CONFIG=str(conf)):
            said = refusal({**settings_of(kerberized_kafka, None, bootstrap_servers=address), **own})
    assert f"the KDC of STRANGER.TEST has no key for the realm of kafka/localhost@{own_realm.realm}" in said


def test_a_kdc_whose_clock_is_wrong(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    with KerberosRealm(tmp_path / "late", clock="+1h") as late:
        late.add("frank")
        keytab = late.keytab(tmp_path / "frank.keytab", "frank")
        conf = tmp_path / "krb5.conf"
        # libkrb5 takes the KDC's clock for its own unless it is told not to.
        conf.write_text(late.krb5_conf.read_text().replace("[libdefaults]\n", "[libdefaults]\nkdc_timesync = 0\n", 1))
        own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": f"frank@{late.realm}"}
        with late.entered(KRB5_CONFIG=str(conf)):
            said = refusal({**settings_of(kerberized_kafka, None), **own})
    assert f"the clocks of this host, the KDC ({late.address}) and the broker differ" in said


@pytest.mark.parametrize(
    ("timesync", "said"), [("0", "the clocks of this host"), ("1", None)], ids=["own-clock", "clock-of-the-kdc"]
)
def test_a_client_whose_clock_is_wrong(
    kerberized_kafka: KerberizedKafka, tmp_path: Path, timesync: str, said: str | None
) -> None:
    conf = tmp_path / "krb5.conf"
    as_given = kerberized_kafka.realm.krb5_conf.read_text()
    conf.write_text(as_given.replace("[libdefaults]\n", f"[libdefaults]\nkdc_timesync = {timesync}\n", 1))
    properties = properties_file(tmp_path, settings_of(kerberized_kafka))
    done = listed(kerberized_kafka, properties, KRB5_CONFIG=str(conf), **clock_off("+1h"))
    assert (done.returncode == 0) if said is None else (said in done.stderr), done.stderr


def test_a_kdc_that_cannot_be_reached(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    with KerberosRealm(tmp_path / "away") as realm:
        realm.add("dave")
        keytab = realm.keytab(tmp_path / "dave.keytab", "dave")
    own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": f"dave@{realm.realm}"}
    with realm.entered():
        said = refusal({**settings_of(kerberized_kafka, None), **own})
    assert f"no KDC of the realm {realm.realm} can be reached ({realm.address})" in said


def test_a_kdc_that_takes_connections_and_does_not_answer(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    with KerberosRealm(tmp_path / "silent") as realm:
        realm.add("erin")
        keytab = realm.keytab(tmp_path / "erin.keytab", "erin")
    host, port = realm.address.split(":")
    own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": f"erin@{realm.realm}"}
    with socket.create_server((host, int(port))), realm.entered():
        said = refusal({**settings_of(kerberized_kafka, None), **own})
    assert f"no KDC of the realm {realm.realm} has answered within 8 s ({realm.address})" in said


def test_an_encryption_type_that_is_not_permitted(kerberized_kafka: KerberizedKafka, tmp_path: Path) -> None:
    realm, user = kerberized_kafka.realm, f"weak{next(NUMBERS)}"
    realm.admin(f"addprinc -randkey -e aes128-cts-hmac-sha1-96:normal {user}")
    keytab = realm.keytab(tmp_path / "weak.keytab", user)
    conf = tmp_path / "krb5.conf"
    permitted = "[libdefaults]\npermitted_enctypes = aes256-cts-hmac-sha1-96\n"
    conf.write_text(realm.krb5_conf.read_text().replace("[libdefaults]\n", permitted, 1))
    own = {"sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": kerberized_kafka.named(user)}
    with realm.entered(KRB5_CONFIG=str(conf)):
        said = refusal({**settings_of(kerberized_kafka, None), **own})
    assert f"no encryption type suits this host, the KDC and the keys of {user}@" in said


# Wrong doors ----------------------------------------------------------------------------------------------------------


def test_a_broker_without_the_keys_of_its_name(kerberized_kafka: KerberizedKafka) -> None:
    """The KDC knows the service, and the broker is another one."""
    realm = kerberized_kafka.realm
    service = f"other{next(NUMBERS)}"
    realm.add(f"{service}/127.0.0.1")
    said = refusal(settings_of(kerberized_kafka, sasl_kerberos_service_name=service))
    assert f"check that the broker has the keys of {service}/127.0.0.1" in said


def test_a_token_that_is_replayed_is_refused(
    kerberized_kafka: KerberizedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the broker: it answers with an error, and with no token that the client could find wrong."""
    tokens: list[bytes] = []
    answers: list[bytes] = []
    make, take = GssapiExchange.first, GssapiExchange.answer

    def first(exchange: GssapiExchange) -> bytes:
        tokens.append(make(exchange))
        return tokens[0]

    def answer(exchange: GssapiExchange, challenge: bytes) -> bytes | None:
        answers.append(challenge)
        return take(exchange, challenge)

    monkeypatch.setattr(GssapiExchange, "first", first)
    monkeypatch.setattr(GssapiExchange, "answer", answer)
    with Admin(settings_of(kerberized_kafka)) as admin:
        admin.list_topics()
    answered = len(answers)
    said = refusal(settings_of(kerberized_kafka))
    assert "refuses the credentials (GSSAPI)" in said and "SASL_AUTHENTICATION_FAILED" in said
    assert len(set(tokens)) == len(tokens) > 1 and len(answers) == answered


def test_a_plain_client_is_told_which_mechanism_is_served(kerberized_kafka: KerberizedKafka) -> None:
    own = settings_of(kerberized_kafka, None, sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")
    own.pop("sasl.kerberos.service.name")
    with pytest.raises(UnsupportedSaslMechanism, match="GSSAPI"), Admin(own) as admin:
        admin.list_topics()


def test_no_key_and_no_ticket_is_shown(
    kerberized_kafka: KerberizedKafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In logs, errors and objects; the ticket is a part of the first token."""
    caplog.set_level(logging.DEBUG)
    tokens: list[bytes] = []
    make = GssapiExchange.first

    def first(exchange: GssapiExchange) -> bytes:
        tokens.append(make(exchange))
        return tokens[-1]

    monkeypatch.setattr(GssapiExchange, "first", first)
    with Admin(settings_of(kerberized_kafka, BOB)) as admin:
        admin.list_topics()
        said = repr(admin) + repr(vars(admin))
    carol = f"carol@{kerberized_kafka.realm.realm}"
    said += refusal(settings_of(kerberized_kafka, BOB, sasl_kerberos_principal=carol))
    service = f"shown{next(NUMBERS)}"
    kerberized_kafka.realm.add(f"{service}/127.0.0.1")
    said += refusal(settings_of(kerberized_kafka, BOB, sasl_kerberos_service_name=service))
    said += caplog.text + "".join(map(repr, token_keeper._KEEPERS.values()))
    keys = keys_of(kerberized_kafka.users[BOB])
    assert keys and len(tokens) > 1
    # 32 bytes of each kilobyte of a token.
    parts = [token[at : at + 32] for token in tokens for at in range(64, len(token) - 32, 1024)]
    for secret in [*keys, *parts]:
        assert not any(spelling in said.encode() for spelling in spellings(secret))
