"""``kafkalite cluster recover-registry``: rebuilds a lost registry from all logs, or completes an outdated one."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.cli.cluster.reachable import can_connect
from spark_kafkalite.cli.options import client_settings, json_option, settings_options
from spark_kafkalite.cli.output import print_json, said, warn
from spark_kafkalite.cli.recovery_text import show_recovery
from spark_kafkalite.cli.registry_files import broker_directories
from spark_kafkalite.errors import ConfigError, KafkaliteError
from spark_kafkalite.printable import first_of

if TYPE_CHECKING:
    from spark_kafkalite.cli.registry_files import BrokerDirectories
    from spark_kafkalite.model import BrokerId, TopicPartition
    from spark_kafkalite.registry.recovery.host_logs import HostLogs
    from spark_kafkalite.registry.recovery.plan import RecoveryPlan
    from spark_kafkalite.registry.store import Store


class ReplicasNotRead(KafkaliteError):
    """The command has not read some brokers that may have the best log of a partition."""


@click.command(
    "recover-registry",
    epilog="""\b
Examples for stopped brokers:
  kafkalite cluster recover-registry --config broker.properties --to host-1.json
  kafkalite cluster recover-registry --log-dirs /data/1,/data/2 --to host-2.json
  kafkalite cluster recover-registry --config broker.properties --from host-1.json,host-2.json,host-3.json
  kafkalite cluster recover-registry --zookeeper 10.0.0.5:2181 --from host-1.json,host-2.json --without 3 --execute

\b
Examples for running brokers:
  kafkalite cluster recover-registry --config broker.properties --bootstrap-server host-1:9092,host-2:9092
  kafkalite cluster recover-registry --config broker.properties --bootstrap-server host-1:9092 --from host-2.json
