"""``kafkalite registry export``: moves a stopped registry of one host into a ZooKeeper ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_kafkalite.cli.options import json_option
from spark_kafkalite.cli.output import print_json, said, warn
from spark_kafkalite.cli.registry_files import named_directories, read_digest
from spark_kafkalite.registry.zookeeper_address import SASL_MECHANISMS

if TYPE_CHECKING:
    from spark_kafkalite.log.files.fs import Fs


@click.command(
    "export",
    epilog="""\b
Examples:
  kafkalite registry export --data /var/lib/kafkalite/_registry --to zk1:2181,zk2:2181,zk3:2181/kafkalite
  kafkalite registry export --data ./registry --log-dirs ./broker-1,./broker-2 --to zk1:2181/kafkalite
""",
)
@click.option("--data", "data", metavar="DIR", required=True, help="Directory of the registry. No process may use it.")
@click.option(
    "--to", "target", metavar="HOST:PORT[,...][/CHROOT]", required=True, help="The ensemble, as in zookeeper.connect."
)
@click.option(
    "--log-dirs",
    "log_dirs",
    metavar="DIR[,DIR]",
    help="All log directories of the brokers that used the registry. When not set, the one that the registry lies in, "
    "and those that it names.",
)
@click.option("--digest-file", metavar="FILE", help="USER:PASSWORD, as in zookeeper.digest.")
@click.option(
    "--sasl-mechanism",
    type=click.Choice(SASL_MECHANISMS),
    help="Authenticate by SASL, as zookeeper.sasl.mechanism does. DIGEST-MD5 takes the user of --digest-file.",
)
@click.option("--set-acl", is_flag=True, help="Let only that user change the nodes, as zookeeper.set.acl=true does.")
@json_option
def export(
    data: str,
    target: str,
    log_dirs: str | None,
    digest_file: str | None,
    sasl_mechanism: str | None,
    set_acl: bool,
    as_json: bool,
) -> None:
    """Copy the registry of one host into a ZooKeeper ensemble, and put it out of use. Its brokers must be stopped.

    All persistent nodes are copied: topics, their settings, and the offsets of registry consumers. Then the old files
    get other names, and the brokers start with zookeeper.connect. An export that was interrupted is run again.
    """
    from spark_kafkalite.broker.standalone.registry_export import check_has_registry, export_registry
    from spark_kafkalite.log.files.os_fs import OsFs
    from spark_kafkalite.registry.zookeeper import open_zookeeper
    from spark_kafkalite.registry.zookeeper_address import ZooKeeperAddress

    check_has_registry(Path(data))
    fs = OsFs()
    directories = _log_dirs(fs, data, log_dirs)
    values = {
        "zookeeper.connect": target,
        "zookeeper.digest": read_digest(digest_file),
        "zookeeper.sasl.mechanism": sasl_mechanism,
        "zookeeper.set.acl": set_acl,
        "zookeeper.session.timeout.ms": 18_000,
        "zookeeper.connection.timeout.ms": 10_000,
    }
    address = ZooKeeperAddress.of(values)
    assert address is not None
    store = open_zookeeper(
        address.connect,
        connect_timeout_s=address.connection_timeout_ms / 1000,
        auth=address.auth,
        set_acl=address.set_acl,
    )
    try:
        done = export_registry(
            fs, Path(data), directories, store, where=address.connect, authenticated=address.auth is not None
        )
    finally:
        store.close()
    if as_json:
        print_json({**done._asdict(), "target": address.connect, "log_dirs": directories})
        return
    if done.left_out_secret:
        warn(
            "the secret by which the brokers know each other was not copied, because the session was not authenticated "
            "(--digest-file, --sasl-mechanism): give each broker inter.broker.secret.file"
        )
    said(
        f"cluster {done.cluster_id}: {done.nodes} nodes copied to {address.connect}"
        if done.nodes
        else f"cluster {done.cluster_id} is at {address.connect} already; nothing was copied"
    )
    said(f"the old registry is out of use; its files are kept: {', '.join(done.kept)}")
    said(f"start the brokers with zookeeper.connect={address.connect}, without registry.dir and registry.listener")


def _log_dirs(fs: Fs, data: str, named: str | None) -> list[str]:
    """Return the log directories of the brokers. Raises UsageError where they are not known."""
    if named is not None:
        return named_directories(named)
    from spark_kafkalite.log.directories.siblings import find_siblings
    from spark_kafkalite.log.files.small_files import META_FILE

    parent = str(Path(data).absolute().parent)
    if not fs.exists(f"{parent}/{META_FILE}"):
        raise click.UsageError(
            f"{data} does not lie in a log directory: give --log-dirs with all log directories of the brokers that "
            "used this registry, because they remember how far it had come"
        )
    siblings = find_siblings(fs, [parent])
    return sorted({parent, *siblings.missing.values()})
