"""``kafkalite cluster up``: a cluster on this host, for development, until Ctrl-C."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.cli.cluster.reachable import can_connect
from spark_kafkalite.cli.output import said
from spark_kafkalite.cli.stop_request import StopRequest

if TYPE_CHECKING:
    from spark_kafkalite.processes.cluster import BrokerProcess
    from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster

_BROKERS: Final = 3
_MOST_BROKERS: Final = 20
# How often the processes are looked at.
_POLL_S: Final = 0.1
# The same of brokers that are not processes of this one.
_POLL_SERVED_S: Final = 1.0
# What every broker has for itself here, or what ties them together.
_OWN_SETTINGS: Final = {
    "broker.id": "--brokers",
    "node.id": "--brokers",
    "listeners": "--port",
    "advertised.listeners": "--port",
    "log.dirs": "--data",
    "log.dir": "--data",
    "zookeeper.connect": "--registry-port",
}
# What a process that has not started said last: its number, if it has one, and the reason in its own words.
_DID_NOT_START: Final = re.compile(
    r"(?P<what>registry|broker)(?:-(?P<number>\d+))?-\d+ ended .*\nkafkalite: (?P<reason>.*)", re.DOTALL
)


class _Stopped(Exception):
    """A signal came while the cluster was starting, or a second one while it was stopping."""


class _Stop:
    """The effect of SIGINT and SIGTERM: a signal interrupts the start; once the cluster runs, it asks for a stop."""

    def __init__(self) -> None:
        self.wanted = StopRequest()
        self._raises = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def only_note(self) -> None:
        """From now on only note the first signal."""
        self._raises = False

    def _signalled(self, *_: object) -> None:
        self.wanted.set()
        if self._raises:
            raise _Stopped
        self._raises = True


@click.command(
    "up",
    epilog="""\b
Examples:
  kafkalite cluster up
  kafkalite cluster up --brokers 3 --data ./cluster --port 9092
  kafkalite cluster up --override num.partitions=4
  kafkalite cluster up --secure --data ./cluster
""",
)
@click.option(
    "--brokers",
    "size",
    type=click.IntRange(1, _MOST_BROKERS),
    help=f"Number of brokers; as many as --data holds, or else {_BROKERS}, without it.",
)
@click.option(
    "--data", metavar="DIR", help="Keep all data there, for the next 'up'. Without it all is gone at the end."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535 - _MOST_BROKERS),
    default=9092,
    show_default=True,
    help="Port of broker 1; the others have those that follow. 0 picks free ones.",
)
@click.option(
    "--registry-port", type=click.IntRange(0, 65535), default=2181, show_default=True, help="0 picks a free one."
)
@click.option(
    "--override", "overrides", metavar="NAME=VALUE", multiple=True, help="A setting of all brokers. Repeatable."
)
@click.option("--secure", "is_secure", is_flag=True, help="Encrypt all traffic, and let in the user admin only.")
def up(
    size: int | None, data: str | None, port: int, registry_port: int, overrides: tuple[str, ...], is_secure: bool
) -> int:
    """Run a registry and several brokers on 127.0.0.1, until Ctrl-C or SIGTERM.

    They are processes of their own, so that you can kill one to see what happens. They end with this one, however it
    ends. Topics have as many replicas as there are brokers, three at most. When all brokers serve, one line has the
    addresses to connect to: 'kafkalite cluster ready on HOST:PORT,...'.

    With --secure all listeners are SASL_SSL, and the registry asks for a password. The authority, the certificates, the
    user admin and the settings of clients are made with the first start, in the directory 'security' of the data.

    The command reports a broker that ends; the others go on. The registry also goes on for brokers that you start again
    by hand. End these first, because Ctrl-C stops their registry. Their data stays then, wherever it is.
    """
    from spark_kafkalite.processes.child_process import ChildFailed
    from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
    from spark_kafkalite.security.secure_directory import MECHANISM

    given = parse_overrides(overrides)
    _check_overrides(given)
    with _directory(data) as directory:
        held = _held_brokers(directory)
        size = size or held or _BROKERS
        if size < held:
            raise click.UsageError(
                f"--brokers {size}: {directory} has replicas of {held} brokers; start as many, or more"
            )
        _check_ports(port, size, registry_port)
        cluster = KafkaliteCluster(
            directory,
            size=size,
            port=port,
            registry_port=registry_port,
            overrides=given,
            tls=is_secure,
            sasl=MECHANISM if is_secure else None,
        )
        stopping = _Stop()
        try:
            with cluster:
                return _run(cluster, stopping, keep=data is not None)
        except _Stopped:
            return 0
        except ChildFailed as failure:
            raise click.ClickException(_in_one_line(str(failure))) from failure


def _check_overrides(overrides: Mapping[str, object]) -> None:
    for name in overrides:
        if name in _OWN_SETTINGS:
            raise click.UsageError(f"--override {name}: set by 'cluster up' for each broker; use {_OWN_SETTINGS[name]}")


def _check_ports(port: int, size: int, registry_port: int) -> None:
    """Refuse ports that are in use before anything runs: afterwards only the end of a process would show it."""
    wanted = {port + number: f"--port {port}: broker {number + 1}" for number in range(size if port else 0)}
    if registry_port in wanted:
        raise click.UsageError(
            f"--registry-port {registry_port}: it is among the ports of the brokers, {port} to {port + size - 1}; give "
            "another one"
        )
    if registry_port:
        wanted[registry_port] = f"--registry-port {registry_port}: the registry"
    for each, whose in wanted.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", each))
            except OSError as error:
                raise click.ClickException(
                    f"{whose} cannot listen on 127.0.0.1:{each}: {error.strerror}; stop what does, or give another "
                    "port (0 picks free ones)"
                ) from error


def _in_one_line(failure: str) -> str:
    """Return why a process has not started: its own message without the log before it, if it has one."""
    found = _DID_NOT_START.fullmatch(failure)
    if found is None:
        return failure
    what = f"broker {found['number']}" if found["number"] else f"the {found['what']}"
    return f"{what} did not start: {found['reason']}"


def _run(cluster: KafkaliteCluster, stopping: _Stop, *, keep: bool) -> int:
    """Print the addresses, watch the processes until a signal asks to stop, and stop in order if the data is kept."""
    from spark_kafkalite.cli.output import said
    from spark_kafkalite.cli.secure import tell_of_files

    stopping.only_note()
    click.echo(f"kafkalite registry ready on {cluster.registry.connect}")
    for number, broker in cluster.brokers.items():
        click.echo(f"kafkalite broker {number} ready on {broker.bootstrap} (pid {broker.pid})")
    if cluster.security is not None:
        tell_of_files(cluster.security, cluster.bootstrap)
        said(f"  {cluster.security.registry_digest_file} (the registry's USER:PASSWORD, for --digest-file)")
    click.echo(f"kafkalite cluster ready on {cluster.bootstrap}")
    code = _watch(cluster, stopping.wanted)
    if keep and not code:
        cluster.stop_all()
    return code


def _watch(cluster: KafkaliteCluster, stop: StopRequest) -> int:
    """Report brokers that end, until a stop is wanted (0) or no broker or registry is left (1).

    A broker that was started again by hand is not a child of this process, but still needs the registry.
    """
    alive = dict(cluster.brokers)
    is_told = False
    while not stop.wait(_POLL_S if alive else _POLL_SERVED_S):
        if not cluster.registry.running:
            said(f"the registry has ended, so the cluster ends, too{cluster.registry.tail()}")
            return 1
        for number, broker in [each for each in alive.items() if not each[1].running]:
            del alive[number]
            said(
                f"broker {number} has ended; its log is {broker.stderr_path}. To start it again: kafkalite broker "
                f"--config {shlex.quote(str(_write_properties(cluster, number)))}"
            )
        if alive:
            continue
        if not any(map(_serves, cluster.brokers.values())):
            said("no broker is left, so the cluster ends")
            return 1
        if not is_told:
            is_told = True
            said("all brokers of this command have ended; the registry goes on for those that were started again")
    return 0


def _serves(broker: BrokerProcess) -> bool:
    """Return whether a process listens at a broker's address."""
    host, _, port = broker.bootstrap.rpartition(":")
    return can_connect(host, int(port))


