"""Our broker authenticates clients by Kerberos, with a real KDC: those of others, ours, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.broker.network.session import Handshake
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError, KafkaError, SaslAuthenticationFailed
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from spark_kafkalite.security import token_keeper
from spark_kafkalite.security.kerberos import KERBEROS_V5
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from tests.interop.security.aiokafka_client import sent_by_aiokafka
from tests.interop.security.kafka_python_client import asked_by_kafka_python
from tests.interop.support.kerberos_realm import KerberosRealm, clock_off, keys_of, keytab_jaas, spellings
from tests.interop.support.sasl_broker import Endpoint, words_of_kafka, words_of_python
from tests.lab.apache_kafka import kafka_tool, properties_text
from tests.lab.certificates import LOOPBACK, Authority
from tests.patience import wait_until_async
from tests.unit.broker.network.brokers_door import HEARTBEAT_VERSION, Door, door
from tests.unit.broker.network.test_brokers_door import Stranger, run, stranger
from tests.unit.broker.network.test_clients_door import closes, session_of

pytestmark = [
    pytest.mark.debian,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

SERVICE: Final = "kafka/127.0.0.1"
REFUSED: Final = SaslAuthenticationFailed.code
GENERIC: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"


class Lab:
    """A realm with a broker's service, another service, ALICE and BOB."""

    def __init__(self, directory: Path, realm: KerberosRealm) -> None:
        self.directory, self.realm = directory, realm
        self.service = realm.service_keytab(SERVICE)
        self.other = realm.service_keytab("HTTP/127.0.0.1")
        self.users = {name: realm.service_keytab(name) for name in ("alice", "bob")}
        self.cache = directory / "cache"
        realm.kinit("alice", self.users["alice"], self.cache)

    def named(self, name: str) -> str:
        return f"{name}@{self.realm.realm}"

    def broker_settings(self, listener: str = "SASL_PLAINTEXT", **more: object) -> dict[str, object]:
        return {
            "listeners": f"{listener}://127.0.0.1:0",
            "sasl.enabled.mechanisms": "GSSAPI",
            f"listener.name.{listener.lower()}.gssapi.sasl.jaas.config": keytab_jaas(self.service, self.named(SERVICE)),
            "sasl.kerberos.service.name": "kafka",
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def client_settings(self, endpoint: Endpoint, user: str = "alice") -> dict[str, str]:
        return {
            **words_of_kafka(endpoint, "GSSAPI"),
            "sasl.kerberos.keytab": str(self.users[user]),
            "sasl.kerberos.principal": self.named(user),
        }

    def environment(self) -> dict[str, str]:
        return {
            "KRB5_CONFIG": str(self.realm.krb5_conf),
            "KRB5RCACHENAME": f"file2:{self.directory}/replays",
            "KRB5CCNAME": f"FILE:{self.cache}",
        }


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, kerberos: None) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("kerberos")
    with KerberosRealm(directory / "realm") as realm:
        made = Lab(directory, realm)
        with realm.entered(**made.environment()):
            yield made
    token_keeper._KEEPERS.clear()


class Endpoints(NamedTuple):
    """The listeners of a broker. ``other`` has the key of another service, so that no ticket of the clients fits."""

    clear: Endpoint
    tls: Endpoint
    other: Endpoint


