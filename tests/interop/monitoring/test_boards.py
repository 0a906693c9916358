"""What boards ask of Prometheus is there: its own scrape of three brokers, an exporter, a query and a load."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.jobs.load.load_report import metrics_text
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.spark.watching.query_figures import SINK_SIDE, SOURCE_SIDE, Figures, QueryFigures
from spark_kafkalite.spark.watching.query_lag import QueryPartitionLag, QueryReport
from spark_kafkalite.spark.watching.query_pages import as_prometheus
from tests.interop.client.test_exporter import exporter
from tests.interop.monitoring.prometheus_server import CONF, Prometheus, need_prometheus
from tests.interop.support.collect import collected
from tests.paths import PROJECT
from tests.patience import wait_until

pytestmark = [pytest.mark.debian]
BOARD: Final = json.loads((CONF / "grafana/kafkalite.json").read_text())
# Of our board.
VARIABLES: Final = {"$job": "kafkalite", "$instance": ".*", "$exporter": "kafkalite-exporter"}
PAGE: Final = (PROJECT / "docs/boards.md").read_text()
# Rows of the page's table: series, and labels.
ASKED: Final = {
    name: set(re.findall(r"`(\w+)`", labels))
    for name, labels in re.findall(r"(?m)^\| `(\w+)` \| (`.*`) \| [^|]* \|$", PAGE)
}
ABSENT: Final = re.findall(r"(?m)^\| `([\w*]+)` \| [^`|]* \| ", PAGE)


@contextmanager
def served(text: str) -> Iterator[str]:
    """Serve a text as metrics, as a Spark driver and node_exporter do; give the address."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def of_spark() -> str:
    """Return the pages of a streaming query and of a load."""
    lag = QueryPartitionLag("id", "revenue", "group", "orders", 0, offset=5, end_offset=8, seconds=1.5)
    summary = dict.fromkeys(("records", "quarantined_records", "late_records", "offsets", "lost_offsets", "files"), 1)
    sums = Figures(1, 3, 300, 20, 10)
    figures = [QueryFigures("id", "revenue", side, "orders", 1, sums, sums) for side in (SOURCE_SIDE, SINK_SIDE)]
    return as_prometheus([lag], figures, {"id": 3}, None, [QueryReport("id", "revenue", 1.5)]) + metrics_text(
        "/lake/orders", summary, 2.0
    )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    need_prometheus()
    directory = tmp_path_factory.mktemp("boards")
    token = directory / "token"
    token.write_text("a-token-of-thirty-two-characters")
    settings = {"group.initial.rebalance.delay.ms": 0, "metrics.token.file": token}
    listeners = {number: {"metrics.listener": f"127.0.0.1:{port}"} for number, port in enumerate(free_ports(3), 1)}
    with KafkaliteCluster(directory / "cluster", overrides=settings, overrides_of=listeners) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topic("orders", 3, 3)
            admin.alter_client_quotas({"client-id": None}, {"producer_byte_rate": 1e9})
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(30):
                producer.send("orders", b"x", partition=number % 3)
        with (
            Consumer(bootstrap_servers=cluster.bootstrap, group_id="billing", auto_offset_reset="earliest") as consumer,
            exporter(cluster.bootstrap) as url,
            served(of_spark()) as driver,
            Prometheus(
                directory / "prometheus",
                {
                    "kafkalite": [str(each["metrics.listener"]) for each in listeners.values()],
                    "kafkalite-exporter": [url.split("/")[2]],
                    "kafkalite-spark": [driver],
                },
                token,
            ) as running,
        ):
            consumer.subscribe(["orders"])
            assert len(collected(lambda: consumer.poll(timeout_ms=200), 30)) == 30
            consumer.commit()
            wait_until(lambda: running.query("count(up == 1)") == [({}, 5.0)], "five targets")
            wait_until(lambda: running.query("kafka_consumergroup_lag"), "a group")
            wait_until(
                lambda: running.query('sum(kafka_server_brokertopicmetrics_bytesout_total{topic="orders"}) > 0'),
                "reads",
            )
            yield running


def test_the_page_names_what_is_asked_for() -> None:
    assert len(ASKED) > 30 and len(ABSENT) == 6


@pytest.mark.parametrize("name", ASKED)
def test_a_series_of_a_board_has_its_labels(prometheus: Prometheus, name: str) -> None:
    found = prometheus.labels_of(name)
    assert any(ASKED[name] <= labels for labels in found), found


@pytest.mark.parametrize("name", ABSENT)
def test_what_the_page_calls_empty_is(prometheus: Prometheus, name: str) -> None:
    assert prometheus.labels_of(f'{{__name__=~"{name.replace("*", ".*")}"}}') == []


def targets() -> list[Any]:
    return [
        pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
        for panel in BOARD["panels"]
        for target in panel.get("targets", ())
    ]


@pytest.mark.parametrize("expression", targets())
def test_a_panel_of_our_board_shows_something(prometheus: Prometheus, expression: str) -> None:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    for name in re.findall(r"\b(?:kafka|kafkalite|process)_\w+", expression):
        assert prometheus.labels_of(name), name
    # A second scrape makes rates; the quotient of two idle rates is no number, but there.
    wait_until(lambda: prometheus.query(expression), f"a value of {expression}", poll_s=0.5)


def test_the_variables_of_our_board_have_values(prometheus: Prometheus) -> None:
    queries = [each["query"]["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    assert len(queries) == 3
    for query in queries:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found is not None
        assert any(found[2] in labels for labels in prometheus.labels_of(found[1].replace("$job", "kafkalite")))


def test_panels_of_our_board_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + right, at["y"] + down) for right in range(at["w"]) for down in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_the_configuration_is_printed_as_it_is() -> None:
    printed = re.findall(r"(?s)```yaml\n(.*?)```", Path(PROJECT / "docs/monitoring.md").read_text())
    assert yaml.safe_load((CONF / "prometheus.yml").read_text()) in [yaml.safe_load(each) for each in printed]