""",
)
@click.option("--config", "config_path", metavar="FILE", help="A broker's properties file: its log.dirs, its registry.")
@click.option(
    "--log-dirs", metavar="DIR[,DIR]", help="With --to, instead of --config: all of a broker's log directories."
)
@click.option(
    "--lost",
    multiple=True,
    metavar="ID",
    help="With --to: leave out a log directory that is lost for good, named by its directory.id. Repeatable.",
)
@click.option("--to", "target", metavar="FILE", help="Write the state of the logs of this host's broker to FILE.")
@click.option("--from", "sources", multiple=True, metavar="FILE[,FILE]", help="Read the files of stopped brokers.")
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,...]",
    help="Ask the running brokers at these addresses, each by itself. With --execute they lead nothing from then on, "
    "until you restart them.",
)
@settings_options
@click.option("--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Instead of --config, but for --to: the registry.")
@click.option(
    "--without",
    multiple=True,
    type=click.IntRange(0),
    metavar="BROKER",
    help="Go on without the logs of this broker. What it alone has is lost. Repeatable.",
)
@click.option("--execute", is_flag=True, help="Write it. Without it, only show what would be written.")
@json_option
def recover_registry(
    config_path: str | None,
    log_dirs: str | None,
    lost: tuple[str, ...],
    target: str | None,
    sources: tuple[str, ...],
    bootstrap_server: str | None,
    command_config: str | None,
    command_properties: tuple[str, ...],
    zookeeper: str | None,
    without: tuple[int, ...],
    execute: bool,
    as_json: bool,
) -> None:
    """Rebuild the lost registry of a cluster from the logs, or complete an older one from a backup.

    For a stopped broker, --to on its host writes the state of its logs to a file, which --from reads. A running broker
    is asked (--bootstrap-server). Without --execute the command only shows the future content of the registry. With
    --execute it stops the running brokers from serving until you restart them, and writes the registry: topics with
    their ids, partitions and replicas. The new leader epochs and producer ids are above all those in the logs. The
    broker with the best log of a partition leads it, and the others copy it. The logs contain neither registry
    consumers' offsets nor settings of topics, but running brokers know the settings. Offsets and settings in an older
    registry stay. The command names the settings that are lost.
    """
    if (target is None) == (not sources and bootstrap_server is None):
        raise click.UsageError(
            "give either --to FILE, on the host of each stopped broker, or --from FILE,... of these, and "
            "--bootstrap-server HOST:PORT,... of the others"
        )
    if target is not None:
        _write_host(target, broker_directories(config_path, log_dirs, lost))
        return
    if (config_path is None) == (zookeeper is None):
        raise click.UsageError("name the registry: either --config FILE or --zookeeper HOST:PORT[/CHROOT]")
    hosts, brokers = _read_hosts(sources), None
    if bootstrap_server is not None:
        addresses = [each.strip() for each in bootstrap_server.split(",") if each.strip()]
        settings = client_settings(
            bootstrap_server, command_config, command_properties, request_timeout_ms=str(ASKED_MS)
        )
        brokers = AskedBrokers(settings, addresses)
    store = _open(config_path, zookeeper)
    try:
        _recover(store, hosts, brokers, without, execute=execute, as_json=as_json)
    finally:
        store.close()


# A host --------------------------------------------------------------------------------------------------------------


def _write_host(target: str, directories: BrokerDirectories) -> None:
    from spark_kafkalite.broker.standalone.host_logs import locked_log_dirs, read_host_logs
    from spark_kafkalite.log.files.os_fs import OsFs

    paths, lost, config = directories
    fs = OsFs()
    with locked_log_dirs(fs, paths):
        host = read_host_logs(fs, paths, None if config is None else config.broker_id, lost)
    temporary = f"{target}.part"
    try:
        Path(temporary).write_bytes(host.encode())
        os.replace(temporary, target)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror or error}") from error
    for problem in host.problems:
        warn(problem)
    said(f"{target} has the {len(host.logs)} logs of broker {host.broker_id}; do not start the broker before --execute")


def _read_hosts(sources: Sequence[str]) -> list[HostLogs]:
    from spark_kafkalite.registry.recovery.host_logs import HostLogs

    hosts = []
    for path in (each.strip() for argument in sources for each in argument.split(",") if each.strip()):
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
        hosts.append(HostLogs.decode(path, data))
    return hosts


# The cluster ---------------------------------------------------------------------------------------------------------


def _open(config_path: str | None, zookeeper: str | None) -> Store:
    from spark_kafkalite.broker.settings.config import BrokerConfig
    from spark_kafkalite.registry.zookeeper import open_zookeeper

    if config_path is None:
        assert zookeeper is not None
        return open_zookeeper(zookeeper)
    address = BrokerConfig.load(Path(config_path)).zookeeper
    if address is None:
        raise ConfigError(
            "the broker of this properties file has a registry of its own: kafkalite registry rebuild makes it again"
        )
    return open_zookeeper(
        address.connect,
        auth=address.auth,
        set_acl=address.set_acl,
    )


def _recover(
    store: Store,
    files: list[HostLogs],
    brokers: AskedBrokers | None,
    without: Sequence[int],
    *,
    execute: bool,
    as_json: bool,
) -> None:
    from spark_kafkalite.registry.recovery.registry_nodes import (
        check_none_registered,
        read_nodes,
        registered_brokers,
        write_nodes,
    )
    from spark_kafkalite.registry.znodes import CLUSTER_ID

    nodes = read_nodes(store)
    keeps_old = CLUSTER_ID in nodes
    asked = [] if brokers is None else brokers.look()
    plan = _plan(files + asked, nodes, without)
    running = registered_brokers(store)
    if execute and not plan.unread and brokers is not None:
        # Stop the brokers only if the command can probably write the registry.
        check_none_registered(store)
        asked = brokers.stop()
        plan = _plan(files + asked, nodes, without)
    written = execute and not plan.unread
    if written:
        write_nodes(store, plan.nodes, nodes)
    hosts = sorted(files + asked, key=lambda host: host.broker_id)
    if as_json:
        ids = [host.broker_id for host in hosts]
        print_json({"brokers": ids, "registry_is_new": not keeps_old, **plan.as_json(), "written": written})
    else:
        _show(plan, hosts, keeps_old=keeps_old)
        if running and not written:
            warn(f"brokers {', '.join(running)} are registered: stop all brokers before --execute")
    if plan.unread and execute:
        raise ReplicasNotRead(f"nothing has been written: {_told_unread(plan.unread)}")
    if plan.unread:
        warn(_told_unread(plan.unread))
    if not as_json:
        _say_what_follows(files, asked, without, written=written)


def _plan(hosts: list[HostLogs], nodes: Mapping[str, bytes], without: Sequence[int]) -> RecoveryPlan:
    from spark_kafkalite.broker.standalone.host_logs import offsets_topic_config
    from spark_kafkalite.registry.recovery import evidence_node
    from spark_kafkalite.registry.recovery.plan import plan_recovery

    plan = plan_recovery(hosts, nodes, without=without, offsets_config=offsets_topic_config())
    plan.nodes[evidence_node.PATH] = evidence_node.encode({host.broker_id: host.zxid for host in hosts})
    return plan


def _say_what_follows(
    files: Sequence[HostLogs], asked: Sequence[HostLogs], without: Sequence[int], *, written: bool
) -> None:
    if not written:
        said("nothing has been written; add --execute to write it")
        return
    if asked:
        said(f"the registry is written; restart brokers {_numbers(asked)}, which lead nothing until then")
        if files:
            said(f"start brokers {_numbers(files)}")
    else:
        said("the registry is written; start all brokers")
    for broker in sorted(set(without)):
        said(
            f"broker {broker}: before it starts again, remove registry-zxid-checkpoint from each of its log "
            "directories; it then copies its logs from the others"
        )


def _numbers(hosts: Iterable[HostLogs]) -> str:
    return ", ".join(str(host.broker_id) for host in sorted(hosts, key=lambda host: host.broker_id))


def _show(plan: RecoveryPlan, hosts: Sequence[HostLogs], *, keeps_old: bool) -> None:
    click.echo(f"cluster {plan.cluster_id}, logs of brokers {_numbers(hosts)}")
    click.echo(f"registry: {'there, to be completed' if keeps_old else 'new or empty'}")
    show_recovery(plan, keeps_old=keeps_old, is_older=True)
    if not keeps_old and not any(host.topics for host in hosts):
        warn("no registry names the brokers of this cluster: name the files of all of them, or records may be lost")


def _told_unread(unread: dict[TopicPartition, tuple[BrokerId, ...]]) -> str:
    by_broker: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
    for key, brokers in sorted(unread.items()):
        for broker in brokers:
            by_broker[broker].append(key)
    each = "; ".join(
        f"broker {broker} may have logs of {first_of(keys, 5)}" for broker, keys in sorted(by_broker.items())
    )
    options = " ".join(f"--without {broker}" for broker in sorted(by_broker))
    return f"{each}, and was not read: ask it or name its file, too, or give up what it alone has: {options}"


# Running brokers that ``kafkalite cluster recover-registry`` asks for what they have, each at its own address.


# A broker with many partitions may have some logs to cut back before it stands still.
ASKED_MS: Final = 60_000


class BrokerNotAsked(KafkaliteError):
    """A broker did not report its logs."""


class AskedBrokers:
    """The brokers at some addresses; ``settings`` are those of a client."""

    def __init__(self, settings: Mapping[str, object], addresses: list[str]) -> None:
        self._settings = settings
        self._addresses = addresses

    def look(self) -> list[HostLogs]:
        """Return what the brokers have now. Raises BrokerNotAsked with all that failed."""
        return self._ask(stands_still=False)

    def stop(self) -> list[HostLogs]:
        """Have the brokers stand still until they are restarted, and return what they have. Raises BrokerNotAsked."""
        return self._ask(stands_still=True)

    def _ask(self, *, stands_still: bool) -> list[HostLogs]:
        from spark_kafkalite.client.admin.admin import Admin
        from spark_kafkalite.client.client_config import parse_address
        from spark_kafkalite.registry.recovery.host_logs import HostLogs

        found, failures = [], []
        for address in self._addresses:
            if not can_connect(*parse_address(address)):
                # A client would try on for as long as a busy broker may take.
                failures.append(
                    f"broker at {address}: no broker answers; if it has ended, read its log directories (--to)"
                )
                continue
            try:
                # Its own client: what the brokers know of each other may be old.
                with Admin({**self._settings, "bootstrap.servers": address}) as admin:
                    data = admin.host_logs(stands_still=stands_still, timeout_ms=ASKED_MS)
                host = HostLogs.decode(f"the answer of {address}", data)
            except KafkaliteError as error:
                failures.append(f"broker at {address}: {error}")
                continue
            found.append(host)
        if failures:
            text = f"nothing has been written: {'; '.join(failures)}"
            if stands_still:
                text += (
                    f". The brokers at {', '.join(self._addresses)} lead nothing any more until they are restarted: "
                    "run the same command again, or restart them to go on without it"
                )
            raise BrokerNotAsked(text)
        return found
