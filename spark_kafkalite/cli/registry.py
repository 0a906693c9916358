"""``kafkalite registry``: the embedded registry alone, served in ZooKeeper's protocol until SIGTERM or Ctrl-C.

``kafkalite registry rebuild`` is in :mod:`.registry_rebuild`, ``export`` in :mod:`.registry_export`.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import click

from spark_kafkalite.cli.registry_export import export
from spark_kafkalite.cli.registry_files import read_digest
from spark_kafkalite.cli.registry_rebuild import rebuild
from spark_kafkalite.cli.stop_request import StopRequest
from spark_kafkalite.errors import ConfigError, RegistryError
from spark_kafkalite.version import VERSION

_LOG = logging.getLogger(__name__)


@click.group(
    "registry",
    invoke_without_command=True,
    epilog="""\b
Examples:
  kafkalite registry --data /var/lib/kafkalite-registry
  kafkalite registry --data ./registry --port 0
  kafkalite registry --data ./registry --digest-file secret.txt
  kafkalite registry rebuild --config conf/server.properties
  kafkalite registry export --data ./registry --to zk1:2181/kafkalite
""",
)
@click.option("--data", "data", metavar="DIR", help="Directory of its file; created when missing. Required.")
@click.option("--port", type=click.IntRange(0, 65535), default=2181, show_default=True, help="0 picks a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Loopback address to listen on.")
@click.option("--digest-file", metavar="FILE", help="USER:PASSWORD that every client must prove (scheme digest).")
@click.pass_context
def command(context: click.Context, data: str | None, port: int, host: str, digest_file: str | None) -> int:
    """Run the registry of a cluster on this host without ZooKeeper (and without Java), rebuild or export one.

    It answers ZooKeeper's client protocol: kazoo, ZooKeeper's shell and registry consumers connect to it. It prints one
    line when it serves, 'kafkalite registry ready on HOST:PORT', and stops in order at SIGTERM or Ctrl-C.

    It goes on at SIGHUP, unless the terminal at which it runs is gone: then it stops in order. At SIGUSR1 it writes the
    stacks of its threads and tasks to its log.
    """
    if context.invoked_subcommand is not None:
        if data is not None:
            raise click.UsageError(f"--data is for running the registry, not for {context.invoked_subcommand}")
        return 0
    if data is None:
        raise click.MissingParameter(ctx=context, param_hint="'--data'", param_type="option")
    from spark_kafkalite import early_signals
    from spark_kafkalite.addresses import is_loopback
    from spark_kafkalite.broker.event_log import configure_logging
    from spark_kafkalite.broker.stacks import log_stacks_at_sigusr1
    from spark_kafkalite.collector import Collector
    from spark_kafkalite.net.descriptors import raise_limit, registry_connections
    from spark_kafkalite.registry.served.listener import ONE_HOST_ONLY, RegistryListener
    from spark_kafkalite.registry.served.server import TreeServer
    from spark_kafkalite.registry.store import SessionState
    from spark_kafkalite.registry.tree.embedded_store import open_embedded

    if not is_loopback(host, "--host"):
        raise ConfigError(f"--host {host}: {ONE_HOST_ONLY}")
    listener = RegistryListener.parse(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}", digest=read_digest(digest_file)
    )
    configure_logging("INFO")
    _LOG.info("kafkalite %s: registry starts (pid %d), --data %s", VERSION, os.getpid(), data)
    stopping, disk_failed = StopRequest(), threading.Event()
    # Before anything is started: a stop that comes early is a stop, too.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    at_terminal = early_signals.stdin_is_controlling_terminal()
    signal.signal(signal.SIGHUP, partial(_hung_up, stopping, at_terminal=at_terminal))
    early_signals.let_through()
    servers: list[TreeServer] = []
    log_stacks_at_sigusr1(lambda: servers[0].loop if servers else None)
    store = open_embedded(Path(data), keep_sessions=True)

    def session_changed(state: SessionState) -> None:
        # This process's own session ends only when the disk fails.
        if state is SessionState.LOST:
            disk_failed.set()
            stopping.set()

    store.add_session_listener(session_changed)
    server = TreeServer(
        store.registry,
        digest=listener.digest,
        max_connections=registry_connections(raise_limit()),
        serves_brokers=True,
    )
    try:
        try:
            bound = server.start(listener.host, listener.port)
        except OSError as error:
            hint = "; stop what does, or name another --port" if error.errno == errno.EADDRINUSE else ""
            raise RegistryError(f"cannot listen on {listener.address(port)}: {error.strerror}{hint}") from error
        servers.append(server)
        # A tree of a hundred thousand nodes is as many objects that live as long as this process.
        collector = Collector(server.loop)
        collector.start()
        print(f"kafkalite registry ready on {listener.address(bound)}", flush=True)
        stopping.wait()
        collector.stop()
    finally:
        server.close()
        store.close()
    if disk_failed.is_set():
        print("the registry's disk has failed; nothing after its last answer is kept", file=sys.stderr)
        return 1
    return 0


def _hung_up(stopping: StopRequest, *_: object, at_terminal: bool) -> None:
    """Do what SIGHUP asks for: stop where the terminal is gone; there is no file of settings to read again."""
    if at_terminal:
        _LOG.info("SIGHUP: the terminal of the registry is gone")
        stopping.set()
    else:
        _LOG.info("SIGHUP: the registry has no settings that change while it runs; a new --digest-file needs a restart")


command.add_command(rebuild)
command.add_command(export)
