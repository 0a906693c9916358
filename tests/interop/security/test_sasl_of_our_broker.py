"""Our broker authenticates the clients of others and ours, and its users are kept by Kafka's tools and ours."""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka
import confluent_kafka.admin
import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.errors import KafkaError, RegistryError, ResourceNotFound, SaslAuthenticationFailed
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.registry import entity_nodes, znodes
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.security.scram import ScramClient, credential_text, new_salt, scram_credential
from spark_kafkalite.wire.messages.metadata import MetadataRequest
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.interop.security.aiokafka_client import sent_by_aiokafka
from tests.interop.security.kafka_python_client import asked_by_kafka_python
from tests.interop.security.lasting_sessions import wait_for_lasting_sessions
from tests.interop.security.numbered_load import NumberedLoad
from tests.interop.security.test_reference_clients import reason_of_refusal
from tests.interop.support.java_tools import JavaTools
from tests.interop.support.pairwise import pairwise
from tests.interop.support.raw_client import RawClient
from tests.interop.support.sasl_broker import (
    ADMIN,
    ADMIN_PASSWORD,
    LIFETIME_MS,
    MECHANISMS,
    PLAIN,
    SCRAM_256,
    SCRAM_512,
    USERS_OF_PLAIN,
    Endpoint,
    SaslBroker,
    in_librdkafkas_words,
    in_pythons_words,
    settings_of,
)
from tests.lab.apache_kafka import properties_text
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

# Tries to enter at a listener by a mechanism, with a user and a password; returns None, or the reason of the refusal.
Enter = Callable[[Endpoint, str, str, str], str | None]

USER, PASSWORD = "carol", "carol's p\xe4ssword"
# Passwords as they could be found in a log: as they are, and salted and encoded they are others.
CANARIES = (ADMIN_PASSWORD, PASSWORD, "wrong-canary")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    with SaslBroker(tmp_path_factory.mktemp("broker") / "data") as running:
        with Admin(settings_of(running.bootstrap)) as admin:
            for mechanism in (SCRAM_256, SCRAM_512):
                admin.set_password(USER, PASSWORD, mechanism=mechanism)
            admin.create_topic("sent", 1, 1)
        yield running
        log = running.stderr_path.read_text()
        assert [canary for canary in CANARIES if canary in log] == []
        assert "Traceback" not in log


def credentials(mechanism: str) -> tuple[str, str]:
    return (ADMIN, ADMIN_PASSWORD) if mechanism == PLAIN else (USER, PASSWORD)


def ours(endpoint: Endpoint | str, mechanism: str, user: str, password: str) -> str | None:
    try:
        with Admin(settings_of(endpoint, mechanism, user, password)) as admin:
            assert "sent" in admin.list_topics()
    except SaslAuthenticationFailed as error:
        return str(error)
    return None


def librdkafka(endpoint: Endpoint, mechanism: str, user: str, password: str) -> str | None:
    return reason_of_refusal(in_librdkafkas_words(endpoint, mechanism, user, password))


def kafka_python(endpoint: Endpoint, mechanism: str, user: str, password: str) -> str | None:
    return asked_by_kafka_python(in_pythons_words(endpoint, mechanism, user, password))


def aio(endpoint: Endpoint, mechanism: str, user: str, password: str) -> str | None:
    return sent_by_aiokafka(in_pythons_words(endpoint, mechanism, user, password))


@pytest.fixture
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Enter:
    tools: JavaTools = request.getfixturevalue("java_tools")

    def enter(endpoint: Endpoint, mechanism: str, user: str, password: str) -> str | None:
        config = tmp_path / "client.properties"
        # Java reads files of properties as Latin-1.
        config.write_text(properties_text(settings_of(endpoint, mechanism, user, password)), "latin-1")
        done = tools.run(
            "org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", endpoint.bootstrap,
            "--command-config", str(config), check=False,
        )  # fmt: skip
        return None if "sent" in done.stdout.split() else done.stdout + done.stderr

    return enter


CLIENTS: Final[dict[str, Enter | None]] = {
    "ours": ours, "librdkafka": librdkafka, "kafka-python": kafka_python, "aiokafka": aio, "java": None,
}  # fmt: skip
ENTRIES: Final = pairwise(
    [
        (*entry, listener)
        for entry in itertools.product(CLIENTS, MECHANISMS)
        for listener in ("SASL_SSL", "SASL_PLAINTEXT")
    ]
)


