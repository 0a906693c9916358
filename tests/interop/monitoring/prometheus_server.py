"""Prometheus itself, on the configuration and the alerts of conf/: what it scrapes, evaluates and fires."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pytest
import yaml

from spark_kafkalite.processes.free_ports import free_ports
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until

CONF: Final = PROJECT / "conf"
_TOKEN_FILE: Final = "/etc/prometheus/kafkalite.token"
# After how many milliseconds without a look the cleaner has stopped.
_CLEANER_WAIT: Final = "6 * 3600 * 1000"
# After how many seconds without a report of Spark's a query hangs.
_QUERY_WAIT: Final = "(kafkalite_query_report_timestamp_seconds) > 900"


def need_prometheus() -> None:
    """Skip where Prometheus is not installed."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is not installed (make setup-debian)")


class Prometheus:
    """A process of Prometheus that scrapes every two seconds; a context manager.

    It runs conf/prometheus.yml with other targets, and conf/alerts.yml with waits of seconds.
    """

    def __init__(self, directory: Path, targets: Mapping[str, Sequence[str]], token_file: Path | None = None) -> None:
        """``targets`` has the addresses of each job by its name; a job that it does not name is left out."""
        self._directory = directory
        self._port = free_ports(1)[0]
        config = yaml.safe_load((CONF / "prometheus.yml").read_text().replace(_TOKEN_FILE, str(token_file)))
        config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
        config["scrape_configs"] = [_with_targets(job, targets) for job in config["scrape_configs"]
                                    if job["job_name"] in targets]  # fmt: skip
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        alerts = (CONF / "alerts.yml").read_text()
        alerts = re.sub(r"(?m)^( +for:) .*$", r"\1 1s", alerts).replace(_CLEANER_WAIT, "15000")
        alerts = alerts.replace(_QUERY_WAIT, _QUERY_WAIT.replace("900", "15"))
        (directory / "alerts.yml").write_text(alerts)

    def __enter__(self) -> Self:
        self._output = (self._directory / "output").open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self._directory}/prometheus.yml",
                f"--storage.tsdb.path={self._directory}/data",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        wait_until(self._answers, lambda: (self._directory / "output").read_text() or "an answer of Prometheus")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._output.close()

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._directory / "output").read_text()
        try:
            self.query("vector(1)")
        except OSError:
            return False
        return True

    def _asked(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series of an expression now. Raises urllib.error.HTTPError for a bad one."""
        result = self._asked("query", query=expression)["result"]
        if result and not isinstance(result[0], dict):
            return [({}, float(result[1]))]
        return [(each["metric"], float(each["value"][1])) for each in result]

    def query_range(
        self, expression: str, began_s: float, ended_s: float, *, step_s: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return labels and points (time in seconds, value) of each series; NaN is left out."""
        result = self._asked("query_range", query=expression, start=str(began_s), end=str(ended_s), step=str(step_s))[
            "result"
        ]
        return [
            (each["metric"], [(at, float(value)) for at, value in each["values"] if value != "NaN"]) for each in result
        ]

    def labels_of(self, name: str) -> list[set[str]]:
        """Return the names of the labels of each series that has a name."""
        return [set(labels) - {"__name__"} for labels, _ in self.query(name)]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self._asked("alerts")["alerts"] if each["state"] == "firing"}

    def wait_for(self, *alerts: str) -> None:
        """Wait until alerts fire."""
        wait_until(lambda: set(alerts) <= self.firing(), lambda: f"{set(alerts) - self.firing()} to fire", poll_s=0.3)

    def wait_for_peace(self, *others: str) -> None:
        """Wait until no alert fires but others."""
        wait_until(lambda: self.firing() <= set(others), lambda: f"{self.firing()} to end", poll_s=0.3)


def _with_targets(job: dict[str, Any], targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the configuration of a job with addresses in place of those of the file, in their order."""
    addresses = list(targets[job["job_name"]])
    groups = []
    for group in job["static_configs"]:
        taken = [addresses.pop(0) for _ in group["targets"] if addresses]
        if taken:
            groups.append({**group, "targets": taken})
    assert not addresses, f"conf/prometheus.yml has fewer targets of {job['job_name']}"
    timing = {"scrape_timeout": "2s"} if "scrape_timeout" in job else {}
    return {**job, **timing, "static_configs": groups}