@pytest.fixture(scope="module")
def endpoints(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    directory = tmp_path_factory.mktemp("broker")
    authority = Authority(directory / "certificates", "ours")
    clear, tls, other = (f"127.0.0.1:{port}" for port in free_ports(3))
    elsewhere = "kafka/elsewhere"
    key = keytab_jaas(lab.realm.service_keytab(elsewhere), lab.named(elsewhere))
    overrides = {
        **lab.broker_settings(),
        **lab.broker_settings("SASL_SSL"),
        "listeners": f"SASL_PLAINTEXT://{clear},SASL_SSL://{tls},OTHER://{other}",
        "listener.security.protocol.map": "OTHER:SASL_SSL",
        "listener.name.other.gssapi.sasl.jaas.config": key,
        "ssl.keystore.location": authority.issue("broker", *LOOPBACK).pem_file(),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:alice",
        "logging.level": "DEBUG",
    }
    found = Endpoints(Endpoint(clear), Endpoint(tls, authority.pem_file()), Endpoint(other, authority.pem_file()))
    with BrokerProcess(directory / "data", overrides=overrides, environment=lab.environment()) as running:
        with Admin(lab.client_settings(found.tls)) as admin:
            admin.create_topic("sent", 1, 1)
        yield found
        log = running.stderr_path.read_bytes()
        assert b"Traceback" not in log
        assert not [key for keytab in lab.users.values() for key in keys_of(keytab) if any(
            spelling in log for spelling in spellings(key)
        )]  # fmt: skip


def ours(lab: Lab, endpoint: Endpoint) -> str | None:
    try:
        with Admin(lab.client_settings(endpoint)) as admin, Producer(lab.client_settings(endpoint)) as producer:
            assert "sent" in admin.list_topics()
            producer.send("sent", b"x").result(60)
    except KafkaError as error:
        return str(error)
    return None


def kafka_python(lab: Lab, endpoint: Endpoint) -> str | None:
    return asked_by_kafka_python({**words_of_python(endpoint, "GSSAPI"), "sasl_kerberos_service_name": "kafka"})


def aio(lab: Lab, endpoint: Endpoint) -> str | None:
    return sent_by_aiokafka({**words_of_python(endpoint, "GSSAPI"), "sasl_kerberos_service_name": "kafka"})


@pytest.mark.parametrize("client", [ours, kafka_python, aio])
@pytest.mark.parametrize("listener", ["tls", pytest.param("clear", marks=pytest.mark.soak)])
def test_a_ticket_is_taken(
    lab: Lab, endpoints: Endpoints, listener: str, client: Callable[[Lab, Endpoint], str | None]
) -> None:
    assert client(lab, getattr(endpoints, listener)) is None


@pytest.mark.parametrize("client", [ours, kafka_python, aio])
def test_a_ticket_for_another_key_is_refused(
    lab: Lab, endpoints: Endpoints, client: Callable[[Lab, Endpoint], str | None]
) -> None:
    assert client(lab, endpoints.other) is not None


def test_another_principal_is_another_user(lab: Lab, endpoints: Endpoints) -> None:
    with Admin(lab.client_settings(endpoints.tls, "bob")) as admin:
        assert admin.list_topics() == []


@pytest.mark.kafka
def test_javas_client(lab: Lab, endpoints: Endpoints, tmp_path: Path) -> None:
    # Java looks an address up backwards, and would ask for the service of localhost.
    (tmp_path / "hosts").write_text("127.0.0.1 127.0.0.1\n")

    def listed(endpoint: Endpoint) -> Any:
        settings = {
            **words_of_kafka(endpoint, "GSSAPI"),
            "sasl.jaas.config": keytab_jaas(lab.users["alice"], lab.named("alice"), serviceName="kafka"),
        }
        (tmp_path / "client.properties").write_text(properties_text(settings))
        return kafka_tool(
            "org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", endpoint.bootstrap,
            "--command-config", str(tmp_path / "client.properties"), check=False,
            jvm_options=(
                *SHORT_LIVED_OPTIONS,
                f"-Djava.security.krb5.conf={lab.realm.krb5_conf}",
                f"-Djdk.net.hosts.file={tmp_path / 'hosts'}",
            ),
        )  # fmt: skip

    done = listed(endpoints.tls)
    assert done.stdout.split() == ["sent"], done.stderr
    refused = listed(endpoints.other)
    assert f"SaslAuthenticationException: {GENERIC}" in refused.stdout + refused.stderr


# What does not authenticate ------------------------------------------------------------------------------------------


def test_a_broker_whose_clock_is_wrong(lab: Lab, tmp_path: Path) -> None:
    overrides = lab.broker_settings() | {"listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"}
    given = lab.environment() | clock_off("+1h")
    with BrokerProcess(tmp_path / "data", overrides=overrides, environment=given, command_prefix=["env"]) as broker:
        with pytest.raises(SaslAuthenticationFailed), Admin(lab.client_settings(Endpoint(broker.bootstrap))) as admin:
            admin.list_topics()
        said = broker.stderr_path.read_text()
    assert "Clock skew too great" in said and "must agree to five minutes: run NTP" in said


def test_a_ticket_of_another_realm_with_the_same_name(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with KerberosRealm(tmp_path / "other", lab.realm.realm) as other:
        foreign = other.service_keytab(SERVICE)

    async def test() -> None:
        jaas = {"listener.name.sasl_plaintext.gssapi.sasl.jaas.config": keytab_jaas(foreign, lab.named(SERVICE))}
        async with door(**lab.broker_settings() | jaas) as one, stranger(one) as who:
            await who.handshake("GSSAPI")
            assert (await who.say(Client(lab).request)).error_code == REFUSED

    run(test)
    assert "Cannot decrypt ticket for kafka/127.0.0.1" in caplog.text and "make the keytab again" in caplog.text


def at_door(lab: Lab, test: Callable[[Door], Coroutine[Any, Any, None]], **more: object) -> None:
    async def opened() -> None:
        settings = lab.broker_settings(**more) | {"connection.failed.authentication.delay.ms": 20}
        async with door(**settings) as one:
            await test(one)

    run(opened)


class Client:
    """The client's side by python-gssapi, step by step."""

    def __init__(self, lab: Lab, service: str = SERVICE) -> None:
        import gssapi

        flag = gssapi.RequirementFlag
        self._context = gssapi.SecurityContext(
            name=gssapi.Name(lab.named(service), gssapi.NameType.kerberos_principal),
            creds=gssapi.Credentials(usage="initiate", store={"ccache": f"FILE:{lab.cache}"}),
            mech=gssapi.OID.from_int_seq(KERBEROS_V5),
            flags=flag.mutual_authentication | flag.integrity,
            usage="initiate",
        )
        self.request: bytes = self._context.step()

    async def up_to_the_choice(self, who: Stranger) -> bytes:
        """Return the layers that the broker offers."""
        assert (await who.handshake("GSSAPI")).error_code == 0
        self._context.step((await who.say(self.request)).auth_bytes)
        offered: bytes = self._context.unwrap((await who.say(b"")).auth_bytes).message
        return offered

    def choice(self, data: bytes) -> bytes:
        wrapped: bytes = self._context.wrap(data, encrypt=False).message
        return wrapped


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        (b"\1\0\0\0", 0),
        (b"\1\0\0\0alice", 0),
        (b"\1\0\0\0alice@KAFKALITE.TEST", 0),
        # As kafka-python and aiokafka have it.
        (b"\1\0\0\0kafka@127.0.0.1", 0),
        (b"\1\0\0\0kafka", REFUSED),
        (b"\1\0\0\0http@127.0.0.1", REFUSED),
        (b"\1\0\0\0bob", REFUSED),
        (b"\1\0\0\0broker-1", REFUSED),
        (b"\1\0\0\0\xff", REFUSED),
        (b"\2\0\0\0", REFUSED),
        (b"\4\0\x10\0alice", REFUSED),
        (b"\7\0\0\0", REFUSED),
        (b"\1\0\0", REFUSED),
        (b"", REFUSED),
    ],
)
def test_only_authentication_is_offered_and_only_for_oneself(lab: Lab, choice: bytes, code: int) -> None:
    async def test(one: Door) -> None:
        async with stranger(one) as who:
            client = Client(lab)
            assert await client.up_to_the_choice(who) == b"\1\0\0\0"
            answer = await who.say(client.choice(choice))
            assert answer.error_code == code
            if code:
                assert answer.error_message == GENERIC and await who.is_closed()
            else:
                assert session_of(one).principal == "User:alice"
                # A ticket of an hour, and five minutes.
                assert 3_500_000 < answer.session_lifetime_ms <= 3_900_000
                await who.beat()

    at_door(lab, test)


