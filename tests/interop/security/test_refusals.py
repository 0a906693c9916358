"""Our clients at doors that do not open: each ends, in one line with the reason and the setting to change."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import (
    IllegalSaslState,
    KafkaliteError,
    NoBrokerThere,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    UnsupportedSaslMechanism,
)
from tests.interop.support.pairwise import pairwise
from tests.lab.certificates import Authority
from tests.lab.secure_kafka import (
    ALICE,
    OAUTHBEARER,
    PLAIN,
    SCRAM_256,
    SCRAM_512,
    SecuredListener,
    SecureKafka,
    User,
    jaas,
)
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

pytestmark = pytest.mark.kafka

Settings = dict[str, str]

# Asked for in the soak only.
LIMIT_S = 10


# What asks first ----------------------------------------------------------------------------------------------------


def ask_as_admin(settings: Settings) -> None:
    with Admin(settings) as admin:
        admin.list_topics()


def ask_as_producer(settings: Settings) -> None:
    producer = Producer(settings)
    try:
        producer.send("a-topic", b"x").result(PATIENCE_S)
    finally:
        producer.close(0)


def ask_as_reader(settings: Settings) -> None:
    with Consumer(settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([("a-topic", 0)])
        for _ in range(60):
            consumer.poll(1000)


def ask_as_member(settings: Settings) -> None:
    with Consumer(settings, group_id="a-group") as consumer:
        consumer.subscribe(["a-topic"])
        for _ in range(60):
            consumer.poll(1000)


ASKING = (ask_as_admin, ask_as_producer, ask_as_reader, ask_as_member)


def refusal(ask: Callable[[Settings], None], settings: Settings) -> tuple[KafkaliteError | None, float]:
    """Return the error, None without one, and after how many seconds the client has ended."""
    started = time.monotonic()
    error: KafkaliteError | None = None
    try:
        ask(settings)
    except KafkaliteError as raised:
        error = raised
    return error, time.monotonic() - started


def problems(door: str, settings: Settings, kind: type[KafkaliteError], words: tuple[str, ...]) -> list[str]:
    """Ask with every kind of client at once; return a line for each that does not end as it should."""
    found = []
    with ThreadPoolExecutor(len(ASKING)) as pool:
        for ask, (error, seconds) in zip(ASKING, pool.map(lambda ask: refusal(ask, settings), ASKING), strict=True):
            text = str(error)
            wrong = [f"took {seconds:.1f} s"] if SOAK and seconds > LIMIT_S else []
            wrong += [] if isinstance(error, kind) else [f"raised {type(error).__name__}"]
            wrong += [f"without {word!r}" for word in words if word not in text]
            wrong += ["more than one line"] if "\n" in text else []
            if wrong:
                found.append(f"{door}, {ask.__name__}: {', '.join(wrong)}: {text}")
    return found


# Credentials --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "mechanism", "user"),
    pairwise(
        list(
            itertools.product(
                [SecuredListener.SASL_PLAINTEXT, SecuredListener.SASL_SSL],
                [PLAIN, SCRAM_256, SCRAM_512],
                [User(ALICE.name, "wrong"), User("nobody", ALICE.password)],
            )
        )
    ),
    ids=lambda value: f"as {value.name}" if isinstance(value, User) else None,
)
def test_a_password_is_refused(
    secure_kafka: SecureKafka, listener: SecuredListener, mechanism: str, user: User
) -> None:
    settings = secure_kafka.client_settings(listener, mechanism, user)
    assert not problems("password", settings, SaslAuthenticationFailed, (mechanism, "sasl.jaas.config"))


def test_a_mechanism_is_not_offered(secure_kafka: SecureKafka) -> None:
    settings = secure_kafka.client_settings(SecuredListener.SASL_PLAINTEXT) | {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.jaas.config": jaas(OAUTHBEARER, unsecuredLoginStringClaim_sub="alice"),
    }
    words = ("sasl.mechanism=OAUTHBEARER", "PLAIN", SCRAM_256, SCRAM_512)
    assert not problems("mechanism", settings, UnsupportedSaslMechanism, words)


# Certificates -------------------------------------------------------------------------------------------------------


def test_the_brokers_certificate_is_refused(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    other = {"ssl.truststore.location": str(Authority(tmp_path, "other").pem_file())}
    doors: dict[str, tuple[Settings, tuple[str, ...]]] = {
        "wrong CA": (secure_kafka.client_settings(SecuredListener.SSL) | other, ("ssl.truststore.location",)),
        "expired": (secure_kafka.client_settings(SecuredListener.EXPIRED), ("expired",)),
        "wrong host": (
            secure_kafka.client_settings(SecuredListener.WRONG_HOST),
            ("127.0.0.1", "ssl.endpoint.identification.algorithm"),
        ),
        "not the system's": (
            {
                name: value
                for name, value in secure_kafka.client_settings(SecuredListener.SSL).items()
                if not name.startswith("ssl.truststore")
            },
            ("ssl.truststore.location",),
        ),
    }
    found = []
    for door, (settings, words) in doors.items():
        found += problems(door, settings, SslHandshakeFailed, words)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_the_clients_certificate_is_refused(secure_kafka: SecureKafka, tmp_path: Path, version: str) -> None:
    settings = secure_kafka.client_settings(SecuredListener.MTLS) | {"ssl.enabled.protocols": version}
    missing = {name: value for name, value in settings.items() if not name.startswith("ssl.keystore")}
    other = settings | {"ssl.keystore.location": str(Authority(tmp_path, "other").issue("alice").pem_file())}
    expired = settings | {"ssl.keystore.location": str(secure_kafka.authority.issue("alice", expired=True).pem_file())}
    found = []
    for door, tried in (("missing", missing), ("another authority's", other), ("expired", expired)):
        found += problems(door, tried, SslHandshakeFailed, ("ssl.keystore.location",))
    assert not found, "\n".join(found)


# Wrong doors --------------------------------------------------------------------------------------------------------


class QuietHandler(BaseHTTPRequestHandler):
    """Answers nothing but errors."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def http_port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


