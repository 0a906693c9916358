"""A broker with TLS, and clients that have not been changed: they come in, or are told why not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.helpers import create_ssl_context

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import SslHandshakeFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.security.tls import client_context
from spark_kafkalite.settings import SettingGroup
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.frame import framed
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from tests.interop.support.collect import collected
from tests.interop.support.raw_client import RawClient
from tests.lab import apache_kafka
from tests.lab.certificates import LOOPBACK, STORE_PASSWORD, Authority, Certificate
from tests.patience import PATIENCE_S, wait_until

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

SETTINGS = SettingGroup("client", SECURITY_SETTINGS)
VALUES = [b"%d" % number * 1000 for number in range(300)]
_numbers = itertools.count()


class TlsBroker:
    """A broker with the listeners PLAINTEXT and SSL, whose key store is a file that a test may replace."""

    def __init__(self, directory: Path, **overrides: object) -> None:
        directory.mkdir(exist_ok=True)
        self.authority = Authority(directory / "certificates", "ours")
        self.store = directory / "broker.pem"
        self.replace_certificate(self.authority.issue("broker", *LOOPBACK))
        plain, tls = free_ports(2)
        self.bootstrap = f"127.0.0.1:{tls}"
        settings: dict[str, object] = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://{self.bootstrap}",
            "ssl.keystore.location": self.store,
            "ssl.truststore.location": self.authority.pem_file(),
            "ssl.allow.dn.changes": "true",
            "group.initial.rebalance.delay.ms": 0,
            **{name.replace("_", "."): value for name, value in overrides.items()},
        }
        self.process = BrokerProcess(directory / "data", port=plain, overrides=settings)

    def replace_certificate(self, certificate: Certificate) -> None:
        """Put another certificate in the place of the broker's, as tools that renew them do."""
        new = self.store.with_suffix(".new")
        new.write_bytes(certificate.pem_file().read_bytes())
        new.chmod(0o600)
        new.replace(self.store)

    def client_settings(self, certificate: Certificate | None = None) -> dict[str, str]:
        """Return the settings of our clients, and of Java's."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.pem_file()),
        }
        if certificate is not None:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate.pem_file())}
        return settings

    def client_context(self) -> ssl.SSLContext:
        own = {name: value for name, value in self.client_settings().items() if name != "bootstrap.servers"}
        return client_context(SETTINGS.defaults() | SETTINGS.parse(own))

    def connected(self) -> ssl.SSLSocket:
        """Return a new connection after its handshake."""
        plain = socket.create_connection(("127.0.0.1", int(self.bootstrap.rpartition(":")[2])), PATIENCE_S)
        return self.client_context().wrap_socket(plain, server_hostname="127.0.0.1")

    def serial_number(self) -> str:
        """Return the serial number of the certificate that new connections get."""
        with contextlib.closing(self.connected()) as connection:
            return str((connection.getpeercert() or {})["serialNumber"])

    def said(self) -> str:
        return self.process.stderr_path.read_text()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    one = TlsBroker(tmp_path_factory.mktemp("tls"), ssl_client_auth="requested")
    with one.process:
        yield one


@pytest.fixture
def topic(broker: TlsBroker) -> str:
    name = f"t{next(_numbers)}"
    with Admin(broker.client_settings()) as admin:
        admin.create_topic(name, 1, 1)
    return name


# Clients ------------------------------------------------------------------------------------------------------------


def ours(broker: TlsBroker, topic: str) -> list[bytes]:
    with Producer(broker.client_settings()) as producer:
        for value in VALUES:
            producer.send(topic, value, partition=0)
        producer.flush(PATIENCE_S)
    with Consumer({**broker.client_settings(), "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        return [record.value for record in collected(lambda: consumer.poll(500, 10_000), len(VALUES))]


def librdkafka(broker: TlsBroker, topic: str) -> list[bytes]:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(broker.authority.pem_file()),
    }
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "enable.auto.commit": False})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        messages = collected(lambda: consumer.consume(len(VALUES), 0.05), len(VALUES))
    finally:
        consumer.close()
    return [message.value() for message in messages]


def kafka_python(broker: TlsBroker, topic: str) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(broker.authority.pem_file()),
    }
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value, partition=0)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(**settings, auto_offset_reset="earliest", group_id=None)
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])

        def some() -> list[Any]:
            return [record for records in consumer.poll(50).values() for record in records]

        return [record.value for record in collected(some, len(VALUES))]
    finally:
        consumer.close()


def asyncio_kafka(broker: TlsBroker, topic: str) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_context": create_ssl_context(cafile=str(broker.authority.pem_file())),
    }

    async def run() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send(topic, value, partition=0)
            await producer.flush()
        consumer = aiokafka.AIOKafkaConsumer(**settings, auto_offset_reset="earliest")
        async with consumer:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.parametrize("client", [ours, librdkafka, kafka_python, asyncio_kafka])
def test_what_a_client_sends_over_tls_it_reads_over_tls(
    broker: TlsBroker, topic: str, client: Callable[[TlsBroker, str], list[bytes]]
) -> None:
    assert client(broker, topic) == VALUES


@pytest.mark.kafka
def test_javas_tools_send_and_read_over_tls_with_a_certificate(broker: TlsBroker, topic: str, tmp_path: Path) -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    config = tmp_path / "client.properties"
    config.write_text(apache_kafka.properties_text(broker.client_settings(broker.authority.issue("java"))))
    server = ("--bootstrap-server", broker.bootstrap)
    apache_kafka.kafka_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *server, "--topic", topic, "--command-config", str(config),
        input="one\ntwo\nthree\n",
    )  # fmt: skip
    read = apache_kafka.kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *server, "--topic", topic, "--command-config", str(config), "--from-beginning", "--max-messages", "3",
    )  # fmt: skip
    assert read.stdout.split() == ["one", "two", "three"]


def test_large_records_and_many_in_flight_come_whole(broker: TlsBroker, topic: str) -> None:
    values = [os.urandom(900_000) for _ in range(40)]
    with Producer({**broker.client_settings(), "acks": "all"}) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush(PATIENCE_S)
    with Consumer(broker.client_settings()) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        assert [record.value for record in collected(lambda: consumer.poll(500, 1000), len(values))] == values


@pytest.mark.parametrize("form", ["pkcs12", pytest.param("jks", marks=pytest.mark.kafka)])
def test_key_and_trust_stores_of_java_serve_a_listener(tmp_path: Path, form: str) -> None:
    one = TlsBroker(tmp_path)
    certificate = one.authority.issue("broker", *LOOPBACK)
    store, trust = (
        (certificate.pkcs12_file(), one.authority.pkcs12_file())
        if form == "pkcs12"
        else (certificate.jks_file(), one.authority.jks_file())
    )
    stores = TlsBroker(
        tmp_path / "other",
        ssl_keystore_location=store,
        ssl_keystore_password=STORE_PASSWORD,
        ssl_truststore_location=trust,
        ssl_truststore_password=STORE_PASSWORD,
        ssl_client_auth="required",
    )
    stores.authority = one.authority
    with stores.process, Admin(stores.client_settings(one.authority.issue("client"))) as admin:
        assert admin.describe_cluster().cluster_id


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_without_the_certificate_that_is_required_a_client_is_told_so(tmp_path: Path, version: str) -> None:
    one = TlsBroker(tmp_path, ssl_client_auth="required", ssl_enabled_protocols=version)
    with one.process:
        with Admin(one.client_settings(one.authority.issue("anna"))) as admin:
            assert admin.describe_cluster().cluster_id
        with (
            pytest.raises(SslHandshakeFailed, match=r"set ssl\.keystore\.location"),
            Admin(one.client_settings()) as admin,
        ):
            admin.describe_cluster()
        stranger = Authority(tmp_path / "strange", "strange").issue("anna")
        with (
            pytest.raises(SslHandshakeFailed, match="the broker refuses our certificate"),
            Admin(one.client_settings(stranger)) as admin,
        ):
            admin.describe_cluster()
        words = "showed no certificate, and ssl.client.auth=required asks for one"
        wait_until(lambda: words in one.said(), "the broker's words")
        assert "Traceback" not in one.said()


# Renewal ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", ["signal", "file", "settings"])
def test_a_renewed_certificate_is_for_new_connections_and_open_ones_stay(tmp_path: Path, trigger: str) -> None:
    one = TlsBroker(tmp_path)
    with one.process:
        with Producer(one.client_settings()) as producer:
            producer.send("t", b"before").result(PATIENCE_S)
            old = one.serial_number()
            renewed = one.authority.issue("broker", *LOOPBACK)
            if trigger == "settings":
                other = tmp_path / "renewed.pem"
                other.write_bytes(renewed.pem_file().read_bytes())
                with Admin(one.client_settings()) as admin:
                    admin.alter_configs({"listener.name.ssl.ssl.keystore.location": str(other)}, broker_id=1)
            else:
                one.replace_certificate(renewed)
                if trigger == "signal":
                    os.kill(one.process.pid, signal.SIGHUP)
            wait_until(lambda: one.serial_number() != old, "the new certificate")
            producer.send("t", b"after").result(PATIENCE_S)
        assert "listener SSL: new connections have the certificates that have changed" in one.said()


def test_a_bad_file_keeps_the_old_certificate_and_says_so(tmp_path: Path) -> None:
    one = TlsBroker(tmp_path, ssl_allow_dn_changes="false")
    with one.process:
        old = one.serial_number()
        for content, words in (
            (b"-----BEGIN nothing", "holds no certificate|cut short or damaged"),
            (one.authority.issue("other", *LOOPBACK).pem_file().read_bytes(), "set ssl.allow.dn.changes=true"),
        ):
            one.store.write_bytes(content)
            os.kill(one.process.pid, signal.SIGHUP)
            first = words.split("|")[-1]
            wait_until(lambda first=first: first in one.said(), "the broker's words")
            assert one.serial_number() == old


def test_a_thousand_open_connections_stay_through_a_renewal(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    one = TlsBroker(tmp_path)
    with one.process, contextlib.ExitStack() as stack:
        clients = []
        for _ in range(1000):
            client = stack.enter_context(RawClient.over(one.connected()))
            clients.append(client)
        old = one.serial_number()
        one.replace_certificate(one.authority.issue("broker", *LOOPBACK))
        os.kill(one.process.pid, signal.SIGHUP)
        wait_until(lambda: one.serial_number() != old, "the new certificate")
        for client in clients:
            assert client.call(ApiVersionsRequest(), 2).error_code == 0


# Hostile peers ------------------------------------------------------------------------------------------------------


def open_socket(broker: TlsBroker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(broker.bootstrap.rpartition(":")[2])), PATIENCE_S)


def is_closed(peer: socket.socket) -> bool:
    """Wait until the broker closes the connection; it may say why before."""
    try:
        while peer.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\x20" + bytes(32),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(200),
        b"\x16\x03\x01\x00\x10" + bytes(range(16)),
        b"\x15\x03\x03\x00\x02\x02\x28",
    ],
    ids=["frame", "http", "long record", "noise", "alert"],
)
def test_what_is_no_handshake_costs_its_own_connection_only(broker: TlsBroker, garbage: bytes) -> None:
    with contextlib.closing(open_socket(broker)) as peer:
        peer.sendall(garbage)
        assert is_closed(peer)
    # The line comes after the end of the connection.
    wait_until(lambda: "did not complete its handshake: " in broker.said(), "the broker's words")
    assert "Traceback" not in broker.said()
    assert broker.serial_number()


def test_tls_to_a_listener_without_it_is_named(broker: TlsBroker) -> None:
    def is_named() -> bool:
        """Try once more, too: tests before may have used up the lines that are written in ten seconds."""
        with (
            contextlib.closing(socket.create_connection(("127.0.0.1", broker.process.port), PATIENCE_S)) as peer,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            broker.client_context().wrap_socket(peer, server_hostname="127.0.0.1")
        return "speaks TLS to a listener without TLS" in broker.said()

    wait_until(is_named, "the broker's words", poll_s=0.1)


def test_a_handshake_that_stops_anywhere_is_ended(tmp_path: Path) -> None:
    one = TlsBroker(tmp_path, request_read_timeout_ms=1000)
    with one.process, contextlib.ExitStack() as stack:
        outgoing = ssl.MemoryBIO()
        client = one.client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        peers = []
        for length in (0, 1, 5, 6, len(hello) // 2, len(hello) - 1, len(hello)):
            peer = stack.enter_context(contextlib.closing(open_socket(one)))
            peer.sendall(hello[:length])
            peers.append(peer)
        assert all(map(is_closed, peers))
        wait_until(lambda: one.said().count("did not complete its handshake in") >= 5, "the broker's words")


def test_a_flood_of_half_handshakes_keeps_nobody_out(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    one = TlsBroker(tmp_path, request_read_timeout_ms=60_000)
    with one.process, contextlib.ExitStack() as stack:
        for _ in range(1500):
            stack.enter_context(contextlib.closing(open_socket(one))).sendall(b"\x16\x03\x01\x02\x00\x01")
        assert one.serial_number()
        wait_until(lambda: "is the oldest of 1001 handshakes" in one.said(), "the broker's words")
        memory = Path(f"/proc/{one.process.pid}/status").read_text()
        resident_kb = int(memory.partition("VmRSS:")[2].split()[0])
        assert resident_kb < 300_000


@pytest.mark.debian
def test_a_client_that_changes_its_keys_again_and_again_is_served_on(broker: TlsBroker) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl on the PATH (Debian package openssl)")
    process = subprocess.Popen(
        [program, "s_client", "-connect", broker.bootstrap, "-tls1_3"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    said = bytearray()

    def has_shown(part: bytes, times: int) -> bool:
        assert process.stdout is not None
        said.extend(process.stdout.read() or b"")
        return said.count(part) >= times

    with process:
        wait_until(lambda: has_shown(b"Verify return code", 1), "the handshake")
        for number in range(1, 51):
            # Asks for new keys of the broker, too.
            process.stdin.write(b"K\n")
            wait_until(lambda number=number: has_shown(b"KEYUPDATE", number), "new keys")  # type: ignore[misc]
        body = codec.encode_request(ApiVersionsRequest(), 2, 0x4B4B4B4B, "raw")
        process.stdin.write(framed(body))
        wait_until(lambda: has_shown(b"KKKK", 1), "the answer")
        process.kill()
    assert "Traceback" not in broker.said()