def test_a_request_serves_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    async def test(one: Door) -> None:
        client = Client(lab)
        async with stranger(one) as who:
            await client.up_to_the_choice(who)
            # What another context has protected is no choice.
            assert (await who.say(Client(lab).request)).error_code == REFUSED
        for said in (client.request, Client(lab, "HTTP/127.0.0.1").request, b"", b"x", b"\x60" + b"\xff" * 500):
            async with stranger(one) as who:
                assert (await who.handshake("GSSAPI")).error_code == 0
                answer = await who.say(said)
                assert (answer.error_code, answer.error_message, answer.auth_bytes) == (REFUSED, GENERIC, b"")
                assert await who.is_closed()
        async with stranger(one) as who:
            await who.handshake("GSSAPI")
            await who.say(Client(lab).request)
            assert (await who.say(b"not empty")).error_code == REFUSED
        assert one.asked == []

    at_door(lab, test)
    assert "Request is a replay" in caplog.text and "Cannot decrypt ticket for HTTP/127.0.0.1" in caplog.text


def test_a_session_ends_with_its_ticket(lab: Lab) -> None:
    async def test(one: Door) -> None:
        async with stranger(one) as who:
            for _ in range(2):
                client = Client(lab)
                await client.up_to_the_choice(who)
                answer = await who.say(client.choice(b"\1\0\0\0"))
                assert (answer.error_code, answer.session_lifetime_ms) == (0, 60_000)
                session_of(one).renewed_s -= 1
            session_of(one).ends_s = 0.0
            await wait_until_async(lambda: session_of(one).handshake is Handshake.EXPIRED, "the session expires")
            await closes(who, HeartbeatRequest(), HEARTBEAT_VERSION)

    at_door(lab, test, connections_max_reauth_ms=60_000)


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("RULE:[1:$1]/U", "User:ALICE"),
        ("RULE:[1:$1@$0](.*@OTHER)s/@.*//", None),
        ("RULE:[1:$1@$0]", None),
        ("RULE:[1:broker-7]", None),
    ],
)
def test_rules_name_the_user(lab: Lab, rules: str, principal: str | None) -> None:
    async def test(one: Door) -> None:
        async with stranger(one) as who:
            client = Client(lab)
            if principal is None:
                await who.handshake("GSSAPI")
                assert (await who.say(client.request)).error_code == REFUSED
            else:
                await client.up_to_the_choice(who)
                await who.say(client.choice(b"\1\0\0\0"))
                assert session_of(one).principal == principal

    at_door(lab, test, sasl_kerberos_principal_to_local_rules=rules)


