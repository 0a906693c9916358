"""What metrics of a secured broker say about its clients: who came in, who was refused, who is throttled."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.broker.metrics.client_families import MOST_SOFTWARE
from spark_kafkalite.errors import SaslAuthenticationFailed, TopicAuthorizationFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from tests.interop.broker.test_metrics import METRICS, asked, scraped, scraped_anew, value
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

SOCKETS = "kafka_server_socket_server_metrics"
IN_2026_S = 1_780_000_000
CLIENT = 'a "client" \\ of hostile ☃ names'


def test_logins_handshakes_denials_and_quotas_are_counted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", tls=True, sasl="SCRAM-SHA-512", overrides=METRICS) as broker:
        assert broker.security is not None
        found = scraped_anew(broker)
        before = value(found, f"{SOCKETS}_successful_authentication", listener="SASL_SSL")
        assert "kafkalite_quota_limit" not in found
        wrong = dict(broker.client_settings)
        wrong["sasl.jaas.config"] = wrong["sasl.jaas.config"].replace(broker.security.password, "wrong")
        with pytest.raises(SaslAuthenticationFailed), Admin(wrong) as admin:
            admin.describe_cluster()
        host, port = broker.bootstrap.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as stranger:
            stranger.sendall(b"this is no handshake of TLS" * 10)
            while stranger.recv(1024):
                pass
        other = dict(broker.client_settings)
        other["sasl.jaas.config"] = (
            other["sasl.jaas.config"].replace(broker.security.password, "of-bob").replace("admin", "bob")
        )
        with Admin(broker.client_settings) as admin:
            admin.create_topic("orders", 1)
            admin.set_password("bob", "of-bob", mechanism="SCRAM-SHA-512")
            admin.alter_client_quotas({"user": "admin", "client-id": CLIENT}, {"producer_byte_rate": 10_000})
            with Admin(other) as bobs, pytest.raises(TopicAuthorizationFailed):
                bobs.alter_configs({"retention.ms": "1"}, topic="orders")

            def limit() -> bool:
                return "kafkalite_quota_limit" in scraped_anew(broker)

            wait_until(limit, "the quota")
            produced = {**broker.client_settings, "client.id": CLIENT, "linger.ms": "0"}
            with Producer(produced) as producer:
                producer.send("orders", b"x" * 15_000).result(PATIENCE_S)
                scraped_anew(broker)

                sends = [1]

                def throttled() -> bool:
                    # On a slow host few of them are no more than the quota allows.
                    sends[0] *= 2
                    for _ in range(sends[0]):
                        producer.send("orders", b"x" * 15_000).result(PATIENCE_S)
                    # The averages are of the time since the page before, so the next page is what counts. It may
                    # still be the first page that has this client, which has no averages.
                    found.update(scraped(broker))
                    named = {"resource": "Produce", "user": "admin", "clientId": CLIENT}
                    family = "kafka_server_quota_throttle_time"
                    return family in found and value(found, family, **named) > 0

                wait_until(throttled, "a throttle")
            open_tls = found[f"{SOCKETS}_connections_tls_info"]
            assert {dict(each)["listener"] for each in open_tls} == {"SASL_SSL"}
            assert sum(open_tls.values()) >= 2
            of_client = {"resource": "Produce", "user": "admin", "clientId": CLIENT}
            assert value(found, "kafkalite_quota_bytes", **of_client) > 30_000
            assert value(found, "kafkalite_quota_throttle_seconds", **of_client) > 0
            assert value(found, "kafka_server_quota_byte_rate", **of_client) > 0
            assert value(found, "kafka_server_quota_throttle_time", **of_client) > 0
            named = {"quota": "producer_byte_rate", "user": "admin", "clientId": CLIENT}
            assert value(found, "kafkalite_quota_limit", **named) == 10_000
            assert value(found, "kafkalite_quota_clients_left_out") == 0
            admin.alter_client_quotas({"user": "admin", "client-id": CLIENT}, remove=["producer_byte_rate"])
            wait_until(lambda: not limit(), "no quota")
        assert not any("quota" in name for name in scraped_anew(broker))
        assert value(found, f"{SOCKETS}_failed_authentication", listener="SASL_SSL") == 2
        assert value(found, f"{SOCKETS}_successful_authentication", listener="SASL_SSL") > before
        assert value(found, "kafkalite_tls_handshake_failures", listener="SASL_SSL") == 1
        assert value(found, "kafkalite_tls_handshakes", listener="SASL_SSL") > before
        assert value(found, "kafkalite_acl_denials", resource="Topic", operation="AlterConfigs") == 1
        assert value(found, "kafkalite_certificate_not_after_seconds", listener="SASL_SSL") > IN_2026_S


def test_an_open_broker_has_no_such_series(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=METRICS) as broker:
        text = asked(f"{broker.metrics_url}/metrics")[1].decode()
    for part in ("authentication", "tls", "certificate", "acl", "quota"):
        assert not [line for line in text.splitlines() if part in line.split("{")[0]]


def test_connections_are_counted_by_software_up_to_a_bound(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=METRICS) as broker, ExitStack() as opened:

        def connected(name: str, version: str) -> int:
            client = opened.enter_context(RawClient(broker.bootstrap))
            message = ApiVersionsRequest(client_software_name=name, client_software_version=version)
            return int(client.call(message, 3).error_code)

        assert [connected("java", "3.9.0"), connected("java", "3.9.0"), connected("n" * 20_000, "v" * 20_000)] == [
            0
        ] * 3
        assert connected('a"b', "1\n") == 42
        name = f"{SOCKETS}_connections_software"

        def labels(software: str, version: str) -> dict[str, str]:
            return {"listener": "PLAINTEXT", "clientSoftwareName": software, "clientSoftwareVersion": version}

        found = scraped_anew(broker)
        assert value(found, name, **labels("java", "3.9.0")) == 2
        assert value(found, name, **labels("n" * 64, "v" * 64)) == 1
        assert value(found, name, **labels("unknown", "unknown")) == 1
        assert len(found[name]) == 3
        for number in range(MOST_SOFTWARE):
            assert connected(f"hostile{number}", "1") == 0
        found = scraped_anew(broker)
        assert value(found, name, **labels("java", "3.9.0")) == 2
        assert value(found, name, **labels("<others>", "<others>")) == 3
        assert len(found[name]) == MOST_SOFTWARE + 1
        count = value(found, f"{SOCKETS}_connection_count", listener="PLAINTEXT")
        assert sum(found[name].values()) == count == MOST_SOFTWARE + 4
