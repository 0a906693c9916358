"""The options of format("kafkalite"): meaning and checks, for the source and for the sink.

Option names and semantics are those of Spark's JVM connector; they are case-insensitive, and Spark hands them over in
lower case. ``kafka.`` in front of a name passes it to our client without that prefix; ``bootstrap.servers`` works
without the prefix as well. What the values of offsets and of committing mean is in :mod:`.offset_options` and
:mod:`.commit_options`; what the client makes of ``kafka.security.protocol``, ``kafka.ssl.*`` and ``kafka.sasl.*`` is in
``spark_kafkalite.security``.

An option is one of:

- *declared* for this direction (:mod:`.declarations`);
- declared for the *other* direction (a shared dictionary of options is common: a warning, no effect);
- *known* to Spark's connector or planned, but not built (an error, never ignored);
- *without effect* here (a warning);
- Spark's own;
- unknown (an error that names the nearest known one).

The client ignores settings that it does not know. An unknown setting for security is an error here, so that a misspelt
one does not leave a query unprotected. Pure: this module does not talk to a broker.

Each of Spark's processes reads the options, so this module logs no warning. The checked options have the warnings as
``notes``, and the code that begins the query logs them once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.client.config import CONSUMER_SETTINGS, PRODUCER_SETTINGS, is_jvm_only
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import topic_name_problem
from spark_kafkalite.redaction import REDACTED, ShownSettings, shown_name
from spark_kafkalite.settings import Setting, SettingGroup
from spark_kafkalite.spark.conditions import INVALID_OPTION, UNKNOWN_OPTION, UNSUPPORTED_OPTION, listed, option_error
from spark_kafkalite.spark.conditions import SparkConditionError as SparkConditionError
from spark_kafkalite.spark.options.commit_options import CommitOptions, commit_options
from spark_kafkalite.spark.options.declarations import (
    LONGEST_TIMEOUT_MS,
    READER_OPTIONS,
    TOKEN_FILE,
    TOKEN_FILE_OPTION,
    UNREACHABLE_TIMEOUT,
    WRITER_OPTIONS,
)
from spark_kafkalite.spark.options.offset_options import (
    ConsumerStrategy,
    OffsetSpec,
    duration_ms,
    new_partition_start,
    offset_spec,
    size_bytes,
    subscription_of,
)
from spark_kafkalite.spark.options.positions import AT_EARLIEST, AT_LATEST, PositionKind, Positions
from spark_kafkalite.spark.reading.data_loss import LossCause, LossPolicy

# Known, and not built yet; each is refused, because a job that ports with it would silently do something else.
_UNSUPPORTED: Final = {
    # Spark's catalog makes this of CREATE TABLE, and forgets the other options when the table is used.
    "provider": (
        "provider",
        "Spark's catalog does not keep the options of a Python source's table; use CREATE TEMPORARY VIEW ... USING",
    ),
    "exactlyonce": ("exactlyOnce", "transactions are not supported yet; leave it out"),
}
# Spark's connector knows them; here they change nothing.
_WITHOUT_EFFECT: Final = {
    "groupidprefix": ("groupIdPrefix", "reading never joins a consumer group"),
    "kafka.group.id": (
        "kafka.group.id",
        "reading never joins a consumer group, and this alone never commits; groupId does",
    ),
}
# Options that Spark itself puts among a source's or sink's.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
_STREAMS_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "newPartitionStart",
    "availableNow",
)
_FORBIDDEN_READING: Final = {
    "auto.offset.reset": "the option startingOffsets sets where to start; leave this one out",
    "key.deserializer": "keys are always binary; cast the column key instead",
    "value.deserializer": "values are always binary; cast the column value instead",
    "enable.auto.commit": "the source never commits by itself; leave it out",
    "interceptor.classes": "interceptors are Java classes; leave it out",
}
_FORBIDDEN_WRITING: Final = {
    "key.serializer": "keys are written as they are, string or binary; leave it out",
    "value.serializer": "values are written as they are, string or binary; leave it out",
}
_SECURITY: Final = re.compile(r"(security|sasl|ssl)\..*")
_SECRETS: Final = [setting.name for setting in CONSUMER_SETTINGS if setting.kind == "password"]


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """The checked options of a read. ``starting`` and ``ending`` are None if no option sets them.

    ``given`` has the names of the options that were set, and ``notes`` what is wrong with them and ends nothing.
    """

    client: Mapping[str, str]
    subscription: ConsumerStrategy
    starting: OffsetSpec | None
    ending: OffsetSpec | None
    ending_options: tuple[str, ...]
    latest_when_no_timestamp: bool
    losses: LossPolicy
    new_partition_start: OffsetSpec
    missing_topic: str
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    available_now: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int | None
    include_headers: bool
    retries: int
    retry_interval_ms: int
    read_timeout_ms: int
    unreachable_timeout_ms: int | None
    commit: CommitOptions
    checkpoint_location: str | None = None
    given: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What is read, for the lines of a log."""
        group = "" if self.commit.group_id is None else f", groupId={self.commit.group_id}"
        return f"{self.subscription}{group}"

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions stay hidden."""
        return self.client.get("isolation.level", "").strip().lower() == "read_committed"

    def starting_for(self, streaming: bool) -> OffsetSpec:
        """Return where to start, with the default of the mode. Raises for what only the other mode may use."""
        if self.starting is not None:
            if not streaming:
                self._refuse_latest_start(self.starting)
            return self.starting
        place = AT_LATEST if streaming else AT_EARLIEST
        return OffsetSpec("startingOffsets", place.kind.value, Positions(place))

    @staticmethod
    def _refuse_latest_start(starting: OffsetSpec) -> None:
        at_end = [] if starting.positions is None else starting.positions.named(PositionKind.LATEST)
        if at_end and not at_end[0]:
            raise option_error(
                INVALID_OPTION, starting.option, starting.text, "a batch cannot start at the end; use earliest or JSON"
            )
        if at_end:
            raise option_error(
                INVALID_OPTION,
                starting.option,
                starting.text,
                f"-1 (latest) for {listed(at_end)}: a batch cannot start at the end; use an offset or -2 (earliest)",
            )

    def ending_for_batch(self) -> OffsetSpec:
        """Return where a batch ends."""
        return self.ending or OffsetSpec("endingOffsets", "latest", Positions(AT_LATEST))

    def check_streaming(self) -> None:
        """Raise for options that a stream must not have; as in the JVM connector, endingTimestamp is no error."""
        for name in self.ending_options:
            if name == "endingTimestamp":
                continue
            value = self.ending.text if self.ending is not None and self.ending.option == name else "..."
            raise option_error(INVALID_OPTION, name, value, "a stream has no end; leave it out, or use spark.read")

    def stream_notes(self) -> list[str]:
        """Return what to warn of when a stream begins."""
        idle = ["option endingTimestamp has no effect on a stream"] if "endingTimestamp" in self.given else []
        return [*self.notes, *idle]

    def batch_notes(self) -> list[str]:
        """Return what to warn of when a batch is planned."""
        idle = [f"option {name} has no effect on a batch read" for name in _STREAMS_ONLY if name in self.given]
        if self.commit.commits and (self.starting is None or not self.starting.committed):
            idle.append("option groupId has no effect on this batch read: only streams commit, see startingOffsets")
        return [*self.notes, *idle]


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The checked options of a write; ``topic`` None means the column decides."""

    client: Mapping[str, str]
    topic: str | None
    notes: tuple[str, ...] = ()
    stamp_headers: bool = False
    quarantine_topic: str | None = None

    @property
    def target(self) -> str:
        """The option or column that names the topics, for error texts."""
        return "the topics of the column topic" if self.topic is None else f"topic={self.topic}"