def test_any_key_of_the_keytab_may_serve(lab: Lab, tmp_path: Path) -> None:
    both = lab.realm.keytab(tmp_path / "both.keytab", SERVICE, "HTTP/127.0.0.1")

    async def test(one: Door) -> None:
        for service in (SERVICE, "HTTP/127.0.0.1"):
            async with stranger(one) as who:
                client = Client(lab, service)
                await client.up_to_the_choice(who)
                assert (await who.say(client.choice(b"\1\0\0\0"))).error_code == 0

    async def opened() -> None:
        jaas = {"listener.name.sasl_plaintext.gssapi.sasl.jaas.config": keytab_jaas(both, "*")}
        async with door(**lab.broker_settings() | jaas) as one:
            await test(one)

    run(opened)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"keyTab": "/no/such/keytab"}, "listener SASL_PLAINTEXT: the keytab /no/such/keytab cannot be read: No such"),
        (
            {"principal": "kafka/elsewhere@KAFKALITE.TEST"},
            "has no key of kafka/elsewhere@KAFKALITE.TEST: it has kafka/",
        ),
    ],
)
def test_a_keytab_that_cannot_be_used_stops_the_start(
    lab: Lab, tmp_path: Path, changed: dict[str, str], problem: str
) -> None:
    options = {"keyTab": str(lab.service), "principal": lab.named(SERVICE), **changed}
    jaas = keytab_jaas(options["keyTab"], options["principal"])
    name = "listener.name.sasl_plaintext.gssapi.sasl.jaas.config"
    with pytest.raises(ChildFailed) as failed:
        BrokerProcess(
            tmp_path / "data", overrides=lab.broker_settings() | {name: jaas}, environment=lab.environment()
        ).start()
    assert problem in str(failed.value)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("listener.name.sasl_plaintext.gssapi.sasl.jaas.config", None, "is not set, and GSSAPI is one of"),
        (
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config",
            "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;",
            "names no keytab and principal",
        ),
        ("sasl.kerberos.service.name", "http", "contradict each other"),
        ("sasl.kerberos.principal.to.local.rules", "RULE:[1:$2]", r"beyond \$1"),
    ],
)
def test_settings_that_stop_the_start(lab: Lab, name: str, value: str | None, problem: str) -> None:
    settings = {key: each for key, each in {**lab.broker_settings(), name: value}.items() if each is not None}
    with pytest.raises(ConfigError, match=problem):
        BrokerConfig.from_properties(settings)