@pytest.mark.parametrize(
    ("client", "mechanism", "listener"),
    [pytest.param(*entry, marks=[pytest.mark.kafka] if entry[0] == "java" else []) for entry in ENTRIES],
)
def test_the_right_password_is_taken_and_others_are_not(
    broker: SaslBroker, request: pytest.FixtureRequest, client: str, mechanism: str, listener: str
) -> None:
    enter: Enter = CLIENTS[client] or request.getfixturevalue("java")
    endpoint, (user, password) = broker.endpoints[listener], credentials(mechanism)
    assert enter(endpoint, mechanism, user, password) is None
    for wrong in ((user, "wrong-canary"), ("nobody", password)):
        reason = enter(endpoint, mechanism, *wrong)
        assert reason is not None, wrong
        assert client in ("kafka-python", "aiokafka") or "uthentication failed" in reason


@pytest.fixture
def tool(broker: SaslBroker, java_tools: JavaTools, tmp_path: Path) -> Callable[..., Any]:
    def run(
        name: str,
        *arguments: str,
        mechanism: str = PLAIN,
        user: str = ADMIN,
        password: str = ADMIN_PASSWORD,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        config = tmp_path / "client.properties"
        settings = settings_of(broker.bootstrap, mechanism, user, password)
        config.write_text(properties_text(settings))
        arguments = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config), *arguments)
        return java_tools.run(name, *arguments, check=check)

    return run