def reader_options(options: Mapping[str, str]) -> ReaderOptions:
    """Return the checked options of a read, batch or stream. Raises SparkConditionError at the first wrong one."""
    given, client, notes = _sorted_out(options, READER_OPTIONS, WRITER_OPTIONS, _FORBIDDEN_READING)
    values = {**READER_OPTIONS.defaults(), **given}
    starting = offset_spec(given, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", notes)
    ending = offset_spec(given, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", notes)
    unreachable_ms = _unreachable_timeout_ms(given)
    poll_ms = given.get("kafkaConsumer.pollTimeoutMs", unreachable_ms)
    low, high = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if low is not None and high is not None and low > high:
        raise option_error(
            INVALID_OPTION, "minOffsetsPerTrigger", low, f"must not be above maxOffsetsPerTrigger={high}; lower it"
        )
    return ReaderOptions(
        client=client,
        subscription=subscription_of(given),
        starting=starting,
        ending=ending,
        ending_options=tuple(name for name in given if name.startswith("ending")),
        latest_when_no_timestamp=values["startingOffsetsByTimestampStrategy"] == "latest",
        losses=LossPolicy(
            values["failOnDataLoss"],
            {cause: given[cause.option] == "fail" for cause in LossCause if cause.option in given},
        ),
        new_partition_start=new_partition_start("newPartitionStart", values["newPartitionStart"]),
        missing_topic=values["missingTopic"],
        max_offsets_per_trigger=high,
        max_bytes_per_trigger=_size(values, "maxBytesPerTrigger"),
        min_offsets_per_trigger=low,
        max_trigger_delay_ms=duration_ms("maxTriggerDelay", values["maxTriggerDelay"]),
        available_now=values["availableNow"],
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        max_bytes_per_partition=_size(values, "maxBytesPerPartition"),
        include_headers=values["includeHeaders"],
        retries=values["fetchOffset.numRetries"],
        retry_interval_ms=values["fetchOffset.retryIntervalMs"],
        read_timeout_ms=values["kafkaConsumer.pollTimeoutMs"] if poll_ms is None else poll_ms,
        unreachable_timeout_ms=unreachable_ms,
        commit=commit_options(given, starting, notes),
        checkpoint_location=values["checkpointLocation"],
        given=frozenset(given),
        notes=(*notes, *_client_notes(CONSUMER_SETTINGS, client)),
    )


def writer_options(options: Mapping[str, str]) -> WriterOptions:
    """Return the checked options of a write. Raises SparkConditionError at the first wrong one."""
    given, client, notes = _sorted_out(options, WRITER_OPTIONS, READER_OPTIONS, _FORBIDDEN_WRITING)
    topic, quarantine_topic = given.get("topic"), given.get("quarantineTopic")
    for name, named in (("topic", topic), ("quarantineTopic", quarantine_topic)):
        problem = None if named is None else topic_name_problem(named)
        if problem:
            raise option_error(INVALID_OPTION, name, named, f"{problem}; give a legal name")
    if topic is not None and topic == quarantine_topic:
        raise option_error(INVALID_OPTION, "quarantineTopic", topic, "is the option topic, too; give another one")
    unreachable_ms = _unreachable_timeout_ms(given)
    if unreachable_ms is not None:
        delivery_ms = max(unreachable_ms, PRODUCER_SETTINGS["delivery.timeout.ms"].default)
        client = ShownSettings({"max.block.ms": str(unreachable_ms), "delivery.timeout.ms": str(delivery_ms), **client})
    return WriterOptions(
        client=client,
        topic=topic,
        stamp_headers=given.get("stampHeaders", False),
        quarantine_topic=quarantine_topic,
        notes=(*notes, *_client_notes(PRODUCER_SETTINGS, client)),
    )


def _unreachable_timeout_ms(given: Mapping[str, Any]) -> int | None:
    text = given.get(UNREACHABLE_TIMEOUT)
    if text is None:
        return None
    timeout_ms = duration_ms(UNREACHABLE_TIMEOUT, text)
    if not 0 < timeout_ms <= LONGEST_TIMEOUT_MS:
        raise option_error(
            INVALID_OPTION, UNREACHABLE_TIMEOUT, text, f"must be from 1ms to {LONGEST_TIMEOUT_MS}ms; change it"
        )
    return timeout_ms


def _sorted_out(
    options: Mapping[str, str], ours: SettingGroup, others: SettingGroup, forbidden: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return (checked options under their real names, client settings without prefix, what to warn of)."""
    known = {setting.name.lower(): setting for setting in ours}
    other = {setting.name.lower(): setting.name for setting in others}
    given: dict[str, Any] = {}
    client: dict[str, str] = ShownSettings()
    notes: list[str] = []
    for raw_name, value in options.items():
        name = raw_name.lower()
        if name in known:
            given[known[name].name] = _parsed(known[name], value)
        elif name in _UNSUPPORTED:
            real, why = _UNSUPPORTED[name]
            raise option_error(UNSUPPORTED_OPTION, real, value, why)
        elif name in _WITHOUT_EFFECT:
            real, why = _WITHOUT_EFFECT[name]
            notes.append(f"option {real} has no effect: {why}")
        elif name in _SPARKS_OWN:
            continue
        elif name in other:
            notes.append(f"option {other[name]} is for the {others.title} and has no effect on the {ours.title}")
        elif name == "kafka.zookeeper.connect" and "zookeeper.connect" in known:
            given.setdefault("zookeeper.connect", value)
        elif name == "bootstrap.servers":
            client.setdefault(name, value)
        elif name.startswith("kafka."):
            client_name = name.removeprefix("kafka.")
            _check_client_setting(client_name, value, forbidden)
            client[client_name] = value
        else:
            raise _unknown(raw_name, value, ours, others)
    token_file = given.pop(TOKEN_FILE_OPTION.name, None)
    if token_file is not None and client.setdefault(TOKEN_FILE, token_file) != token_file:
        raise option_error(
            INVALID_OPTION,
            TOKEN_FILE_OPTION.name,
            token_file,
            f"kafka.{TOKEN_FILE}={client[TOKEN_FILE]} differs from it; give one of them",
        )
    if not client.get("bootstrap.servers", "").strip():
        raise option_error(
            INVALID_OPTION,
            "kafka.bootstrap.servers",
            None,
            "name at least one broker as host:port; there is no default",
        )
    return given, client, notes


def _client_notes(settings: SettingGroup, client: Mapping[str, str]) -> list[str]:
    """Return what to warn of in settings that none of our clients knows, so that none gets them."""
    notes = []
    for name in settings.unknown(client):
        # Whatever it was meant to be, it may be a secret: its value is not shown.
        option = shown_name(f"kafka.{name}")
        if is_jvm_only(name):
            notes.append(f"option {option} has no effect: it is for clients on the JVM")
        else:
            near = settings.nearest(name)
            hint = "" if near is None else f"; did you mean kafka.{near}?"
            notes.append(f"option {option} is unknown and has no effect{hint}")
    return notes


def refused_setting(name: str) -> bool:
    """Whether the source or the sink refuses this client setting: they decide it themselves."""
    return name in _FORBIDDEN_READING or name in _FORBIDDEN_WRITING


def _check_client_setting(name: str, value: str, forbidden: Mapping[str, str]) -> None:
    if name in forbidden:
        raise option_error(INVALID_OPTION, f"kafka.{name}", value, f"not allowed here: {forbidden[name]}")
    # What mechanism a security setting belongs to, and what it needs, the client says.
    if _SECURITY.fullmatch(name) and name not in CONSUMER_SETTINGS and not is_jvm_only(name):
        near = CONSUMER_SETTINGS.nearest(name)
        hint = f"did you mean kafka.{near}?" if near else "leave it out"
        # Whatever it was meant to be, it may be a secret.
        raise option_error(UNKNOWN_OPTION, f"kafka.{name}", REDACTED, f"there is no such setting of clients; {hint}")


def _size(values: Mapping[str, Any], name: str) -> int | None:
    return None if values[name] is None else size_bytes(name, values[name])


def _parsed(setting: Setting, value: str) -> Any:
    if setting.choices is not None:
        value = value.strip().lower()
    try:
        parsed = setting.parse(value)
    except ConfigError as error:
        wrong = str(error).partition(": ")[2] or str(error)
        raise option_error(INVALID_OPTION, setting.name, value, wrong) from None
    return parsed


def _unknown(name: str, value: str, ours: SettingGroup, others: SettingGroup) -> SparkConditionError:
    if name.lower() == "path":
        topics = "the option subscribe" if ours is READER_OPTIONS else "the option topic or the column topic"
        wrong = f'format("kafkalite") has no path; leave it out and name topics with {topics}'
        return option_error(UNKNOWN_OPTION, name, value, wrong)
    names = [setting.name for setting in (*ours, *others)]
    names += [real for real, _ in (*_UNSUPPORTED.values(), *_WITHOUT_EFFECT.values())]
    names.append("kafka.bootstrap.servers")
    by_lower = {known.lower(): known for known in names}
    import difflib  # for mistakes only: every process of a query imports this module

    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]]}?" if near else "the client's own settings need the prefix kafka."
    shown = REDACTED if difflib.get_close_matches(name.lower(), _SECRETS, n=1, cutoff=0.7) else value
    return option_error(UNKNOWN_OPTION, name, shown, f"there is no such option; {hint}")