@contextlib.contextmanager
def _directory(data: str | None) -> Iterator[Path]:
    """Give the directory of the data: the user's, or one that is removed afterwards, unless brokers use it still."""
    if data is not None:
        path = Path(data).absolute()
        if path.exists() and not path.is_dir():
            raise click.UsageError(f"--data {data}: not a directory")
        served = _served_brokers(path)
        if served:
            raise click.ClickException(
                f"--data {data}: a cluster runs on it (broker {', '.join(served)}): connect to that one, or give "
                "another directory and other ports"
            )
        try:
            yield path
        finally:
            _tell_of_served(path)
        return
    directory = Path(tempfile.mkdtemp(prefix="kafkalite-cluster-"))
    try:
        yield directory
    finally:
        if not _tell_of_served(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _served_brokers(directory: Path) -> list[str]:
    """Return the numbers of the brokers that run on a directory's data."""
    from spark_kafkalite.log.files.os_fs import OsFs
    from spark_kafkalite.log.files.small_files import LOCK_FILE

    served = []
    for number in range(1, _held_brokers(directory) + 1):
        path = directory / f"broker-{number}" / LOCK_FILE
        if path.exists():
            lock = OsFs().lock(str(path))
            if lock is None:
                served.append(str(number))
            else:
                lock.release()
    return served


def _tell_of_served(directory: Path) -> bool:
    """Report brokers that were started again by hand and still run; return whether there are any."""
    served = _served_brokers(directory)
    if served:
        said(
            f"started again by hand, and still running without a registry: broker {', '.join(served)}; end "
            f"{'it' if len(served) == 1 else 'them'}, too. The data stays in {directory}"
        )
    return bool(served)


def _held_brokers(directory: Path) -> int:
    """Return the number of brokers that a directory has data of."""
    held = 0
    while (directory / f"broker-{held + 1}").is_dir():
        held += 1
    return held


def _write_properties(cluster: KafkaliteCluster, number: int) -> Path:
    """Write the settings of a broker to a file, so that it can be started alone."""
    path = cluster.data_dir / f"broker-{number}.properties"
    # Properties files take a backslash for the beginning of something.
    lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in cluster.broker(number).settings.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path