@pytest.mark.kafka
def test_users_of_kafkas_tool(broker: SaslBroker, tool: Callable[..., Any]) -> None:
    configs, topics = "kafka.admin.ConfigCommand", "org.apache.kafka.tools.TopicCommand"
    dave = ("--entity-type", "users", "--entity-name", "dave")
    both = "SCRAM-SHA-512=[password=dave-1],SCRAM-SHA-256=[iterations=8192,password=dave-2]"
    altered = tool(configs, "--alter", *dave, "--add-config", both).stdout
    assert "Completed updating config for user dave." in altered
    described = tool(configs, "--describe", *dave).stdout
    assert "SCRAM credential configs for user-principal 'dave' are" in described
    assert "SCRAM-SHA-256=iterations=8192" in described and "SCRAM-SHA-512=iterations=4096" in described
    for mechanism, password in ((SCRAM_512, "dave-1"), (SCRAM_256, "dave-2")):
        as_dave = {"mechanism": mechanism, "user": "dave", "password": password}
        assert "sent" in tool(topics, "--list", **as_dave).stdout.split()
        refused = tool(topics, "--list", **(as_dave | {"password": "wrong-canary"}), check=False)
        assert refused.returncode != 0
        assert (
            "SaslAuthenticationException: Authentication failed during authentication due to invalid credentials with "
            f"SASL mechanism {mechanism}" in refused.stdout + refused.stderr
        )
    tool(configs, "--alter", *dave, "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM-SHA-512" not in tool(configs, "--describe", *dave).stdout
    refused = tool(topics, "--list", mechanism=SCRAM_512, user="dave", password="dave-1", check=False)
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
    assert "sent" in tool(topics, "--list", mechanism=SCRAM_256, user="dave", password="dave-2").stdout.split()
    again = tool(configs, "--alter", *dave, "--delete-config", "SCRAM-SHA-512", check=False)
    assert "Attempt to delete a user credential that does not exist" in again.stdout + again.stderr
    few = tool(configs, "--alter", *dave, "--add-config", "SCRAM-SHA-256=[iterations=10,password=x]", check=False)
    assert few.returncode != 0
    refused = tool(
        configs, "--alter", "--entity-type", "users", "--entity-name", "broker-1", "--add-config",
        "SCRAM-SHA-256=[password=x]", check=False,
    )  # fmt: skip
    assert "those of the brokers; choose another name" in refused.stdout + refused.stderr


def test_users_of_librdkafka(broker: SaslBroker) -> None:
    admin = confluent_kafka.admin.AdminClient(in_librdkafkas_words(broker.bootstrap, PLAIN, ADMIN, ADMIN_PASSWORD))
    mechanism = confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512
    upsertion = confluent_kafka.admin.UserScramCredentialUpsertion(
        "erin", confluent_kafka.admin.ScramCredentialInfo(mechanism, 5000), b"erin-pass"
    )
    (done,) = admin.alter_user_scram_credentials([upsertion]).values()
    done.result(PATIENCE_S)
    described = admin.describe_user_scram_credentials(["erin"])["erin"].result(PATIENCE_S)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [(mechanism, 5000)]
    assert ours(broker.bootstrap, SCRAM_512, "erin", "erin-pass") is None
    deletion = confluent_kafka.admin.UserScramCredentialDeletion("erin", mechanism)
    (done,) = admin.alter_user_scram_credentials([deletion]).values()
    done.result(PATIENCE_S)
    assert ours(broker.bootstrap, SCRAM_512, "erin", "erin-pass") is not None


def test_a_password_is_changed_and_a_user_outlives_a_restart(tmp_path: Path) -> None:
    with SaslBroker(tmp_path / "data") as broker:
        with Admin(settings_of(broker.bootstrap)) as admin:
            admin.create_topic("sent", 1, 1)
            admin.set_password("zo\xeb/%", "one")
            admin.set_password("zo\xeb/%", "two")
            assert admin.describe_users() == {"zo\xeb/%": {SCRAM_512: 4096}}
        for _ in range(2):
            assert ours(broker.bootstrap, SCRAM_512, "zo\xeb/%", "one") is not None
            assert ours(broker.bootstrap, SCRAM_512, "zo\xeb/%", "two") is None
            broker.restart()
        with Admin(settings_of(broker.bootstrap)) as admin:
            admin.delete_user("zo\xeb/%")
            with pytest.raises(ResourceNotFound):
                admin.delete_user("zo\xeb/%")
            # Its node stays, as in Kafka, and has nothing to describe.
            assert admin.describe_users() == {} and admin.describe_client_quotas() == []


def test_load_over_many_sessions(broker: SaslBroker) -> None:
    """Nothing is lost, doubled or out of order while clients authenticate again every two seconds."""
    load = NumberedLoad(settings_of(broker.reauth, SCRAM_256, USER, PASSWORD), "many-sessions")
    load.start()
    try:
        load.run_for(5 * LIFETIME_MS / 1000)
    finally:
        load.finish()
    assert load.sent and load.answers


@pytest.mark.parametrize("client", ["librdkafka", "kafka-python"])
def test_clients_of_others_authenticate_again(broker: SaslBroker, client: str) -> None:
    pause_s = LIFETIME_MS / 1000 / 10
    with contextlib.ExitStack() as stack:
        if client == "librdkafka":
            producer = confluent_kafka.Producer(in_librdkafkas_words(broker.reauth, SCRAM_256, USER, PASSWORD))
        else:
            import kafka

            sender = kafka.KafkaProducer(**in_pythons_words(broker.reauth, SCRAM_256, USER, PASSWORD))
            stack.callback(sender.close)

        def send() -> None:
            if client == "librdkafka":
                producer.produce("sent", b"x")
                assert producer.flush(PATIENCE_S) == 0
            else:
                sender.send("sent", b"x").get(PATIENCE_S)

        def send_for_three_lifetimes() -> None:
            for _ in range(30):
                send()
                time.sleep(pause_s)

        wait_for_lasting_sessions(broker, send_for_three_lifetimes)


def test_a_deleted_user_is_served_no_longer_than_its_session(broker: SaslBroker) -> None:
    with Admin(settings_of(broker.bootstrap)) as admin, contextlib.ExitStack() as stack:
        admin.set_password("frank", "frank-pass")
        frank = stack.enter_context(Admin(settings_of(broker.reauth, SCRAM_512, "frank", "frank-pass")))
        frank.list_topics()
        admin.delete_user("frank")

        def is_refused() -> bool:
            try:
                frank.list_topics()
            except SaslAuthenticationFailed:
                return True
            return False

        wait_until(is_refused, "the session of the deleted user ends")


DIGEST = "cluster:password"


class Pair(NamedTuple):
    registry: RegistryProcess
    brokers: list[BrokerProcess]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two brokers, whose one listener serves clients and themselves."""
    path = tmp_path_factory.mktemp("pair")
    with RegistryProcess(path / "registry") as registry, contextlib.ExitStack() as stack:
        brokers = []
        for number, port in enumerate(free_ports(2), 1):
            overrides = {
                "broker.id": number,
                "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS_OF_PLAIN,
                "zookeeper.connect": registry.connect,
                "zookeeper.digest": DIGEST,
            }
            brokers.append(stack.enter_context(BrokerProcess(path / f"broker-{number}", overrides=overrides)))
        yield Pair(registry, brokers)


def test_brokers_and_clients_share_a_listener(pair: Pair) -> None:
    first, second = (broker.bootstrap for broker in pair.brokers)
    with Admin(settings_of(first)) as admin:
        # The follower authenticates to its leader there.
        admin.create_topic("sent", 2, 2, configs={"min.insync.replicas": "2"})
        with Producer(settings_of(second)) as producer:
            for partition in range(2):
                assert producer.send("sent", b"x", partition=partition).result(PATIENCE_S).offset == 0
        admin.set_password(USER, PASSWORD, mechanism=SCRAM_256)
        admin.set_password(USER, PASSWORD, mechanism=SCRAM_512)
    for bootstrap in (first, second):
        for mechanism in (SCRAM_256, SCRAM_512):
            wait_until(
                lambda: ours(bootstrap, mechanism, USER, PASSWORD) is None,  # noqa: B023
                "the other broker knows the user",
            )
    # The secret of the cluster makes no client a user, and no client's user a broker.
    assert ours(second, SCRAM_256, "broker-1", PASSWORD) is not None
    with Admin(settings_of(second)) as admin, pytest.raises(KafkaError, match="those of the brokers"):
        admin.set_password("broker-1", "x")


def scram_login(bootstrap: str, mechanism: str, user: str, password: str) -> RawClient:
    client, scram = RawClient(bootstrap), ScramClient(mechanism, user, password)
    assert client.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
    challenge = client.call(SaslAuthenticateRequest(auth_bytes=scram.first()), 2).auth_bytes
    assert client.call(SaslAuthenticateRequest(auth_bytes=scram.answer(challenge) or b""), 2).error_code == 0
    return client


def test_a_deleted_credential_ends_its_connections_at_all_brokers_and_no_others(pair: Pair) -> None:
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(Admin(settings_of(pair.brokers[0].bootstrap)))
        admin.create_topic("empty", 2, 2)
        led = {info.leader: info.partition for info in admin.describe_topics(["empty"])["empty"].partitions}
        for user, mechanism in (("judy", SCRAM_256), ("judy", SCRAM_512), ("ken", SCRAM_512)):
            admin.set_password(user, "old-pass", mechanism=mechanism)

        def connected(number: int, mechanism: str, user: str) -> RawClient:
            broker = pair.brokers[number - 1]
            wait_until(lambda: not refuses(broker.bootstrap, mechanism, user, "old-pass"), "the broker knows the user")
            client = stack.enter_context(scram_login(broker.bootstrap, mechanism, user, "old-pass"))
            # One that waits for records for a day.
            client.send_fetch("empty", 0, partition=led[number], max_wait_ms=86_400_000, min_bytes=1)
            return client

        stolen = [connected(number, SCRAM_512, "judy") for number in led]
        others = [
            connected(number, mechanism, user)
            for number in led
            for mechanism, user in ((SCRAM_256, "judy"), (SCRAM_512, "ken"))
        ]
        # A new password ends nothing: what is answered below would be closed else.
        admin.set_password("ken", "new-pass", mechanism=SCRAM_512)
        # The user that deletes itself receives the answer.
        judy = stack.enter_context(Admin(settings_of(pair.brokers[0].bootstrap, SCRAM_512, "judy", "old-pass")))
        judy.delete_user("judy", [SCRAM_512])
        # At once: the other broker may have read the node before and after both changes only.
        admin.set_password("judy", "new-pass", mechanism=SCRAM_512)
        assert [each.is_closed() for each in stolen] == [True, True]
        for broker in pair.brokers:
            line = r"INFO \S+ closed \d connections? whose credentials have been deleted: 'User:judy' \(\d\)\n"
            wait_until(
                lambda: re.search(line, broker.stderr_path.read_text()),  # noqa: B023
                "the line about closed connections",
            )
            wait_until(
                lambda: not refuses(broker.bootstrap, SCRAM_512, "judy", "new-pass"),  # noqa: B023
                "the new credential holds",
            )
        for other in others:
            other.send(MetadataRequest(topics=[]), 12)
            other.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.is_closed()


def test_only_brokers_read_the_credentials_of_users(pair: Pair) -> None:
    with Admin(settings_of(pair.brokers[0].bootstrap)) as admin:
        admin.set_password("grace", "grace-pass")
    path = entity_nodes.entity_node(entity_nodes.user_entity("grace"))
    brokers_store = open_zookeeper(pair.registry.connect, auth=("digest", DIGEST))
    strangers_store = open_zookeeper(pair.registry.connect)
    try:
        data, _ = brokers_store.get(path).result(PATIENCE_S)
        assert b'"SCRAM-SHA-512":"salt=' in data
        for private in (path, entity_nodes.DECOY_SECRET):
            with pytest.raises(RegistryError):
                strangers_store.get(private).result(PATIENCE_S)
        with pytest.raises(RegistryError):
            strangers_store.create("/config/users/mallory", data).result(PATIENCE_S)
    finally:
        brokers_store.close()
        strangers_store.close()


def test_no_other_client_of_the_registry_replaces_what_brokers_prove_themselves_by(pair: Pair) -> None:
    stranger = open_zookeeper(pair.registry.connect)
    try:
        for secret in (znodes.INTER_BROKER_SECRET, entity_nodes.DECOY_SECRET):
            with pytest.raises(RegistryError, match="NoAuth"):
                stranger.delete(secret).result(PATIENCE_S)
        # It is empty as long as there are no users of SCRAM.
        with pytest.raises(RegistryError, match="NoAuth"):
            stranger.delete("/config/users").result(PATIENCE_S)
        # What brokers read of others is open as before.
        stranger.children("/brokers/ids").result(PATIENCE_S)
        stranger.children("/config/topics").result(PATIENCE_S)
    finally:
        stranger.close()


def test_no_client_of_an_embedded_registry_makes_itself_a_user(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    overrides = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": SCRAM_256,
        "registry.listener": f"127.0.0.1:{port}",
    }
    with BrokerProcess(tmp_path / "data", overrides=overrides):
        stranger = open_zookeeper(f"127.0.0.1:{port}")
        try:
            with pytest.raises(RegistryError, match="NoAuth"):
                stranger.delete("/config/users").result(PATIENCE_S)
            with pytest.raises(RegistryError, match="NoAuth"):
                stranger.create("/config/users/mallory").result(PATIENCE_S)
        finally:
            stranger.close()


def refuses(bootstrap: str, mechanism: str, user: str, password: str) -> bool:
    with Admin(settings_of(bootstrap, mechanism, user, password)) as admin:
        try:
            admin.describe_cluster()
        except SaslAuthenticationFailed:
            return True
    return False


def test_users_are_known_while_the_registry_is_unavailable(pair: Pair) -> None:
    with Admin(settings_of(pair.brokers[1].bootstrap)) as admin:
        admin.set_password("heidi", "heidi-pass")
    bootstrap = pair.brokers[1].bootstrap
    # The controller has written it, and this broker follows.
    wait_until(lambda: not refuses(bootstrap, SCRAM_512, "heidi", "heidi-pass"), "the other broker knows the user")
    pair.registry.pause()
    try:
        for mechanism, user, password in ((SCRAM_512, "heidi", "heidi-pass"), (PLAIN, ADMIN, ADMIN_PASSWORD)):
            with Admin(settings_of(pair.brokers[1].bootstrap, mechanism, user, password)) as admin:
                assert len(admin.describe_cluster().brokers) == 2
        assert refuses(pair.brokers[1].bootstrap, SCRAM_512, "heidi", "wrong")
    finally:
        pair.registry.resume()


def test_what_an_old_tool_writes_into_the_registry_is_followed(pair: Pair) -> None:
    credential = credential_text(scram_credential(SCRAM_256, "ivan-pass", new_salt(), 4096))
    entity = entity_nodes.user_entity("ivan")
    store = open_zookeeper(pair.registry.connect, auth=("digest", DIGEST))
    try:
        # As kafka-configs --zookeeper does: the node, and then a notice of version 2.
        store.create(entity_nodes.entity_node(entity), znodes.encode_config({SCRAM_256: credential})).result(PATIENCE_S)
        notice = b'{"version":2,"entity_path":"users/ivan"}'
        store.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True).result(PATIENCE_S)
    finally:
        store.close()
    for broker in pair.brokers:

        def is_known(bootstrap: str = broker.bootstrap) -> bool:
            return not refuses(bootstrap, SCRAM_256, "ivan", "ivan-pass")

        wait_until(is_known, "the broker follows the notice")
