"""Watches the streaming queries of a session: their lag, and the commit of a last batch that the source cannot make.

After :func:`install_listener` Spark reports every batch of every query to the application's own process, in one thread
and in order. A report has the end of each source's batch and the ends of the logs, but not the source's options. The
listener reads these from the query's plan in the JVM, where a source has the same description as in the report. It
skips sources of other formats.

A batch that was reported is in the checkpoint's commit log. So when a query ends, the listener commits its last batch
if the options ask for commits. Trigger.Once and a stopped query end before the engine asks the source again, see
``reading.stream_reader``. ``spark.stop()`` waits for reports that are under way. An application that ends without it
may lose that commit; the next start of the query makes it.

An error in the listener is a warning, and does not affect the query.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import ConfigError, KafkaliteError
from spark_kafkalite.spark.checkpoints.checkpoint_commits import OffsetRegistry, known_id
from spark_kafkalite.spark.checkpoints.checkpoint_service import serve_checkpoints
from spark_kafkalite.spark.options.options import ReaderOptions, reader_options
from spark_kafkalite.spark.pyspark_versions import PROGRESS_HAS_LOG_ENDS
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.reading.offset_json import from_json
from spark_kafkalite.spark.reading.offset_ranges import Offsets
from spark_kafkalite.spark.registration import register_if_hidden
from spark_kafkalite.spark.source import FORMAT_NAME
from spark_kafkalite.spark.watching.lag_endpoint import LagEndpoint
from spark_kafkalite.spark.watching.post_box import PostBox, PostedWarning, TaskFigures
from spark_kafkalite.spark.watching.query_figures import SINK_SIDE, SOURCE_SIDE, FiguresOfQueries, QueryFigures
from spark_kafkalite.spark.watching.query_lag import (
    ASK_TIMEOUT_MS,
    QueryPartitionLag,
    QueryReport,
    RecordTimes,
    log_ends_of,
)
from spark_kafkalite.spark.watching.query_pages import as_json, as_prometheus
from spark_kafkalite.spark.workers.unix_sockets import recommend_unix_sockets
from spark_kafkalite.spark.workers.warm_up import warm_up
from spark_kafkalite.spark.workers.worker_log import SINK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_LOG = logging.getLogger("spark_kafkalite.spark")

_LOOK_S: Final = 0.5
# Ended queries whose last figures are kept.
_MOST_ENDED: Final = 100
# Of all sessions: one of them gets what the Python processes of their JVM post.
_FIGURES: Final = FiguresOfQueries()
_EXPECTED: Final = (KafkaliteError, OSError, Py4JError, ValueError)


@dataclass
class _Source:
    """A kafkalite source of a running query. ``done``: where its last reported batch ended."""

    options: ReaderOptions
    done: Offsets | None = None
    ends: Offsets = field(default_factory=dict)

    def look_at_ends(self, deadline: Deadline) -> None:
        """Ask brokers where the logs end now. While they do not answer, and before a first report, nothing changes."""
        if self.done is not None and not deadline.passed():
            self.ends = log_ends_of(self.options, {**self.done, **self.ends}, deadline)

    def waiting(self) -> Offsets:
        """Where it goes on in the partitions in which something waits."""
        done = self.done
        return {} if done is None else {tp: done.get(tp, 0) for tp, end in self.ends.items() if done.get(tp, 0) < end}


@dataclass
class _Query:
    """A running query. ``execution`` is Spark's own object; ``sources`` are keyed by Spark's description of them.

    ``reported_s``: when Spark last reported its start, a finished batch, or that it has nothing to do; since 1970.
    """

    execution: Any
    query_id: str
    name: str | None
    sources: dict[str, _Source] | None = None
    reported_s: float = field(default_factory=time.time)

    def lags(self) -> list[QueryPartitionLag]:
        return [
            QueryPartitionLag(self.query_id, self.name, source.options.commit.group_id, tp.topic, tp.partition,
                         source.done.get(tp, 0), source.ends.get(tp, source.done.get(tp, 0)))
            for source in (self.sources or {}).values()
            if source.done is not None
            for tp in sorted({**source.done, **source.ends})
        ]  # fmt: skip


class KafkaliteListener(StreamingQueryListener):
    """What :func:`install_listener` installs."""

    def __init__(self, spark: SparkSession) -> None:
        self._session = spark
        self._lock = threading.Lock()
        self._running: dict[str, _Query] = {}
        self._lags: dict[str, list[QueryPartitionLag]] = {}
        # Of the queries that were seen, by their ids; those that ended go with their figures.
        self._names: dict[str, str | None] = {}
        self._measuring = threading.Lock()
        self._times = RecordTimes()
        self._endpoint: LagEndpoint | None = None

    # What users ask -------------------------------------------------------------------------------------------------

    @property
    def lag(self) -> list[QueryPartitionLag]:
        """How far each query is behind, partition by partition, as of its last report; also of queries that ended."""
        with self._lock:
            return [each for of_query in self._lags.values() for each in of_query]

    def measure(self) -> list[QueryPartitionLag]:
        """Return the lag behind the log ends of now, with its seconds, for running queries; of others :attr:`lag`.

        Brokers are asked for up to 5 seconds. A query whose batch hangs falls behind here, and not in :attr:`lag`.
        """
        with self._measuring:
            with self._lock:
                running = list(self._running.values())
            sources = [(query, source) for query in running for source in list((query.sources or {}).values())]
            deadline = Deadline.after_ms(ASK_TIMEOUT_MS)
            for _, source in sources:
                source.look_at_ends(deadline)
            self._times.look_up(((query.query_id, source.options, source.waiting()) for query, source in sources),
                                deadline)  # fmt: skip
            with self._lock:
                lags = self._lags | {query.query_id: found for query in running if (found := query.lags())}
            now_ms = int(time.time() * 1000)
            return [self._times.aged(each, now_ms) for of_query in lags.values() for each in of_query]

    @property
    def reports(self) -> list[QueryReport]:
        """When Spark last reported each running query: its start, a finished batch, or that it has nothing to do."""
        with self._lock:
            return [QueryReport(each.query_id, each.name, each.reported_s) for each in self._running.values()]

    @property
    def figures(self) -> list[QueryFigures]:
        """What each query has read and written: records, bytes and times of its last batch, and their sums.

        Tasks of the source report to the application on their host alone, see :attr:`unseen_records`.
        """
        with self._lock:
            names = dict(self._names)
        return _FIGURES.figures(names)

    @property
    def input_rows(self) -> dict[str, int]:
        """How many records each query has read, by its id: as Spark's progress counts them, whatever host has."""
        with self._lock:
            names = dict(self._names)
        return _FIGURES.input_rows(names)

    @property
    def unseen_records(self) -> dict[str, int]:
        """How many records of each query tasks have read that are not in :attr:`figures`, by the query's id."""
        with self._lock:
            names = dict(self._names)
        return _FIGURES.unseen(names)

    def json(self) -> str:
        """Return what :meth:`measure` does, :attr:`reports` and :attr:`figures`, as JSON."""
        return as_json(self.measure(), self.figures, self.input_rows, self.unseen_records, self.reports)

    def prometheus(self) -> str:
        """Return what :meth:`measure` does, :attr:`reports` and :attr:`figures`, in Prometheus's text format."""
        return as_prometheus(self.measure(), self.figures, self.input_rows, self.unseen_records, self.reports)

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Serve ``/metrics`` and ``/lag`` over HTTP until the session ends, and return host and port.

        Every program that reaches the address may read it. Raises ConfigError if it cannot listen, or already listens
        at another address.
        """
        with self._lock:
            if self._endpoint is None:
                pages = {
                    "/metrics": ("text/plain; version=0.0.4; charset=utf-8", self.prometheus),
                    "/lag": ("application/json", self.json),
                }
                self._endpoint = LagEndpoint(host, port, pages, self._has_ended)
            elif host != self._endpoint.address[0] or port not in (0, self._endpoint.address[1]):
                shown = ":".join(map(str, self._endpoint.address))
                raise ConfigError(f"the lag of queries is served already, at {shown}; use that, or call serve() once")
            return self._endpoint.address

    def _has_ended(self) -> bool:
        # PySpark forgets the context when it stops.
        return self._session.sparkContext._jsc is None

    # What Spark's Python processes say ------------------------------------------------------------------------------

    def pass_warnings_on(self, box: PostBox) -> None:
        """Put warnings of this host's Python processes into Spark's log, until the session ends, and count their tasks.
        Closes the box."""
        threading.Thread(target=self._pass_on, args=(box,), name="kafkalite-warnings", daemon=True).start()

    def _pass_on(self, box: PostBox) -> None:
        try:
            while not self._has_ended():
                posted = box.next(_LOOK_S)
                if isinstance(posted, TaskFigures):
                    _FIGURES.take(SINK_SIDE if posted.speaker == SINK else SOURCE_SIDE, posted)
                    self._tasks_line(posted)
                elif posted is not None:
                    self._into_sparks_log(posted)
        except (Py4JError, OSError, AttributeError):
            # The JVM has ended, and PySpark has forgotten it.
            return
        finally:
            box.close()

    def _tasks_line(self, task: TaskFigures) -> None:
        log = self._sparks_logger(task.speaker)
        if log.isInfoEnabled():
            about = f"query {task.query_id} batch {task.batch_id}: " if task.query_id else ""
            log.info(f"{about}[{task.subject}] {task.text}")

    def _sparks_logger(self, speaker: str) -> Any:
        jvm: Any = self._session._jvm
        return jvm.org.slf4j.LoggerFactory.getLogger(f"spark_kafkalite.{speaker}")

    def _into_sparks_log(self, warning: PostedWarning) -> None:
        log = self._sparks_logger(warning.speaker)
        queries = " ".join(f"query {each}:" for each in self._reading(warning.subject))
        about = f"[{warning.subject}]" if warning.subject else ""
        text = " ".join(part for part in (queries, about, warning.text) if part)
        if warning.level == "ERROR":
            log.error(text)
        else:
            log.warn(text)

    def _reading(self, subject: str) -> list[str]:
        """Return the running queries that read this; a sink's are not known."""
        with self._lock:
            running = list(self._running.values())
        found = []
        for query in running:
            try:
                sources = query.sources if query.sources is not None else _sources_of(query.execution)
            except _EXPECTED:
                # Its plan is not made yet, and nobody but its own thread may make it.
                continue
            if any(source.options.subject == subject for source in sources.values()):
                found.append(query.query_id if query.name is None else f"{query.query_id} ({query.name})")
        return found

    # What Spark reports ---------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Take hold of the query while it is sure to be active: a short one has ended before its first report."""
        try:
            self._take_up(str(event.runId), str(event.id), event.name)
        except _EXPECTED as error:
            _LOG.warning("query %s is not watched: %s", event.name or event.id, error)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take note of where the batch ended, which is now in the checkpoint, and of the lag."""
        progress = event.progress
        try:
            query = self._take_up(str(progress.runId), str(progress.id), progress.name)
            if query is None:
                return
            query.reported_s = time.time()
            if query.sources is None:
                query.sources = _sources_of(query.execution)
            for reported in progress.sources:
                source = query.sources.get(reported.description)
                if source is None:
                    continue
                _FIGURES.reported(query.query_id, reported.numInputRows)
                if (done := _offsets(reported.endOffset)) is not None:
                    source.done = done
                    source.ends = self._log_ends(source, reported.latestOffset)
        except _EXPECTED as error:
            _LOG.warning(
                "a report of query %s is passed over: %s. No record is lost; its lag is that of the report before, and "
                "what its last batch read is committed with the next report, or when the query starts again",
                progress.name or progress.id,
                error,
            )
            return
        lags = query.lags()
        if not lags:
            return
        with self._lock:
            self._lags[query.query_id] = lags
        behind = [f"{each.topic}-{each.partition} {each.lag}" for each in lags if each.lag]
        _LOG.info(
            "query %s is %d records behind: %s",
            query.name or query.query_id,
            sum(each.lag for each in lags),
            ", ".join(behind) or "nothing waits",
        )

    @staticmethod
    def _log_ends(source: _Source, reported: str | None) -> Offsets:
        if PROGRESS_HAS_LOG_ENDS:
            return _offsets(reported) or {}
        known = {tp: max(offset, source.ends.get(tp, 0)) for tp, offset in (source.done or {}).items()}
        return log_ends_of(source.options, known, Deadline.after_ms(ASK_TIMEOUT_MS))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Take note that the query has nothing to do."""
        with self._lock:
            query = self._running.get(str(event.runId))
        if query is not None:
            query.reported_s = time.time()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Commit the last batch, where offsets are committed at all."""
        with self._lock:
            query = self._running.pop(str(event.runId), None)
            running = {each.query_id for each in self._running.values()}
            for kept in (self._lags, self._names):
                for each in [each for each in kept if each not in running][:-_MOST_ENDED]:
                    del kept[each]
        for source in (query.sources or {}).values() if query is not None else ():
            try:
                _commit(source)
            except _EXPECTED as error:
                _LOG.warning("the last batch's offsets are not committed, the next start of the query does: %s", error)

    def _take_up(self, run_id: str, query_id: str, name: str | None) -> _Query | None:
        with self._lock:
            query = self._running.get(run_id)
        if query is None:
            active = self._session.streams.get(query_id)
            if active is None:
                return None
            query = _Query(active._jsq.streamingQuery(), query_id, name)
            with self._lock:
                query = self._running.setdefault(run_id, query)
                self._names[query_id] = name
        return query


def _sources_of(execution: Any) -> dict[str, _Source]:
    """Return the kafkalite sources in a running query's plan."""
    found: dict[str, _Source] = {}
    leaves = execution.logicalPlan().collectLeaves()
    for index in range(leaves.length()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() != "StreamingDataSourceV2ScanRelation":
            continue
        relation = leaf.relation()
        if relation.table().name() == FORMAT_NAME:
            options = dict(relation.options().asCaseSensitiveMap())
            found[leaf.stream().toString()] = _Source(reader_options(options))
    return found


def _offsets(reported: str | None) -> Offsets | None:
    # PySpark writes the JVM's null, such as the ends of the logs of a batch that is run again, as the text "None".
    # Source: pyspark.sql.streaming.listener.SourceProgress.fromJObject.
    stored = None if reported in (None, "None") else json.loads(reported)
    return None if stored is None else from_json(stored)[0]


def _commit(source: _Source) -> None:
    registry = OffsetRegistry.of(source.options, for_listener=True)
    if registry is None or source.done is None:
        return
    try:
        now: Mapping[str, bytes] = ClusterOffsets(source.options).check(all_there=False).topic_ids
        # The id that the source committed under is that of the records which were read.
        ids = {**now, **registry.remembered(source.done).topic_ids}
        registry.follow(source.done, {topic: each for topic in ids if (each := known_id(ids, topic))}, last=True)
    finally:
        registry.close()


_INSTALLED: WeakKeyDictionary[SparkSession, KafkaliteListener] = WeakKeyDictionary()


def install_listener(spark: SparkSession) -> KafkaliteListener:
    """Install the listener in a session, once, and return it. Raises ConfigError for Spark Connect."""
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError(
            "install_listener needs classic Spark: over Spark Connect the queries run in another process. Call it there"
        )
    listener = _INSTALLED.get(spark)
    if listener is None:
        listener = _INSTALLED[spark] = KafkaliteListener(spark)
        spark.streams.addListener(listener)
        register_if_hidden(spark)
        warm_up(spark)
        recommend_unix_sockets(spark)
        try:
            jvm: Any = spark._jvm
            pid = jvm.java.lang.ProcessHandle.current().pid()
            listener.pass_warnings_on(PostBox(pid))
            serve_checkpoints(spark, pid)
        except (Py4JError, OSError) as error:
            _LOG.info(
                "warnings of the source stand on standard error alone, and topic ids are not kept in checkpoints: %s",
                error,
            )
    return listener
