"""Draw conf/grafana/kafkalite.json from what Prometheus has scraped of a cluster at work: docs/images/board-*.png.

    python -m tests.boards [--seconds SECONDS] [PICTURE ...]

For so many seconds three brokers have a producer, a group and a streaming query; one broker is killed and starts
again. Prometheus evaluates the board's own queries. There is no Grafana: headless Chromium draws the panels with the
components that Grafana is made of (``@grafana/ui``, installed by npm into ``.venv/boards`` the first time). Where one
of these programs is missing, or the board has not changed, the pictures stay as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.client.test_exporter import exporter
from tests.interop.monitoring.prometheus_server import CONF, Prometheus
from tests.interop.monitoring.test_boards import VARIABLES, served
from tests.paths import PROJECT

HERE: Final = Path(__file__).parent
NEEDED: Final = ("chromium", "npm", "prometheus")
PACKAGES: Final = PROJECT / ".venv/boards"
# What decides how the pictures look, and the hash of what they were drawn from.
DRAWN_FROM: Final = (CONF / "grafana/kafkalite.json", HERE / "board.jsx", HERE / "package.json")
DRAWN_OF: Final = HERE / "drawn_of.sha256"
# The rows of the board that each picture has.
PICTURES: Final = {
    "board-cluster": ("Cluster", "Traffic", "What brokers wait for", "Disks and logs", "Groups"),
    "board-spark": ("Spark: streaming queries and loads",),
}
WIDTH: Final = 1050
ROW_HEIGHT: Final = 27
STEP_S: Final = 2
PAGE: Final = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="board.css">
<body style="margin:8px;background:#f4f5f5"><div id="board" style="position:relative"></div>
<script>window.BOARD = {board}</script><script src="board.js"></script>"""


# What is shown --------------------------------------------------------------------------------------------------------


