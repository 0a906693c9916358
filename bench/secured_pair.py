"""This broker and Apache Kafka with the same listeners, certificates and settings, for benches of security.

Each has PLAINTEXT, SSL, and MTLS (SSL that requires a client certificate). All keys are EC P-256, and the only version
is TLS 1.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_kafkalite import Admin
from spark_kafkalite.acls import AccessControlEntry, Acl, Operation, PatternType, PermissionType, Resource, ResourceType
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.lab.apache_kafka import ApacheKafka
from tests.lab.certificates import LOOPBACK, Authority

PEER: Final = "Apache Kafka 4.3.0"
TLS, MTLS, PLAINTEXT = "SSL", "MTLS", "PLAINTEXT"
_PROTOCOLS: Final = {PLAINTEXT: "PLAINTEXT", TLS: "SSL", MTLS: "SSL"}
# 10,000 connections with TLS do not fit into the GiB that Kafka's own start script gives it.
HEAP_MB: Final = 2048
# Clients of PLAINTEXT are anonymous. What no ACL names is open to all, so that the peer's controller can start.
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


# How many others have rights, among which the authorizer looks.
_OTHERS: Final = 100


@dataclass(frozen=True)
class Subject:
    """A running broker under measurement: its process, and the address of each listener."""

    name: str
    pid: int
    addresses: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        """The address without TLS."""
        return self.addresses[PLAINTEXT]


@dataclass(frozen=True)
class SecuredPair:
    """Both brokers, ours first, the authority's certificate, and the client's key with its certificate (PEM)."""

    subjects: Sequence[Subject]
    authority: Path
    client_key: Path


@contextmanager
def secured_pair(directory: Path, more: Mapping[str, str] | None = None) -> Iterator[SecuredPair]:
    """Run both brokers, with these further settings. Raises ChildFailed when one does not start."""
    authority = Authority(directory / "certificates", "authority")
    server, client = authority.issue("broker", *LOOPBACK), authority.issue("client")
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.pem_file()),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.pem_file()),
        "ssl.enabled.protocols": "TLSv1.3",
        "listener.name.mtls.ssl.client.auth": "required",
        **(more or {}),
    }
    ports = dict(zip(_PROTOCOLS, free_ports(len(_PROTOCOLS)), strict=True))
    listeners = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in _PROTOCOLS.items()),
        "inter.broker.listener.name": PLAINTEXT,
    }
    with ExitStack() as running:
        ours = running.enter_context(BrokerProcess(directory / "ours", overrides={**listeners, **settings}))
        peer = running.enter_context(
            ApacheKafka(
                directory / "peer",
                heap_mb=HEAP_MB,
                jvm_options=("-XX:+UseG1GC",),
                overrides=settings,
                further_listeners={TLS: "SSL", MTLS: "SSL"},
            )
        )
        addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        theirs = {name: peer.address(name) for name in _PROTOCOLS}
        subjects = [Subject("ours", ours.pid, addresses), Subject("peer", peer.pid, theirs)]
        yield SecuredPair(subjects, authority.pem_file(), client.pem_file())


def give_rights(bootstrap: str, topic: str) -> None:
    """Let the anonymous client write and read a topic, and a hundred others their own; ten rights have prefixes."""
    names = [("ANONYMOUS", PatternType.LITERAL, topic)]
    names += [(f"user-{number}", PatternType.LITERAL, f"topic-{number}") for number in range(_OTHERS)]
    names += [(f"user-{number}", PatternType.PREFIXED, f"team-{number}.") for number in range(_OTHERS // 10)]
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_acls(
            [
                Acl(
                    Resource(ResourceType.TOPIC, pattern, name),
                    AccessControlEntry(f"User:{user}", "*", operation, PermissionType.ALLOW),
                )
                for user, pattern, name in names
                for operation in (Operation.WRITE, Operation.READ)
            ]
        )
