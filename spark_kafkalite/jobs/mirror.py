"""The mirror job: topics of one cluster copied to another through a streaming query.

Records keep partition, key, value, headers and timestamp; offsets are the target's own. The rules are in
``mirror_topics``. Before each batch the job creates the topics and partitions that the targets lack. The guarantee is
at least once: a batch that runs again writes its records again.

Only the checkpoint records what was read. It belongs to one pair of clusters and to its targets. The job refuses
another pair, and a target that was deleted, because it does not copy again what it copied before.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.client.admin.admin import Admin, PartitionLag
from spark_kafkalite.client.network.metadata import TopicInfo
from spark_kafkalite.errors import KafkaliteError, UnknownTopicOrPartition
from spark_kafkalite.jobs.copying.mirror_topics import (
    MirroredTopics,
    TopicLag,
    by_topic,
    changes_of_targets,
    check_clusters,
    check_no_way_back,
    check_quarantine,
    group_of,
    prefix_of,
    shown,
)
from spark_kafkalite.jobs.copying.streaming import (
    SOURCE_IDS,
    QuarantineTopic,
    await_end,
    check_topic_id,
    has_begun,
    origin_column,
    remember_topic_id,
)
from spark_kafkalite.jobs.destination import lease, publish
from spark_kafkalite.jobs.load.load_options import named_pattern
from spark_kafkalite.jobs.load.planning import PlanError
from spark_kafkalite.jobs.program.client_options import client_settings, open_admin, sink_options, source_options
from spark_kafkalite.jobs.program.command import JobCommand, is_given, lease_options, names_in
from spark_kafkalite.jobs.program.outcome import error_line
from spark_kafkalite.jobs.program.session import (
    is_submitted,
    reachable_files,
    say,
    start_session,
)
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import HOME, MANIFESTS
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.checkpoints.checkpoint_files import QueryCheckpoint, QueryCheckpointError, offsets_path
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.pyspark_versions import AVAILABLE_NOW_OPTIONS, start_available_now
from spark_kafkalite.spark.reading.read_schema import copied_schema
from spark_kafkalite.spark.reading.topic_id import topic_id_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENDS_PATH: Final = f"{HOME}/mirror"
_TARGET_IDS: Final = "target_topic_ids"
_TARGET_GONE: Final = (
    "what was copied before would be missing from it; give another --checkpoint to copy from --starting-offsets on"
)
_CREATED_AGAIN: Final = "give another --checkpoint to copy the topic from --starting-offsets on"
_TOPIC_SOURCE: Final = "topic"


@click.command(name="mirror", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--from-bootstrap-server", required=True, help="HOST:PORT of a broker of the cluster to read.")
@click.option("--to-bootstrap-server", required=True, help="HOST:PORT of a broker of the cluster to write to.")
@click.option("--topic", "topic_list", help="Topic to copy, or several with commas.")
@click.option("--topic-pattern", help="Regular expression: topics are copied whose names it matches anywhere.")
@click.option("--topic-prefix", default="", help="Put before the names of the targets.")
@click.option("--checkpoint", required=True, help="Directory that remembers what has been copied.")
@click.option("--continuous", is_flag=True, help="Go on until Ctrl-C; without, end at the logs' ends at the start.")
@click.option("--starting-offsets", default="earliest", show_default=True, help="For a new checkpoint.")
@click.option("--max-offsets-per-trigger", type=click.IntRange(min=1), help="Bound of one micro-batch.")
@click.option(
    "--replication-factor", type=click.IntRange(min=1), help="Of targets that are created; else the broker's."
)
@click.option(
    "--quarantine-topic",
    help="Topic of the target's cluster for records that a target refuses for themselves; without it the job stops.",
)
@click.option("--with-configs", is_flag=True, help="Give targets that are created the settings of their sources.")
@click.option(
    "--report-every", type=click.FloatRange(min=1), default=10, show_default=True, help="Seconds between lags."
)
@lease_options
@click.option("--from-command-config", metavar="FILE", help="Properties file of the client that reads.")
@click.option("--to-command-config", metavar="FILE", help="Properties file of the client that writes.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(
    from_bootstrap_server: str,
    to_bootstrap_server: str,
    topic_list: str | None,
    topic_pattern: str | None,
    topic_prefix: str,
    checkpoint: str,
    continuous: bool,
    starting_offsets: str,
    max_offsets_per_trigger: int | None,
    replication_factor: int | None,
    quarantine_topic: str | None,
    with_configs: bool,
    report_every: float,
    lease_ms: int,
    wait_ms: int | None,
    from_command_config: str | None,
    to_command_config: str | None,
    as_json: bool,
) -> None:
    """Copy topics to another cluster, batch by batch, and go on at the position of the checkpoint.

    Records keep their partitions, keys, headers and timestamps, but not their offsets. The job creates missing targets
    with as many partitions as their sources, and extends them when these grow. At least once: after a failure some
    records are copied again. One mirror at a time works with a checkpoint. A record that the target's broker
    rejects (too large, its timestamp, no key) stops the job with exit code 5. With --quarantine-topic it goes there,
    with headers that name its origin and the error.
    """
    selection = _selection(topic_list, topic_pattern, topic_prefix)
    source = client_settings(from_command_config, (), option="--from-command-config")
    target = client_settings(to_command_config, (), writes=True, option="--to-command-config")
    query_options: dict[str, str] = {}
    if max_offsets_per_trigger is not None:
        query_options["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    if is_submitted():
        # Only a session knows the directory of shipped files.
        start_session("kafkalite mirror")
    with open_admin(from_bootstrap_server, source) as reading, open_admin(to_bootstrap_server, target) as writing:
        new = NewTargets(replication_factor or -1, with_configs)
        mirror = Mirror(selection, reading, writing, new, quarantine_topic)
        spark = start_session("kafkalite mirror")
        files = reachable_files(spark, "--checkpoint", checkpoint)
        read = {
            "kafka.isolation.level": "read_committed",
            **source_options(from_bootstrap_server, source),
            **selection.source_options(),
            **query_options,
        }
        write = sink_options(to_bootstrap_server, target, quarantine_topic)
        mirror.check()
        # Spark notices a second query of a checkpoint when both have written the same batch.
        with lease.held(
            files, publish.new_run(), lease_ms=lease_ms, wait_ms=wait_ms, say=say, what="checkpoint"
        ) as held:
            mirror.begin(files)
            if not has_begun(files) or is_given("starting_offsets"):
                read["startingOffsets"] = starting_offsets
            summary = mirror.run(spark, files, read, write, continuous, report_every, held.check)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        copied = ", ".join(f"{topic} {each['copied']}" for topic, each in summary["topics"].items())
        lags = [TopicLag(topic, each["lag"], each["lag_ms"]) for topic, each in summary["topics"].items()]
        aside = f", {summary['quarantined']} of them to topic {quarantine_topic}" if summary["quarantined"] else ""
        told = f"mirrored {summary['copied']} offsets ({copied}){aside}; {shown(lags)}"
        click.echo(told if copied else "nothing to mirror")


def _selection(topic_list: str | None, pattern: str | None, prefix: str) -> MirroredTopics:
    if (topic_list is None) == (pattern is None):
        raise click.UsageError("give exactly one of --topic and --topic-pattern")
    names = names_in(topic_list)
    if pattern is None and not names:
        raise click.BadParameter(f"{topic_list!r} names no topic", param_hint="--topic")
    return MirroredTopics(names, pattern if pattern is None else named_pattern(pattern, "--topic-pattern"), prefix)


@dataclass(frozen=True, slots=True)
class NewTargets:
    """How targets are created; -1 is the broker's own replication factor."""

    replication_factor: int = -1
    with_configs: bool = False


