"""``kafkalite zookeeper``: a real ZooKeeper from the jars that PySpark brings, for development."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from spark_kafkalite.cli.stop_request import StopRequest

# How often its process is looked at.
_POLL_S = 0.2


@click.command(
    "zookeeper",
    epilog="""\b
Examples:
  kafkalite zookeeper --data ./zookeeper
  kafkalite zookeeper --data ./zookeeper --port 0
""",
)
@click.option(
    "--data", metavar="DIR", required=True, help="Directory of its data and its output; created when missing."
)
@click.option("--port", type=click.IntRange(0, 65535), default=2181, show_default=True, help="0 picks a free one.")
def command(data: str, port: int) -> int:
    """Run one ZooKeeper server on 127.0.0.1 in the foreground (needs Java 17 and PySpark).

    It prints one line when it serves, 'kafkalite zookeeper ready on HOST:PORT', and stops at SIGTERM or Ctrl-C. It is
    for development: a cluster on several hosts wants an ensemble of its own.
    """
    from spark_kafkalite.processes.child_process import ChildFailed
    from spark_kafkalite.processes.zookeeper import ZooKeeperServer, available

    if (problem := available()) is not None:
        raise click.ClickException(f"ZooKeeper cannot run here: {problem}")
    stopping = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    server = ZooKeeperServer(Path(data), port=port, tick_ms=2000, heap_mb=256)
    try:
        server.start()
        print(f"kafkalite zookeeper ready on {server.connect}", flush=True)
        while not stopping.wait(_POLL_S):
            if not server.running:
                raise click.ClickException(f"ZooKeeper has ended{server.tail()}")
    except ChildFailed as failure:
        if not stopping.came:
            raise click.ClickException(str(failure)) from failure
    finally:
        server.kill()
    return 0
