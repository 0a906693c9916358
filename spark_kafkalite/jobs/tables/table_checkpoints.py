"""The end of a run with tables: writes their checkpoints, and puts the tables into its summary.

A checkpoint lets readers open a table without reading its commits one by one. The library deltalake writes it, in a
process of its own (``checkpoint_child``) with a deadline. A checkpoint that is missing costs readers time, and nothing
else. So a failure is a line in the run's report. Ten commits later a run tries again, so that a
library that hangs does not hold up each run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from spark_kafkalite.jobs.tables.delta_actions import CHECKPOINT_INTERVAL
from spark_kafkalite.jobs.tables.delta_tables import DeltaTables
from spark_kafkalite.manifests.files import Files, HadoopFiles
from spark_kafkalite.version import install_command

# deltalake 1.6.6 hangs at some openings of a table on HDFS, and not at the next one.
_DEADLINES_S: Final = (10.0, 20.0, 60.0)
_LAST_CHARACTERS: Final = 300
_SCHEMES: Final = ("file", "hdfs", "viewfs")
# Hadoop's settings that deltalake's own client of HDFS reads.
_SETTING_PREFIXES: Final = (
    "fs.defaultFS",
    "fs.viewfs.mounttable.",
    "dfs.nameservices",
    "dfs.ha.namenodes.",
    "dfs.namenode.rpc-address",
)


def add_tables(summary: dict[str, Any], files: Files, tables: DeltaTables) -> None:
    """Write the checkpoints that are due. Put each table into the summary, and why a checkpoint was not written."""
    for topic, table in sorted(tables.tables.items()):
        if table.state is None:
            continue
        if _is_due(table.state.commits_after_checkpoint, table.number - table.opened_at):
            problem = write_checkpoint(files, table.log.directory)
            if problem is not None:
                behind = table.state.commits_after_checkpoint
                summary["not_checkpointed"][topic] = f"{behind} commits after its last one: {problem}"
        summary["tables"][topic] = {
            "version": table.state.version,
            "manifest": table.number,
            "published": table.number > table.opened_at,
        }


def _is_due(behind: int, published: int) -> bool:
    """Whether a run that has published so many manifests writes a checkpoint, ``behind`` commits after the last one."""
    passes_a_tenth = behind % CHECKPOINT_INTERVAL < max(published, 1)
    return behind >= CHECKPOINT_INTERVAL and passes_a_tenth


def write_checkpoint(files: Files, directory: str, deadlines_s: Sequence[float] = _DEADLINES_S) -> str | None:
    """Write the checkpoint of the table in a directory of the destination; return why that failed, or None.

    ``deadlines_s``: after how long each try is ended.
    """
    # A local path as it is: deltalake would decode it as a part of a URI.
    uri = f"{files.root}/{directory}".removeprefix("file://")
    scheme = urlsplit(uri).scheme or "file"
    if scheme not in _SCHEMES:
        return f"deltalake has no settings for {scheme}: from this program; run OPTIMIZE in Spark, which writes one"
    if find_spec("deltalake") is None:
        return f"deltalake writes them, and is not installed: {install_command('delta')}"
    command = [sys.executable, "-m", f"{__package__}.checkpoint_child", uri]
    settings = json.dumps(_settings(files))
    for deadline_s in deadlines_s:
        try:
            done = subprocess.run(command, input=settings, capture_output=True, text=True, timeout=deadline_s)
        except subprocess.TimeoutExpired:
            continue
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        if done.returncode == 0:
            return None
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"deltalake: {lines[-1][:_LAST_CHARACTERS]}"
    return f"deltalake did not write it within {' nor within '.join(f'{each:g} s' for each in deadlines_s)}"


def _settings(files: Files) -> Mapping[str, str]:
    if not isinstance(files, HadoopFiles):
        return {}
    return {name: value for prefix in _SETTING_PREFIXES for name, value in files.settings(prefix).items()}