def test_wrong_doors(secure_kafka: SecureKafka, http_port: int, silent_port: int) -> None:
    """All at once, since most of the time is waiting for who does not speak."""

    def at(listener: SecuredListener | str, settings: Settings) -> Settings:
        address = secure_kafka.address(listener.listener_name if isinstance(listener, SecuredListener) else listener)
        return settings | {"bootstrap.servers": address}

    plain: Settings = {}
    tls = secure_kafka.client_settings(SecuredListener.SSL)
    sasl = secure_kafka.client_settings(SecuredListener.SASL_PLAINTEXT, PLAIN)
    sasl_tls = secure_kafka.client_settings(SecuredListener.SASL_SSL, PLAIN)
    http, silent = ({"bootstrap.servers": f"127.0.0.1:{port}"} for port in (http_port, silent_port))
    setting = ("security.protocol",)
    doors: dict[str, tuple[Settings, type[KafkaliteError], tuple[str, ...]]] = {
        "plaintext at TLS": (at(SecuredListener.SSL, plain), NoBrokerThere, setting),
        "plaintext at SASL": (at(SecuredListener.SASL_PLAINTEXT, plain), NoBrokerThere, setting),
        "TLS at plaintext": (at("PLAINTEXT", tls), NoBrokerThere, setting),
        "TLS at SASL with TLS": (at(SecuredListener.SASL_SSL, tls), NoBrokerThere, setting),
        "TLS at SASL without": (at(SecuredListener.SASL_PLAINTEXT, tls), NoBrokerThere, setting),
        "SASL at plaintext": (at("PLAINTEXT", sasl), IllegalSaslState, setting),
        "SASL at TLS": (at(SecuredListener.SSL, sasl), NoBrokerThere, setting),
        "SASL at SASL with TLS": (at(SecuredListener.SASL_SSL, sasl), NoBrokerThere, setting),
        "SASL with TLS at TLS": (at(SecuredListener.SSL, sasl_tls), IllegalSaslState, setting),
        "SASL with TLS at SASL without": (at(SecuredListener.SASL_PLAINTEXT, sasl_tls), NoBrokerThere, setting),
        "plaintext at HTTP": (plain | http, NoBrokerThere, ("address",)),
        "TLS at HTTP": (tls | http, NoBrokerThere, ("bootstrap.servers",)),
        "plaintext at silence": (plain | silent, NoBrokerThere, setting),
        "TLS at silence": (tls | silent, NoBrokerThere, setting),
    }
    with ThreadPoolExecutor(len(doors)) as pool:
        found = [line for lines in pool.map(lambda door: problems(door, *doors[door]), doors) for line in lines]
    assert not found, "\n".join(found)
