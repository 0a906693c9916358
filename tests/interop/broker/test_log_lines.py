"""The broker's log as JSON, and the lines of slow requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_kafkalite import Consumer, Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until

SLOW_ALL = {"log.format": "json", "request.log.slow.ms": 0}
HOSTILE = 'client "\x1b[31m\n{"level":"ERROR"} ‮'
RECORD = b"what a record has is nobody's business"


def lines_of(broker: BrokerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in broker.stderr_path.read_text().splitlines()]


def slow(broker: BrokerProcess, api: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(broker) if line.get("requestHeader", {}).get("requestApiKeyName") == api]


def test_every_line_is_json_and_slow_requests_have_kafkas_fields(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides=SLOW_ALL) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, client_id=HOSTILE) as producer:
            producer.send("logged", RECORD, key=RECORD).result(PATIENCE_S)
        line = wait_until(lambda: slow(broker, "Produce"), "the line of the request")[0]
        text = broker.stderr_path.read_text()
    assert {"ts", "level", "logger", "msg", "broker"} < set(line)
    assert line["logger"] == "spark_kafkalite.request" and line["broker"] == 1 and line["ts"].endswith("Z")
    assert line["requestHeader"]["clientId"] == HOSTILE and line["listener"] == "PLAINTEXT"
    assert line["principal"] == "User:ANONYMOUS" and line["securityProtocol"] == "PLAINTEXT"
    assert line["clientInformation"]["softwareName"] == "spark-kafkalite"
    parts = [line[f"{name}TimeMs"] for name in ("requestQueue", "local", "remote", "send")]
    assert all(part >= 0 for part in parts) and abs(sum(parts) - line["totalTimeMs"]) < 0.01
    assert RECORD.decode() not in text and "\x1b" not in text and "‮" not in text
    assert any("starts (pid" in each["msg"] for each in lines_of(broker))


def test_a_fetch_that_waits_is_not_slow(tmp_path: Path) -> None:
    overrides = {"log.format": "json", "request.log.slow.ms": 250, "metrics.listener": "127.0.0.1:0"}
    with BrokerProcess(tmp_path, overrides=overrides) as broker:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("waited", b"x").result(PATIENCE_S)
        with Consumer(bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=600) as consumer:
            consumer.assign([("waited", 0)])
            assert consumer.poll(timeout_ms=1500) == []
        # On a slow host one may take long all the same: by what is no waiting.
        lines = slow(broker, "Fetch")
    assert [line for line in lines if line["totalTimeMs"] - line["remoteTimeMs"] < 250] == []


def test_as_text_and_at_most_a_few_lines_of_an_api(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides={"request.log.slow.ms": 0}) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
            for _ in range(50):
                producer.send("logged", RECORD).result(PATIENCE_S)
        text = broker.stderr_path.read_text()
    lines = [line for line in text.splitlines() if "slow request: Produce" in line]
    assert 1 <= len(lines) <= 15
    assert "INFO spark_kafkalite.request: slow request: Produce v" in lines[0] and " ms: " in lines[0]
    assert RECORD.decode() not in text


def test_nothing_is_logged_by_default(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("logged", b"x").result(PATIENCE_S)
        assert "slow request" not in broker.stderr_path.read_text()