@contextmanager
def traffic(cluster: KafkaliteCluster) -> Iterator[None]:
    """Have a producer and a group work."""
    ended = threading.Event()

    def produce() -> None:
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            number = 0
            while not ended.wait(0.1):
                # Between 20 and 180 records at a time, in waves of a minute.
                for _ in range(100 + round(80 * math.sin(time.monotonic() / 10))):
                    number += 1
                    producer.send("orders", b"%0100d" % number, key=b"%d" % (number % 1000))

    def consume() -> None:
        with Consumer(
            bootstrap_servers=cluster.bootstrap, group_id="billing", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["orders"])
            while not ended.is_set():
                consumer.poll(timeout_ms=500)
                # It falls behind for half of each minute.
                if time.monotonic() % 60 < 30:
                    ended.wait(2)

    threads = [threading.Thread(target=each) for each in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@contextmanager
def spark(cluster: KafkaliteCluster, directory: Path) -> Iterator[list[str]]:
    """Run a streaming query, and a load to its end; give the addresses of their metrics when both have some."""
    lake = directory / "lake"
    query = [sys.executable, "-m", "tests.boards.query", cluster.bootstrap, str(directory)]
    load = [sys.executable, "-m", "spark_kafkalite.cli", "jobs", "run", "hadoop_load", "--topic", "orders"]
    load += ["--bootstrap-server", cluster.bootstrap, "--destination", str(lake), "--metrics-file", f"{lake}.prom"]
    with subprocess.Popen(query, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        subprocess.run(load, check=True, cwd=PROJECT, stdout=subprocess.DEVNULL)
        address = running.stdout.readline().strip()
        if not address:
            raise SystemExit("The streaming query has failed; its messages are above.")
        # node_exporter serves the files of loads in this way.
        with served(Path(f"{lake}.prom").read_text()) as node:
            yield [address, node]
        running.communicate()
        assert running.returncode == 0


def answers(directory: Path, seconds: float, *, with_spark: bool) -> tuple[list[dict[str, Any]], float, float]:
    """Run all of it for so long; return the board's panels with their series, and the time of the first and last."""
    directory.mkdir()
    with ExitStack() as running:
        listeners = {number: {"metrics.listener": f"127.0.0.1:{port}"} for number, port in enumerate(free_ports(3), 1)}
        cluster = running.enter_context(KafkaliteCluster(directory / "cluster", overrides_of=listeners))
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topic("orders", 3, 3)
            admin.create_topic("revenue", 3, 3)
        running.enter_context(traffic(cluster))
        targets = {
            "kafkalite": [str(each["metrics.listener"]) for each in listeners.values()],
            "kafkalite-exporter": [running.enter_context(exporter(cluster.bootstrap)).split("/")[2]],
        }
        if with_spark:
            targets["kafkalite-spark"] = running.enter_context(spark(cluster, directory))
        token = directory / "token"
        token.write_text("not asked for\n")
        prometheus = running.enter_context(Prometheus(directory / "prometheus", targets, token))
        began_s = time.time()
        time.sleep(seconds / 3)
        cluster.kill(3)
        time.sleep(seconds / 6)
        cluster.restart(3)
        time.sleep(seconds / 2)
        ended_s = time.time()
        panels = json.loads((CONF / "grafana/kafkalite.json").read_text())["panels"]
        for panel in panels:
            panel["series"] = [
                series
                for target in panel.get("targets", ())
                for series in drawn(prometheus, target, began_s, ended_s, directory)
            ]
        return panels, began_s, ended_s


def named(legend: str, labels: dict[str, str]) -> str:
    """Return the legend of a series. A label that the series lacks is an empty text, as in Grafana."""
    return " ".join(re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend).split())


def drawn(
    prometheus: Prometheus, target: dict[str, str], began_s: float, ended_s: float, directory: Path
) -> Iterator[dict[str, Any]]:
    """Yield the series of one query: name, times in ms and values, None where there is none."""
    expression, legend = target["expr"], target["legendFormat"]
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    times = [began_s + number * STEP_S for number in range(int((ended_s - began_s) / STEP_S) + 1)]
    for labels, points in prometheus.query_range(expression, began_s, ended_s, step_s=STEP_S):
        # The picture does not say where on this host the directories were.
        name = named(legend, labels).replace(str(directory), "")
        found = {round((at - began_s) / STEP_S): value for at, value in points}
        values = [found.get(number) for number in range(len(times))]
        yield {"name": name, "times": [1000 * at for at in times], "values": values}


# The pictures ---------------------------------------------------------------------------------------------------------


def installed(directory: Path) -> None:
    """Install Grafana's components once, and make one script and one style sheet of them and board.jsx."""
    wanted = HERE / "package.json"
    there = PACKAGES / "package.json"
    if not there.exists() or there.read_text() != wanted.read_text():
        PACKAGES.mkdir(exist_ok=True)
        (PACKAGES / "package.json").write_text(wanted.read_text())
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        try:
            subprocess.run(["npm", "install", *quiet], cwd=PACKAGES, check=True, stdout=subprocess.DEVNULL)
        except BaseException:
            there.unlink()
            raise
    shutil.copy(HERE / "board.jsx", PACKAGES)
    loaders = ["--loader:.svg=dataurl", "--loader:.woff2=dataurl", "--loader:.ttf=empty"]
    subprocess.run(
        ["node", "node_modules/esbuild/bin/esbuild", "board.jsx", "--bundle", "--minify", "--jsx=automatic", *loaders,
         '--define:process.env.NODE_ENV="production"', "--define:global=window", "--log-level=error",
         f"--outfile={directory}/board.js"],
        cwd=PACKAGES, check=True,
    )  # fmt: skip


def draw(directory: Path, name: str, panels: list[dict[str, Any]], began_s: float, ended_s: float) -> None:
    """Have Chromium draw the panels of one picture into docs/images. Raises SystemExit where a panel has no series."""
    taken, row = [], ""
    for panel in panels:
        row = panel["title"] if panel["type"] == "row" else row
        if row in PICTURES[name]:
            taken.append(panel)
    if empty := [panel["title"] for panel in taken if panel["type"] != "row" and not panel["series"]]:
        raise SystemExit(f"{name}.png stays as it is: no data for {', '.join(empty)}")
    top = min(panel["gridPos"]["y"] for panel in taken)
    for panel in taken:
        panel["gridPos"]["y"] -= top
    board = {
        "panels": taken, "width": WIDTH, "rowHeight": ROW_HEIGHT, "from": 1000 * began_s, "to": 1000 * ended_s,
    }  # fmt: skip
    height = ROW_HEIGHT * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in taken)
    page = directory / f"{name}.html"
    page.write_text(PAGE.replace("{board}", json.dumps(board).replace("<", "\\u003c")))
    picture = PROJECT / f"docs/images/{name}.png"
    picture.parent.mkdir(exist_ok=True)
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000",
         f"--user-data-dir={directory}/chromium", f"--window-size={WIDTH + 8},{height + 8}",
         f"--screenshot={picture}", page.as_uri()],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def main() -> None:
    """Make the pictures, or say in one line why they stay."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        print(f"The pictures in docs/images stay as they are; not installed here: {', '.join(missing)}.")
        return
    parser = argparse.ArgumentParser(prog="python -m tests.boards", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="for how long the cluster works")
    parser.add_argument(
        "pictures",
        nargs="*",
        choices=[[], *PICTURES],
        metavar="PICTURE",
        help="all by default, if the board has changed",
    )
    given = parser.parse_args()
    drawn_of = hashlib.sha256(b"".join(each.read_bytes() for each in DRAWN_FROM)).hexdigest()
    if not given.pictures and DRAWN_OF.exists() and DRAWN_OF.read_text().strip() == drawn_of:
        print("The pictures in docs/images are of this board; python -m tests.boards board-cluster draws one again.")
        return
    pictures = given.pictures or list(PICTURES)
    with tempfile.TemporaryDirectory(prefix="kafkalite-boards-") as name:
        directory = Path(name)
        installed(directory)
        shown = answers(directory / "run", given.seconds, with_spark="board-spark" in pictures)
        for picture in pictures:
            draw(directory, picture, *shown)
    if not given.pictures:
        DRAWN_OF.write_text(f"{drawn_of}\n")


if __name__ == "__main__":
    main()
