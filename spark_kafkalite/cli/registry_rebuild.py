"""``kafkalite registry rebuild``: shows, and with ``--execute`` writes, a broker's registry made from its logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_kafkalite.cli.options import json_option
from spark_kafkalite.cli.output import print_json, said
from spark_kafkalite.cli.recovery_text import show_recovery
from spark_kafkalite.cli.registry_files import broker_directories

if TYPE_CHECKING:
    from spark_kafkalite.broker.standalone.registry_rebuild import RebuildPlan


@click.command(
    "rebuild",
    epilog="""\b
Examples:
  kafkalite registry rebuild --config conf/server.properties
  kafkalite registry rebuild --log-dirs /data/1,/data/2 --execute
""",
)
@click.option(
    "--config", "config_path", metavar="FILE", help="The broker's properties file, which names the directories."
)
@click.option(
    "--log-dirs", "log_dirs", metavar="DIR[,DIR]", help="Instead of --config: all of the broker's log directories."
)
@click.option(
    "--registry-dir",
    metavar="DIR",
    help="Directory of the registry; when not set, _registry in the first log directory.",
)
@click.option(
    "--lost",
    multiple=True,
    metavar="ID",
    help="Rebuild without a log directory that is lost for good, named by its directory.id. Repeatable.",
)
@click.option("--execute", is_flag=True, help="Write it. Without it, only show what would be written.")
@json_option
def rebuild(
    config_path: str | None,
    log_dirs: str | None,
    registry_dir: str | None,
    lost: tuple[str, ...],
    execute: bool,
    as_json: bool,
) -> None:
    """Rebuild the lost or damaged registry of a broker from its logs. The broker must be stopped.

    The new registry has the cluster id, and the topics with their ids and partitions. Its leader epochs and producer
    ids are above all in the logs, so producers and consumers go on. A registry that exists and is only older than the
    logs is completed; old files are kept under other names. Settings and registry consumers' offsets are in no log:
    they are listed.
    """
    directories, lost, config = broker_directories(config_path, log_dirs, lost)
    from spark_kafkalite.broker.standalone.registry_rebuild import as_json as plan_as_json
    from spark_kafkalite.broker.standalone.registry_rebuild import locked, plan_rebuild, write
    from spark_kafkalite.log.files.os_fs import OsFs

    broker_id = None if config is None else config.broker_id
    registry = Path(directories[0]) / "_registry" if config is None else config.registry_dir
    registry = Path(registry_dir) if registry_dir else registry
    fs = OsFs()
    with locked(fs, directories, registry):
        plan = plan_rebuild(fs, directories, registry, broker_id, lost)
        kept = write(plan) if execute and plan.is_needed else []
    if as_json:
        print_json({**plan_as_json(plan), "written": execute and plan.is_needed, "old_files": kept})
        return
    _show(plan)
    if not plan.is_needed:
        said("the registry lacks nothing that the logs name; nothing to do")
    elif not execute:
        said("nothing has been written; add --execute to write it")
    else:
        if kept:
            said(f"the old files are kept: {', '.join(kept)}")
        said(f"{plan.registry_dir} is written; the broker can be started")


def _show(plan: RebuildPlan) -> None:
    click.echo(f"cluster {plan.recovery.cluster_id}, broker {plan.host.broker_id}")
    what = {"older": "older than the logs, to be completed", "complete": "there"}.get(plan.state, plan.state)
    click.echo(f"registry {plan.registry_dir}: {what}")
    show_recovery(plan.recovery, keeps_old=plan.keeps_old, is_older=plan.state == "older")
