"""What the driver asks the cluster: partitions, and the offsets of their ends and of times.

Every call retries, because an exception that leaves the source ends the whole query. While brokers are unavailable it
retries for ``brokersUnreachableTimeout``, or ``fetchOffset.numRetries`` times ``kafka.default.api.timeout.ms`` (three
minutes by default), and warns meanwhile. Only :meth:`ClusterOffsets.check` fails soon: it runs in ``.load()``, where a
user waits, possibly for a wrong address.

Topics and partitions that the brokers do not know are no error here. The answers lack them once they have been unknown
for ten seconds, because a broker that has just started does not know its topics at first.
:func:`.offset_ranges.losses` decides what that means. Only a topic that an option names must exist when a read begins.

These objects are not pickled; each of the driver's processes makes one when it needs one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from spark_kafkalite.client.consume.list_offsets import offsets_for
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import TopicInfo
from spark_kafkalite.client.network.retry import Deadline, is_retriable
from spark_kafkalite.errors import KafkaliteError, LeaderNotAvailable, UnknownTopicOrPartition
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition
from spark_kafkalite.spark.cluster_errors import patience_ms, unreachable
from spark_kafkalite.spark.conditions import (
    INVALID_OPTION,
    LOSS_START_RESET,
    OFFSETS_DO_NOT_MATCH_ASSIGNED,
    TIMESTAMPS_DO_NOT_MATCH_ASSIGNED,
    TOPIC_NOT_FOUND,
    SparkConditionError,
    listed,
    option_error,
)
from spark_kafkalite.spark.options.offset_options import OffsetSpec
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.options.positions import Position, PositionKind, Positions
from spark_kafkalite.spark.reading.data_loss import LossCause
from spark_kafkalite.spark.reading.offset_ranges import UNKNOWN_GRACE_S, Offsets
from spark_kafkalite.spark.workers.connections import cluster_for, reading_config

if TYPE_CHECKING:
    from spark_kafkalite.client.consume.log_samples import LogSample

_LOG = logging.getLogger("spark_kafkalite.spark")
_T = TypeVar("_T")

# How long .load() waits for a first answer; a broker that restarts takes less.
CHECK_TIMEOUT_MS: Final = 10_000
# One attempt of a patient call; the next one starts with fresh connections and a line in the log.
_ATTEMPT_MS: Final = 10_000
# How long an end beyond the log is asked for again, and how often: followers of a live cluster take milliseconds.
_END_GRACE_S: Final = 1.0
_END_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partitions of a subscription at one moment, and their topics' ids (zero bytes: the broker has none)."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, bytes]


class ClusterOffsets:
    """Looks up partitions and offsets for one source."""

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        self._config = reading_config(options.client)
        self._cluster: ClusterClient = cluster_for(self._config.client, options.client)
        self._warned_assign = False
        self._warned_pattern = False
        self._warned_absent: set[str] = set()
        # Topics and partitions that the brokers do not know, and when that was seen first.
        self._unknown_since_s: dict[str | TopicPartition, float] = {}

    # Partitions -----------------------------------------------------------------------------------------------------

    def check(self, *, all_there: bool = True) -> Assigned:
        """Return the partitions now, or raise soon: the check that ``.load()`` makes.

        This does not know whether a stream goes on from a checkpoint. So with ``failOnDataLoss=false`` some of the
        topics may be gone; a read that needs them raises when it begins. ``all_there`` False: all may be gone.
        """
        timeout_ms = min(CHECK_TIMEOUT_MS, self._config_timeout_ms())
        deadline = Deadline.after_ms(timeout_ms)
        while True:
            try:
                assigned, absent = self._assigned(deadline)
            except KafkaliteError as error:
                # A topic just made may have no leader for a moment.
                if not is_retriable(error) or deadline.left_s() < 0.2:
                    raise self._explained(error) from None
                time.sleep(0.1)
                continue
            may_lack = self._options.missing_topic != "fail" or not all_there
            if absent and not may_lack and (self._options.losses.fails(LossCause.DELETED) or not assigned.partitions):
                raise self._not_found(absent)
            return assigned

    def assigned(self, known: Iterable[str] | None = None) -> Assigned:
        """Return the partitions now; wait for brokers that are unavailable.

        ``known`` are the topics that existed before, and may be gone now. None when a read begins: then
        ``missingTopic`` decides what happens if an option names a topic that does not exist. With ``fail`` this raises
        SparkConditionError.
        """
        while True:
            assigned, absent = self.patiently("which partitions there are", self._assigned)
            if known is None:
                if absent and self._options.missing_topic == "fail":
                    raise self._not_found(absent)
                self._warn_absent(absent)
                if not absent or self._options.missing_topic == "ignore":
                    return assigned
                time.sleep(self._options.retry_interval_ms / 1000)
                continue
            for topic in assigned.topic_ids:
                self._unknown_since_s.pop(topic, None)
            missing = [
                topic
                for topic in set(known) - assigned.topic_ids.keys()
                if self._options.subscription.names_topic(topic)
            ]
            if not [topic for topic in missing if not self._is_gone(topic)]:
                self._warn_absent(absent - set(known))
                return assigned
            time.sleep(self._options.retry_interval_ms / 1000)

    def _warn_absent(self, absent: set[str]) -> None:
        """Warn of topics that an option names and that do not exist: once for each, until it exists."""
        for topic in sorted(absent - self._warned_absent):
            _LOG.warning("topic %s does not exist yet; the query reads it once it is created", topic)
        self._warned_absent = absent

    def _is_gone(self, unknown: str | TopicPartition) -> bool:
        """Whether a topic or partition that the brokers do not know has been unknown for long enough."""
        now_s = time.monotonic()
        if unknown not in self._unknown_since_s:
            _LOG.warning("the brokers do not know %s; waiting %.0f s for it", unknown, UNKNOWN_GRACE_S)
        return now_s - self._unknown_since_s.setdefault(unknown, now_s) >= UNKNOWN_GRACE_S

    def _assigned(self, deadline: Deadline) -> tuple[Assigned, set[str]]:
        """Return the partitions now, and the topics that the options name and that do not exist."""
        subscription = self._options.subscription
        absent: set[str] = set()
        if subscription.kind == "subscribePattern":
            # An unanchored search, as the JVM connector's admin path does it; internal topics are never listed.
            matches = re.compile(subscription.pattern).search
            topics = [
                info
                for info in self._cluster.all_topics(deadline).values()
                if not info.is_internal and not info.error_code and matches(info.name)
            ]
            if not topics and not self._warned_pattern:
                _LOG.warning(
                    "subscribePattern=%s: no topic's name matches, so nothing is read until there is one that does",
                    subscription.pattern,
                )
            self._warned_pattern = not topics
        elif subscription.kind == "subscribe":
            found, absent = self._named(subscription.topics, deadline)
            topics = [info for info in found if not info.is_internal]
            for info in found:
                if info.is_internal:
                    _LOG.warning("topic %s is internal to the cluster and is not read", info.name)
        else:
            topics, absent = self._named(dict.fromkeys(tp.topic for tp in subscription.partitions), deadline)
        partitions = {TopicPartition(info.name, each.partition) for info in topics for each in info.partitions}
        if subscription.kind == "assign":
            missing = [str(tp) for tp in subscription.partitions if tp not in partitions]
            if missing and not self._warned_assign:
                self._warned_assign = True
                _LOG.warning("assign names partitions that do not exist and are not read: %s", listed(missing))
            partitions &= set(subscription.partitions)
        return Assigned(tuple(sorted(partitions)), {info.name: info.topic_id for info in topics}), absent

    def _named(self, names: Iterable[str], deadline: Deadline) -> tuple[list[TopicInfo], set[str]]:
        """Return the topics of these names, and those names that the brokers do not know."""
        names = list(names)
        # Asked again each time: a cached answer would not show new partitions.
        snapshot = self._cluster.refresh(names, deadline)
        infos, absent = [], set()
        for name in names:
            info = snapshot.topics.get(name)
            if info is None or info.error_code or not info.partitions:
                try:
                    # Raises what the broker says of it, or waits for a topic that is being made.
                    info = self._cluster.topic(name, deadline)
                except UnknownTopicOrPartition:
                    absent.add(name)
                    continue
            infos.append(info)
        return infos, absent

    def _not_found(self, absent: Iterable[str]) -> SparkConditionError:
        subscription = self._options.subscription
        value = str(subscription).partition("=")[2]
        named = listed([f"topic {name!r}" for name in sorted(absent)])
        return option_error(
            TOPIC_NOT_FOUND,
            subscription.kind,
            value,
            f"{named}: it does not exist; correct the name, or create it; if it was deleted, leave it out",
        )

    # Offsets --------------------------------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the log start offsets. Partitions that are gone are left out."""
        return self._ends(partitions, EARLIEST_TIMESTAMP, "the first offsets")

    def latest(
        self, partitions: Iterable[TopicPartition], not_below: Mapping[TopicPartition, int] | None = None
    ) -> Offsets:
        """Return the ends of the logs: high watermarks, or last stable offsets for ``read_committed``.

        A new leader may return an end below what was read before (KAFKA-7703). So an end below ``not_below`` is asked
        for again, ``fetchOffset.numRetries`` times, and then accepted. A leader that does not know its end yet
        (KIP-207) does not change the end in ``not_below``; without ``not_below`` this waits for the leader.
        """
        wanted = list(partitions)
        found = self._ends(wanted, LATEST_TIMESTAMP, "the last offsets", not_below)
        for attempt in range(self._options.retries):
            backwards = [tp for tp, offset in found.items() if offset < (not_below or {}).get(tp, 0)]
            if not backwards:
                break
            _LOG.warning(
                "last offsets went backwards (attempt %d of %d): %s",
                attempt + 1,
                self._options.retries,
                ", ".join(f"{tp} from {(not_below or {})[tp]} to {found[tp]}" for tp in backwards),
            )
            time.sleep(self._options.retry_interval_ms / 1000)
            found.update(self._ends(backwards, LATEST_TIMESTAMP, "the last offsets", not_below))
        return found

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the leader epochs in which the last offsets were looked up, as far as they are known."""
        known = ((tp, self._cluster.snapshot.partition(tp)) for tp in partitions)
        return {tp: info.leader_epoch for tp, info in known if info is not None}

    def samples(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogSample]:
        """Return what the logs hold from these offsets on, as far as they can be read there; see the client's
        ``log_samples``."""
        from spark_kafkalite.client.consume.log_samples import log_samples

        return self.patiently("how large records are", partial(log_samples, self._cluster, places))

    def _ends(
        self,
        partitions: Iterable[TopicPartition],
        timestamp: int,
        what: str,
        last_known: Mapping[TopicPartition, int] | None = None,
    ) -> Offsets:
        found = self._at(dict.fromkeys(partitions, timestamp), what, last_known)
        return {tp: each for tp, each in found.items() if each is not None}

    def _at(
        self,
        timestamps: Mapping[TopicPartition, int],
        what: str,
        last_known: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, int | None]:
        if not timestamps:
            return {}
        left = dict(timestamps)
        while True:
            found = self.patiently(what, partial(self._ask, left, last_known))
            if found is not None:
                for tp in found:
                    self._unknown_since_s.pop(tp, None)
                return found
            # One that is gone must not keep the offsets of the others back.
            topics, unknown = self._cluster.snapshot.topics, {}
            for tp in left:
                if self._cluster.snapshot.partition(tp) is None:
                    info = topics.get(tp.topic)
                    unknown[tp] = tp if info is not None and not info.error_code else tp.topic
            gone = {name for name in set(unknown.values()) if self._is_gone(name)}
            left = {tp: timestamp for tp, timestamp in left.items() if unknown.get(tp) not in gone}
            if not gone:
                time.sleep(self._options.retry_interval_ms / 1000)

    def _ask(
        self,
        timestamps: Mapping[TopicPartition, int],
        last_known: Mapping[TopicPartition, int] | None,
        deadline: Deadline,
    ) -> dict[TopicPartition, int | None] | None:
        """Return the offsets of these times; None if the brokers do not know some of the partitions."""
        isolation = IsolationLevel.READ_COMMITTED if self._options.read_committed else IsolationLevel.READ_UNCOMMITTED
        try:
            answers = offsets_for(self._cluster, timestamps, deadline, isolation=isolation, last_known=last_known)
        except UnknownTopicOrPartition as error:
            snapshot = self._cluster.refresh({tp.topic for tp in timestamps}, deadline)
            if all(snapshot.partition(tp) is not None for tp in timestamps):
                raise LeaderNotAvailable(f"{error}; the brokers do list it") from error
            return None
        return {tp: None if answer is None else answer.offset for tp, answer in answers.items()}

    def resolved(self, spec: OffsetSpec, partitions: Iterable[TopicPartition], *, starting: bool) -> Offsets:
        """Return the offsets that a starting or ending option means for these partitions.

        Raises SparkConditionError when the option does not name exactly these partitions, when a starting offset is not
        in the log (but see :meth:`starting_in_log`), and when a starting time lies after every record and the strategy
        is ``error``. An ending time after every record is the end.
        """
        partitions = tuple(partitions)
        places = _places(spec, partitions)
        of_kind: dict[PositionKind, list[TopicPartition]] = {}
        for tp, place in places.items():
            of_kind.setdefault(place.kind, []).append(tp)
        found = {tp: places[tp].number for tp in of_kind.get(PositionKind.OFFSET, ())}
        if found and starting:
            found = self.starting_in_log(found, spec.option, spec.text)
        found.update(self.earliest(of_kind.get(PositionKind.EARLIEST, ())))
        found.update(self.latest(of_kind.get(PositionKind.LATEST, ())))
        if last := of_kind.get(PositionKind.LAST):
            ends, first = self.latest(last), self.earliest(last)
            found.update(
                {tp: max(first[tp], ends[tp] - places[tp].number) for tp in last if tp in ends and tp in first}
            )
        now_ms = int(time.time() * 1000)
        times = {tp: places[tp].number for tp in of_kind.get(PositionKind.TIME, ())}
        times |= {tp: max(0, now_ms - places[tp].number) for tp in of_kind.get(PositionKind.AGO, ())}
        found.update(self._by_time(spec, times, starting))
        return found

    def starting_in_log(self, asked: Mapping[TopicPartition, int], option: str, text: str) -> Offsets:
        """Return offsets to start from, moved to the nearest end of the log where ``failOnDataLoss=false`` allows that.

        Raises SparkConditionError, as the JVM connector does, for an offset outside the log, whose end counts as
        inside. A stream would read nothing from there, and its checkpoint would keep an offset that no option changes.
        """
        first, end = self._logs(asked)
        moved = {tp: min(max(offset, first[tp]), end[tp]) for tp, offset in asked.items() if tp in first and tp in end}
        outside = [tp for tp, offset in sorted(moved.items()) if offset != asked[tp]]
        if not outside:
            return moved
        policy = self._options.losses
        causes = {tp: LossCause.AGED_OUT if asked[tp] < first[tp] else LossCause.END_WENT_BACK for tp in outside}
        # Those that end the read come first in the message.
        outside.sort(key=lambda tp: not policy.fails(causes[tp]))
        named = listed([f"{tp} starts at {asked[tp]}, but its log holds [{first[tp]}, {end[tp]})" for tp in outside])
        said = policy.said(causes[outside[0]])
        if policy.fails(causes[outside[0]]):
            raise option_error(
                LOSS_START_RESET,
                option,
                text,
                f"{said}: {named}; give an offset within, -2 (earliest) or -1 (latest), or set "
                f"{policy.remedy(causes.values())} to start at the nearest end",
            )
        skipped = sum(max(0, moved[tp] - asked[tp]) for tp in outside)
        _LOG.warning(
            "[%s] %s=%s, %s: %s; starting at the nearest end, %d offsets are skipped",
            LOSS_START_RESET,
            option,
            text,
            said,
            named,
            skipped,
        )
        return moved

    def _logs(self, asked: Mapping[TopicPartition, int]) -> tuple[Offsets, Offsets]:
        """Return the first offsets and the ends of the logs, which may not contain the offsets.

        If an end is below an offset, this asks again for a short time. After a record that was acknowledged with acks=1
        the leader's end for consumers follows only when the followers have the record.
        """
        deadline_s = time.monotonic() + _END_GRACE_S
        while True:
            end = self._ends(asked, LATEST_TIMESTAMP, "the last offsets")
            if all(end[tp] >= asked[tp] for tp in end) or time.monotonic() > deadline_s:
                return self.earliest(end), end
            time.sleep(_END_PAUSE_S)

    def within_log(self, spec: OffsetSpec, end: Offsets) -> Offsets:
        """Return the ends of a batch, limited to what the logs hold if ``failOnDataLoss=false`` allows that.

        A task would wait for records that may never arrive. Raises SparkConditionError for an end that was given as a
        number, if it lies after the end or before the start of the log.
        """
        positions = spec.positions or Positions()
        places = ((tp, positions.of(tp)) for tp in end)
        asked = {tp: place.number for tp, place in places if place is not None and place.kind is PositionKind.OFFSET}
        if not asked:
            return end
        first, last = self._logs(asked)
        beyond = sorted(tp for tp in last if asked[tp] > last[tp])
        before = sorted(tp for tp in first if asked[tp] < first[tp])
        if not beyond and not before:
            return end
        named = listed(
            [f"{tp} ends at {last[tp]}, below {asked[tp]}" for tp in beyond]
            + [f"{tp} begins at {first[tp]}, above {asked[tp]}" for tp in before]
        )
        policy, causes = self._options.losses, []
        if beyond:
            causes.append(LossCause.END_WENT_BACK)
        if before:
            causes.append(LossCause.AGED_OUT)
        if any(policy.fails(cause) for cause in causes):
            remedy = "lower the offset" if not before else "give an offset within the log"
            raise option_error(
                INVALID_OPTION,
                spec.option,
                spec.text,
                f"{named}; {remedy}, use -1 (latest), or set {policy.remedy(causes)} to read what there is",
            )
        _LOG.warning("%s is outside of the log, of which the part within is read: %s", spec.option, named)
        return {**end, **{tp: last[tp] for tp in beyond}, **{tp: first[tp] for tp in before}}

    def _by_time(self, spec: OffsetSpec, timestamps: Mapping[TopicPartition, int], starting: bool) -> Offsets:
        found = self._at(timestamps, f"the offsets of {spec.option}")
        beyond = sorted(tp for tp, offset in found.items() if offset is None)
        if beyond and starting and not self._options.latest_when_no_timestamp:
            named = ", ".join(f"{tp} (time {timestamps[tp]})" for tp in beyond)
            raise option_error(
                INVALID_OPTION,
                spec.option,
                spec.text,
                f"no record at or after that time in {named}; take an earlier time, or set "
                "startingOffsetsByTimestampStrategy=latest to start such partitions at their end",
            )
        offsets = {tp: offset for tp, offset in found.items() if offset is not None}
        offsets.update(self.latest(beyond))
        return offsets

    # Patience -------------------------------------------------------------------------------------------------------

    def _config_timeout_ms(self) -> int:
        return max(1, self._config.client.default_api_timeout_ms)

    def patiently(
        self,
        what: str,
        ask: Callable[[Deadline], _T],
        explain: Callable[[KafkaliteError], SparkConditionError] | None = None,
    ) -> _T:
        """Return what ``ask`` returns. Retry until the total time is up; raise errors that are not retriable at once.

        ``explain`` turns the error into the user's error; without it the error is that the brokers are unreachable.
        """
        started = time.monotonic()
        total_s, said = self._patience()
        attempt = 0
        while True:
            attempt += 1
            left_ms = max(1.0, (total_s - (time.monotonic() - started)) * 1000)
            try:
                return ask(Deadline.after_ms(min(left_ms, _ATTEMPT_MS)))
            except SparkConditionError:
                raise
            except KafkaliteError as error:
                waited_s = time.monotonic() - started
                pause_s = self._options.retry_interval_ms / 1000
                if not is_retriable(error):
                    raise (explain or self._explained)(error) from None
                is_given = self._options.unreachable_timeout_ms is not None
                most_s = patience_ms(error, total_s * 1000, is_given) / 1000
                if waited_s + pause_s >= most_s:
                    why = said if most_s >= total_s else "brokersUnreachableTimeout is not set"
                    given_up = f"{waited_s:.0f} s ({why})"
                    raise (explain(error) if explain else self._explained(error, given_up)) from None
                _LOG.warning(
                    "cannot look up %s (attempt %d, %.0f of at most %.0f s): %s",
                    what,
                    attempt,
                    waited_s,
                    total_s,
                    error,
                )
                time.sleep(pause_s)

    def _patience(self) -> tuple[float, str]:
        """Return how long brokers may be unavailable, in seconds, and the options that set it."""
        given_ms = self._options.unreachable_timeout_ms
        if given_ms is not None:
            return given_ms / 1000, f"brokersUnreachableTimeout={given_ms}ms"
        once_ms, times = self._config_timeout_ms(), self._options.retries
        product = f"fetchOffset.numRetries={times} times kafka.default.api.timeout.ms={once_ms}"
        return once_ms * times / 1000, f"{product}; brokersUnreachableTimeout is not set"

    def _explained(self, error: KafkaliteError, given_up: str | None = None) -> SparkConditionError:
        return unreachable(error, self._options.client, str(self._options.subscription), given_up)


def _places(spec: OffsetSpec, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
    """Return each partition's place. Raises SparkConditionError when the option does not name exactly these."""
    positions = spec.positions or Positions()
    missing, extra = positions.lacking(partitions), positions.beside(partitions)
    if not missing and not extra:
        return {tp: place for tp in partitions if (place := positions.of(tp)) is not None}
    said = []
    if missing:
        said.append(f"it lacks {listed(missing)}")
    if extra:
        said.append(f"it names {listed(extra)}, which are not read")
    hint = "" if spec.is_by_time else " (offset -2 is earliest, -1 latest)"
    raise option_error(
        TIMESTAMPS_DO_NOT_MATCH_ASSIGNED if spec.is_by_time else OFFSETS_DO_NOT_MATCH_ASSIGNED,
        spec.option,
        spec.text,
        f"must name exactly the partitions that are read: {' and '.join(said)}; correct the JSON{hint}, in which * "
        "names all others",
    )