class BatchFailed(KafkaliteError):
    """The error that the engine receives for a failed batch."""


class Mirror:
    """A mirror of some topics from the cluster that ``reading`` asks to that of ``writing``."""

    def __init__(
        self,
        selection: MirroredTopics,
        reading: Admin,
        writing: Admin,
        new: NewTargets,
        quarantine_topic: str | None = None,
    ) -> None:
        self._selection = selection
        self._quarantine = None if quarantine_topic is None else QuarantineTopic(writing, quarantine_topic)
        self._reading = reading
        self._writing = writing
        self._new = new
        self._from_cluster = reading.describe_cluster().cluster_id
        self._to_cluster = writing.describe_cluster().cluster_id
        # The ids that the checkpoint holds, by kind and name, so that a batch need not read them again.
        self._known_ids: dict[tuple[str, str], str] = {}
        # The error that ended the query: the engine would wrap it in its own words and tracebacks.
        self._failure: Exception | None = None

    def check(self) -> None:
        """Raise PlanError for topics that must not be mirrored, before anything is written."""
        topics = self._topics()
        lacking = [topic for topic in self._selection.topics if topic not in topics]
        if lacking:
            raise UnknownTopicOrPartition(f"no such topic: {', '.join(lacking)}")
        check_clusters(self._selection, topics, self._from_cluster, self._to_cluster)
        self._check_quarantine(topics)
        self._check_way_back(topics)

    def begin(self, checkpoint: Files) -> None:
        """Make the checkpoint one of this mirror, create and extend targets. Raises PlanError as :meth:`prepare`."""
        self._check_ends(checkpoint)
        copied = sorted({tp.topic for tp in _standing(checkpoint)})
        left_out = [topic for topic in copied if not self._selection.takes(topic)]
        if left_out:
            raise PlanError(
                f"{checkpoint.root}: the checkpoint of a mirror of {listed(copied)}, but {listed(left_out)} is not to "
                "be copied any more: name all of them, with or without others, or give another --checkpoint"
            )
        self.prepare(checkpoint)
        if self._quarantine is not None:
            self._quarantine.begin(self._new.replication_factor)

    def _topics(self) -> dict[str, TopicInfo]:
        """Return the topics to copy that exist."""
        return self._reading.describe_topics(self._selection.of(self._reading.list_topics()))

    def _check_quarantine(self, topics: Iterable[str]) -> None:
        if self._quarantine is not None:
            is_read_too = self._from_cluster is not None and self._from_cluster == self._to_cluster
            check_quarantine(self._selection, topics, self._quarantine.name, is_read_too=is_read_too)

    def _check_way_back(self, topics: Collection[str]) -> None:
        if self._from_cluster is None:
            return
        for listing in self._writing.list_groups():
            prefix = prefix_of(listing.group_id, self._from_cluster)
            if prefix is not None:
                read = {tp.topic for tp in self._writing.group_offsets(listing.group_id)}
                check_no_way_back(self._selection, topics, listing.group_id, prefix, read)

    def _check_ends(self, checkpoint: Files) -> None:
        """Remember the clusters in the checkpoint. Raises PlanError where it remembers others."""
        if checkpoint.exists(MANIFESTS):
            raise PlanError(f"{checkpoint.root}: the destination of loads; give another --checkpoint")
        ends = {"from": self._from_cluster, "to": self._to_cluster, "prefix": self._selection.prefix}
        if not checkpoint.exists(_ENDS_PATH):
            if checkpoint.names("offsets"):
                raise PlanError(
                    f"{checkpoint.root}: the checkpoint of a query that is no mirror; give another --checkpoint"
                )
            checkpoint.write_new(_ENDS_PATH, json.dumps(ends) + "\n")
            return
        before = json.loads(checkpoint.read(_ENDS_PATH))
        if before != ends:
            raise PlanError(
                f"{checkpoint.root}: the checkpoint of a mirror from cluster {before['from']} to {before['to']} with "
                f"prefix {before['prefix']!r}, but this is one from {ends['from']} to {ends['to']} with prefix "
                f"{ends['prefix']!r}: what was copied before would be missing; give another --checkpoint"
            )

    def prepare(self, checkpoint: Files) -> None:
        """Create targets that are missing, and extend those that their sources have outgrown.

        Raises PlanError for a topic that is another one than the checkpoint remembers, and for a target that is gone.
        """
        source = self._topics()
        check_clusters(self._selection, source, self._from_cluster, self._to_cluster)
        self._check_quarantine(source)
        for topic, info in source.items():
            self._check_id(checkpoint, topic, info, SOURCE_IDS, _CREATED_AGAIN)
        there = set(self._writing.list_topics(include_internal=True))
        found = self._writing.describe_topics([name for name in map(self._selection.target, source) if name in there])
        counts = {name: len(each.partitions) for name, each in found.items()}
        wanted = {topic: len(info.partitions) for topic, info in source.items()}
        changes = changes_of_targets(self._selection, wanted, counts)
        for name in changes.create:
            if check_topic_id(checkpoint, name, None, _TARGET_GONE, _TARGET_IDS):
                raise PlanError(f"topic {name}: it was deleted since this mirror wrote to it; {_TARGET_GONE}")
        for name, count in changes.create.items():
            configs = self._configs(name.removeprefix(self._selection.prefix)) if self._new.with_configs else {}
            self._writing.create_topic(name, count, self._new.replication_factor, configs, if_not_exists=True)
            click.echo(f"created topic {name} with {count} partitions", err=True)
        if changes.grow:
            self._writing.create_partitions(changes.grow)
            for name, count in changes.grow.items():
                click.echo(f"topic {name} has {count} partitions now", err=True)
        if changes.create:
            found |= self._writing.describe_topics(changes.create)
        for name, each in found.items():
            self._check_id(checkpoint, name, each, _TARGET_IDS, _TARGET_GONE)

    def _check_id(self, checkpoint: Files, name: str, info: TopicInfo, kind: str, advice: str) -> None:
        """Have the checkpoint remember the topic's id. Raises PlanError, ending in ``advice``, where it has another."""
        found = topic_id_text(info.topic_id)
        if found is None or self._known_ids.get((kind, name)) == found:
            return
        if not check_topic_id(checkpoint, name, found, advice, kind):
            remember_topic_id(checkpoint, name, found, kind)
        self._known_ids[kind, name] = found

    def _configs(self, topic: str) -> dict[str, str]:
        """Return the settings that were made for a topic of the source."""
        entries = self._reading.describe_configs(topic=topic).values()
        return {
            each.name: each.value
            for each in entries
            if each.source == _TOPIC_SOURCE and each.value is not None and not each.is_sensitive
        }

    def run(
        self,
        spark: SparkSession,
        checkpoint: Files,
        read: Mapping[str, str],
        write: Mapping[str, str],
        continuous: bool,
        report_every_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Run the query until it ends and return the summary. ``check`` is called before each batch, and may raise."""
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

        started_s = time.monotonic()
        options = {**read, "includeHeaders": "true"}
        if not continuous:
            options |= AVAILABLE_NOW_OPTIONS
        if self._to_cluster is not None:
            options["groupId"] = group_of(self._to_cluster, self._selection.prefix)
        columns = copied_schema("topic", "partition", "offset", "key", "value", "headers", "timestamp")
        frame = spark.readStream.format("kafkalite").schema(columns).options(**options).load()
        target = F.concat(F.lit(self._selection.prefix), F.col("topic")).alias("topic")
        rows = frame.select(target, "partition", "key", "value", "headers", "timestamp", origin_column())
        before = _standing(checkpoint)
        writer = rows.writeStream.foreachBatch(self._writing_to(checkpoint, write, check))
        writer = writer.option("checkpointLocation", checkpoint.root)
        with _without_py4js_tracebacks():
            if continuous:
                query = writer.trigger(processingTime="1 second").start()
            else:
                query = start_available_now(writer)
            try:
                await_end(query, lambda: self._report(checkpoint), report_every_s)
            except PySparkException:
                if self._failure is not None:
                    raise self._failure from None
                raise
        after = _standing(checkpoint)
        lags = self._lags(after)
        begins = {**{tp: each.log_start_offset or 0 for tp, each in lags.items()}, **_initial(checkpoint), **before}
        topics: dict[str, dict[str, int | None]] = {}
        for each in by_topic(lags):
            copied = sum(offset - begins[tp] for tp, offset in after.items() if tp.topic == each.topic)
            topics[each.topic] = {"copied": copied, "lag": each.lag, "lag_ms": each.age_ms}
        return {
            "topics": topics,
            "copied": sum(each["copied"] or 0 for each in topics.values()),
            "quarantined": 0 if self._quarantine is None else self._quarantine.came(),
            "seconds": round(time.monotonic() - started_s, 1),
        }

    def _lags(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionLag]:
        return self._reading.lag_behind(dict(offsets))

    def _report(self, checkpoint: Files) -> None:
        """Print the lag of the mirror. A cluster or file system that does not answer now does not end the job."""
        from py4j.protocol import Py4JError

        try:
            standing = _standing(checkpoint)
            click.echo(shown(by_topic(self._lags(standing))) if standing else "no batch has begun yet", err=True)
        except QueryCheckpointError:
            # A batch began or ended while the checkpoint was read; the next report has it.
            return
        except (KafkaliteError, OSError, Py4JError) as error:
            click.echo(f"the lag is not known: {error_line(error)}", err=True)

    def _writing_to(
        self, checkpoint: Files, options: Mapping[str, str], check: Callable[[], None]
    ) -> Callable[[DataFrame, int], None]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        def write(batch: DataFrame, batch_id: int) -> None:
            try:
                check()
                self.prepare(checkpoint)
                batch.write.format("kafkalite").options(**options).mode("append").save()
            except (KafkaliteError, PySparkException, Py4JError) as error:
                self._failure = error
                # Spark looks for interruptions in the text that it gets, with a regular expression that needs a stack
                # as deep as the text is long.
                raise BatchFailed("the batch has failed") from None

        return write


@contextmanager
def _without_py4js_tracebacks() -> Iterator[None]:
    """Py4J logs a traceback of an error in a batch, which the job reports in a line of its own."""
    log = logging.getLogger("py4j.clientserver")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _standing(checkpoint: Files) -> dict[TopicPartition, int]:
    """Return where the mirror's last finished batch ended; nothing before the first one is."""
    if not has_begun(checkpoint):
        return {}
    found = QueryCheckpoint.open(checkpoint)
    if found.committed is None:
        return _initial(checkpoint)
    return dict(found.batch(found.committed).sources[0].offsets or {})


def _initial(checkpoint: Files) -> dict[TopicPartition, int]:
    """Return where the mirror began, as long as the checkpoint has its first batch."""
    if not checkpoint.exists(offsets_path(0)):
        return {}
    return dict(QueryCheckpoint.open(checkpoint).batch(0).sources[0].initial or {})
