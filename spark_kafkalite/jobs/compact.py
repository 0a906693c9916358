"""The compact job: merges many small files of a load's directory into few.

Run by ``spark-submit "$(kafkalite jobs path compact)" ...`` or ``kafkalite jobs run compact ...``. This is its command
line and its output. ``compaction/merge_planning.py`` chooses the files, ``compaction/compaction.py`` merges them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.jobs.compaction import compaction, merge_planning
from spark_kafkalite.jobs.compaction.merge_planning import MergeBounds, MergePlan
from spark_kafkalite.jobs.destination import folding, lease, publish
from spark_kafkalite.jobs.load.completeness import LATE_DIRECTORY, SUCCESS
from spark_kafkalite.jobs.program.command import JobCommand, keep_manifests_option, lease_options, names_in
from spark_kafkalite.jobs.program.quantities import Duration, Size
from spark_kafkalite.jobs.program.session import reachable_files, say, start_session
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.jobs.tables.table_mark import table_topics
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import Manifest, ManifestError
from spark_kafkalite.manifests.manifest_checkpoint import published_files
from spark_kafkalite.spark.conditions import listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of what one manifest publishes: a run that is stopped loses one round's work.
_ROUND_BYTES: Final = 16 * 1024**3
_OF_TABLES: Final = "a Delta table names the files that compact would replace; merge them with OPTIMIZE in Spark"


@click.command(name="compact", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--destination", required=True, help="Directory that hadoop_load has loaded into.")
@click.option("--topic", "topics", help="Topic, or several with commas. [default: all]")
@click.option(
    "--min-files",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="Merge where a directory has so many files that are smaller than half of --file-size.",
)
@click.option("--file-size", type=Size(), default="256m", show_default=True, help="Size of the files to make, about.")
@click.option(
    "--older-than",
    type=Duration(),
    help="Merge in directories into which nothing was published for so long. [default: those that have _SUCCESS]",
)
@click.option(
    "--keep-replaced",
    type=Duration(),
    default="7d",
    show_default=True,
    help="How long the files that were merged are kept in _kafkalite/replaced.",
)
@keep_manifests_option
@click.option("--dry-run", is_flag=True, help="Only print what would be merged.")
@lease_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(**given: Any) -> None:
    """Merge small files that hadoop_load has published in DESTINATION, of Parquet, ORC and JSON.

    Merged files are TOPIC-compact-RUN-N.parquet in the same directory. They have the same records, sorted by partition
    and offset. The job checks that before they replace the others. read_published sees either the old or the new files.
    A program that lists directories may miss the rows of a directory during the swap, but never sees a row twice. If a
    compaction is killed, the next run of a job completes or drops it.
    """
    started = time.monotonic()
    spark = start_session("kafkalite compact")
    files = reachable_files(spark, "--destination", given["destination"])
    if given["dry_run"]:
        summary = _summary(files, *_planned(files, given))
    else:
        if publish.newest_manifest(files) is None:
            # Before the lease, which would make the directory of a name that is mistyped.
            raise ManifestError(_nothing_published(files))
        run = publish.new_run()
        with lease.held(files, run, lease_ms=given["lease_ms"], wait_ms=given["wait_ms"], say=say) as held:
            newest = publish.recover(files, run, held.check).newest
            summary = run_compact(spark, files, given, newest)
    summary["seconds"] = round(time.monotonic() - started, 1)
    click.echo(json.dumps(summary) if given["as_json"] else _sentence(summary, given["dry_run"]))


def run_compact(spark: SparkSession, files: Files, given: Mapping[str, Any], newest: Manifest | None) -> dict[str, Any]:
    """Merge the files that need it, and return the summary.

    ``newest`` is the destination's newest manifest, after its recovery. Raises ManifestError, also where nothing was
    published, AuditError, and what Spark and the file system raise.
    """
    plan, tables = _planned(files, given)
    summary = _summary(files, plan, tables)
    for merges in merge_planning.rounds(plan.merges, _ROUND_BYTES):
        assert newest is not None, "what is merged was published"
        newest = compaction.compact(spark, files, merges, newest)
        summary["manifests"].append(newest.path)
        summary["records"] += newest.records
        summary["made_bytes"] += sum(file.size_bytes or 0 for file in newest.files)
        summary["not_folded"] = folding.problem_of_folding(files, given["keep_manifests_ms"])
    summary["deleted_runs"] = list(compaction.drop_replaced(files, given["keep_replaced"]))
    return summary


def _nothing_published(files: Files) -> str:
    return f"{files.root}: no load run has published records here; see _kafkalite/manifests"


def _planned(files: Files, given: Mapping[str, Any]) -> tuple[MergePlan, list[str]]:
    """Return the merges, and the topics that are left out because they are Delta tables."""
    published = published_files(publish.manifests(files))
    if not published:
        raise ManifestError(_nothing_published(files))
    names = set(names_in(given["topics"]))
    unknown = names - {file.topic for _, file in published}
    if unknown:
        raise click.BadParameter(f"{files.root} has no files of {', '.join(sorted(unknown))}", param_hint="--topic")
    tables = {file.topic for _, file in published} & {*table_topics(files)}
    if named := sorted(names & tables):
        raise TableError(f"{files.root}: {listed(named)}: {_OF_TABLES}; choose other topics with --topic")
    topics = (names or {file.topic for _, file in published}) - tables
    chosen = [(manifest, file) for manifest, file in published if file.topic in topics]
    bounds = MergeBounds(given["min_files"], given["file_size"])
    plan = merge_planning.plan_merges(
        compaction.with_sizes(files, chosen), bounds, _settled(files, given["older_than"], datetime.now(UTC))
    )
    return plan, [] if names else sorted(tables)


def _settled(files: Files, older_than_ms: int | None, now: datetime) -> Callable[[str, str], bool]:
    if older_than_ms is not None:
        before = now - timedelta(milliseconds=older_than_ms)
        return lambda _, created: datetime.fromisoformat(created) <= before
    return lambda directory, _: files.exists(f"{directory.replace(f'/{LATE_DIRECTORY}/', '/', 1)}/{SUCCESS}")


def _summary(files: Files, plan: MergePlan, tables: Sequence[str]) -> dict[str, Any]:
    return {
        "destination": files.root,
        "manifests": [],
        "merges": [
            {"directory": each.directory, "files": len(each.files), "bytes": each.size_bytes} for each in plan.merges
        ],
        "replaced_files": sum(len(each.files) for each in plan.merges),
        "replaced_bytes": sum(each.size_bytes for each in plan.merges),
        "made_bytes": 0,
        "records": 0,
        "waiting": list(plan.waiting),
        "unreadable": plan.unreadable,
        "tables": list(tables),
        "deleted_runs": [],
        "not_folded": None,
    }


def _sentence(summary: dict[str, Any], is_dry_run: bool) -> str:
    lines = []
    if is_dry_run:
        for each in summary["merges"]:
            lines.append(f"{each['directory']}: {each['files']} files with {each['bytes']} bytes would become one")
    elif summary["merges"]:
        lines.append(
            f"merged {summary['replaced_files']} files into {len(summary['merges'])} under {summary['destination']}: "
            f"{summary['records']} records, {summary['replaced_bytes']} bytes before, {summary['made_bytes']} now "
            f"({listed(summary['manifests'])})"
        )
    if not summary["merges"]:
        lines.append(f"nothing to merge in {summary['destination']}")
    if summary["waiting"]:
        lines.append(f"left, because they are not complete: {listed(summary['waiting'])}")
    if summary["tables"]:
        lines.append(f"left topics that are Delta tables: {listed(summary['tables'])}: {_OF_TABLES}")
    if summary["unreadable"]:
        lines.append(f"left {summary['unreadable']} files of formats that are not merged")
    if summary["deleted_runs"]:
        lines.append(f"deleted what {len(summary['deleted_runs'])} earlier run(s) had replaced")
    if summary["not_folded"]:
        lines.append(f"WARNING: old manifests were not folded into a checkpoint: {summary['not_folded']}")
    return "\n".join(lines)
