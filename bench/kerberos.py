"""How many clients a second authenticate by Kerberos: ours next to Java's, at one Apache Kafka and one KDC.

Each client is made, authenticates with the ticket of a keytab, asks for the cluster, and is closed. One process each,
one client after the other, in turn; those that warm up (the JIT, tickets) do not count. Needs a KDC (krb5-kdc).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.measurement import Row
from spark_kafkalite import Admin
from tests.interop.support.java_clients import compile_java
from tests.interop.support.kerberized_kafka import KerberizedKafka
from tests.interop.support.kerberos_realm import KerberosRealm, keytab_jaas
from tests.lab.apache_kafka import logging_options, properties_text
from tests.lab.java import run_java

_PEER: Final = "Java's client 4.3.0"
_PROGRAM: Final = Path(__file__).parent / "java" / "Authentications.java"
_ROUNDS: Final = 3


def rows(quick: bool) -> Iterator[Row]:
    """Measure both, with records of nothing but authentications."""
    count, warm = (100, 50) if quick else (500, 300)
    with (
        tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as made,
        KerberosRealm(Path(made) / "realm") as realm,
        KerberizedKafka(Path(made), realm) as kafka,
        realm.entered(),
    ):
        settings = kafka.client_settings()
        config = Path(made) / "java.properties"
        keytab, principal = settings["sasl.kerberos.keytab"], settings["sasl.kerberos.principal"]
        jaas = keytab_jaas(keytab, principal)
        own = ("sasl.kerberos.keytab", "sasl.kerberos.principal")
        java = {name: value for name, value in settings.items() if name not in own}
        config.write_text(properties_text({**java, "sasl.jaas.config": jaas}))
        # Java looks the address up backwards, and would ask for the service of localhost.
        hosts = Path(made) / "hosts"
        hosts.write_text("127.0.0.1 127.0.0.1\n")
        options = (
            *logging_options(),
            f"-Djava.security.krb5.conf={realm.krb5_conf}",
            f"-Djdk.net.hosts.file={hosts}",
        )
        class_path = compile_java(_PROGRAM)
        ours, peers = [], []
        for _ in range(_ROUNDS):
            _authenticate(settings, warm)
            began_s, cpu_s = time.perf_counter(), time.process_time()
            _authenticate(settings, count)
            ours.append((time.perf_counter() - began_s, time.process_time() - cpu_s))
            said = run_java(class_path, "Authentications", str(config), str(warm), str(count), jvm_options=options)
            wall, cpu = said.stdout.split()
            peers.append((float(wall), float(cpu)))
        yield Row(
            "clients that authenticate by Kerberos", "/s",
            [count / wall for wall, _ in ours], [count / wall for wall, _ in peers], _PEER, target=1.0,
        )  # fmt: skip
        yield Row(
            "CPU of a client that authenticates by Kerberos", "ms",
            [cpu * 1000 / count for _, cpu in ours], [cpu * 1000 / count for _, cpu in peers], _PEER, False, 1.0,
        )  # fmt: skip


def _authenticate(settings: dict[str, str], count: int) -> None:
    for _ in range(count):
        with Admin(settings) as admin:
            admin.describe_cluster()
