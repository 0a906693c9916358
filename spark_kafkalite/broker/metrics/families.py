"""The families of a scrape, under the names that Strimzi's rules give to Kafka's beans, and our own (``kafkalite_``).

A value that this broker does not know is no series at all. What is written in one turn of the event loop is bounded:
the functions are work in slices. Sources: Strimzi's kafka-metrics.yaml; kafka.server.ReplicaManager,
kafka.cluster.Partition, kafka.controller.KafkaController, org.apache.kafka.server.metrics of Apache Kafka 3.9.
"""

from __future__ import annotations

import gc
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_kafkalite.broker.metrics.counters import Histogram, TopicMeter
from spark_kafkalite.broker.metrics.meters import Meters
from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.coordinator.groups.states import GroupState
from spark_kafkalite.exposition.text import Kind, LabelBlock, Page, labels, open_labels
from spark_kafkalite.model import UNLIMITED_RATE
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from spark_kafkalite.broker.context import BrokerContext
    from spark_kafkalite.broker.network.acceptor import Acceptor
    from spark_kafkalite.broker.replication.leader import Leader
    from spark_kafkalite.broker.replication.replicas import Replicas
    from spark_kafkalite.broker.replication.replication import Replication
    from spark_kafkalite.broker.upkeep.cleaner import Cleaner
    from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
    from spark_kafkalite.log.directories.log_dirs import LogDirectories
    from spark_kafkalite.log.partition_log import PartitionLog

# Partitions or topics that are written in one step: some 200 us.
_AT_ONCE: Final = 50
# Partitions of which a family is written in one step, as long.
_AT_ONCE_IN_BLOCKS: Final = 400
_TOPIC_COUNTERS: Final[tuple[tuple[str, Callable[[TopicMeter], int], str], ...]] = (
    (
        "bytesin",
        lambda meter: meter.bytes_in,
        "Bytes of batches that were appended, also by the broker itself.",
    ),
    ("bytesout", lambda meter: meter.bytes_out, "Bytes of record batches that consumers received."),
    ("messagesin", lambda meter: meter.messages_in, "Records that were appended here."),
    ("totalproducerequests", lambda meter: meter.produce_requests, "Batches of partitions in Produce requests."),
    ("totalfetchrequests", lambda meter: meter.fetch_requests, "Partitions in answers to consumers' Fetch requests."),
    (
        "failedproducerequests",
        lambda meter: meter.failed_produce_requests,
        "Batches that Produce requests brought and that were refused.",
    ),
    (
        "failedfetchrequests",
        lambda meter: meter.failed_fetch_requests,
        "Partitions that consumers got an error for.",
    ),
    (
        "replicationbytesin",
        lambda meter: meter.replication_bytes_in,
        "Bytes of batches that this broker has copied from leaders.",
    ),
    (
        "replicationbytesout",
        lambda meter: meter.replication_bytes_out,
        "Bytes of batches that followers received.",
    ),
)


def process(page: Page, meters: Meters, began_s: float) -> None:
    """Write what concerns the process: memory, CPU, descriptors, the disk, the event loop, the garbage collector."""
    page.one("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970.", began_s)
    used = resource.getrusage(resource.RUSAGE_SELF)
    page.one("process_cpu_seconds_total", "counter", "CPU time of the process.", used.ru_utime + used.ru_stime)
    memory = _pages("/proc/self/statm")
    if memory is not None:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        page.one("process_virtual_memory_bytes", "gauge", "Virtual memory.", memory[0] * page_bytes)
        page.one("process_resident_memory_bytes", "gauge", "Memory in use.", memory[1] * page_bytes)
    if (descriptors := _descriptors()) is not None:
        page.one("process_open_fds", "gauge", "Open file descriptors.", descriptors)
    page.one("process_max_fds", "gauge", "Most open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for name, value in _disk_bytes():
        page.one(
            f"kafka_server_kafkaserver_linux_disk_{name}",
            "gauge",
            "Bytes that the process had from or to disks.",
            value,
        )
    page.family("python_gc_collections_total", "counter", "Runs of the garbage collector, by generation.")
    for generation, seen in enumerate(gc.get_stats()):
        page.add("python_gc_collections_total", labels(generation=generation), seen["collections"])
    _histograms(page, "kafkalite_gc_pause_seconds", "Pauses for the garbage collector.", "generation", (
        (str(generation), pauses) for generation, pauses in meters.loop.gc_pauses.items()
    ))  # fmt: skip
    page.family("kafkalite_loop_lag_seconds", "histogram", "How late the event loop calls what is due.")
    page.histogram("kafkalite_loop_lag_seconds", {}, meters.loop.lag.buckets(), meters.loop.lag.total_s)
    for name in (
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    ):
        text = "Share of the last minute, 0 to 1, in which the thread of the event loop did not compute."
        page.one(name, "gauge", text, round(meters.loop.idle, 4))


def requests(page: Page, meters: Meters) -> None:
    """Write the counts of requests, and their times."""
    name = "kafka_network_requestmetrics_requests_total"
    page.family(name, "counter", "Requests, by API.")
    for key, count in meters.requests.counts.items():
        if count:
            page.add(name, labels(request=ApiKey(key).api_name), count)
    name = "kafkalite_request_seconds"
    text = "Times of one request in sixteen. queue: before its handler; local: work; remote: waiting; send: the answer."
    page.family(name, "histogram", text)
    for key, times in sorted(meters.requests.times.items()):
        for phase, durations in times.phases.items():
            names: dict[str, object] = {"api": ApiKey(key).api_name, "phase": phase}
            page.histogram(name, names, durations.buckets(), durations.total_s)
    page.family("kafkalite_log_flush_seconds", "histogram", "Flushes (fsync) of logs, with the wait for a thread.")
    page.histogram("kafkalite_log_flush_seconds", {}, meters.flushes.buckets(), meters.flushes.total_s)
    text = "Flushes (fsync) that the disk has failed."
    page.one("kafkalite_log_flush_failures_total", "counter", text, meters.failed_flushes)


def connections(page: Page, acceptor: Acceptor, listeners: Iterable[str]) -> None:
    """Write how many connections there are and were."""
    counts = acceptor.count_by_listener()
    name = "kafka_server_socket_server_metrics_connection_count"
    page.family(name, "gauge", "Open connections, by listener.")
    for listener in listeners:
        page.add(name, labels(listener=listener), counts[listener])
    name = "kafka_server_socket_server_metrics_connection_creation_total"
    page.family(name, "counter", "Connections that were accepted, by listener.")
    for listener in listeners:
        page.add(name, labels(listener=listener), acceptor.accepted[listener])


def topics(page: Page, meters: Meters) -> Work[None]:
    """Write the counters of topics. The series without a topic is the sum over all."""
    for suffix, counter, text in _TOPIC_COUNTERS:
        name = f"kafka_server_brokertopicmetrics_{suffix}_total"
        page.family(name, "counter", text)
        page.add(name, "", meters.topics.total(counter))
        for number, (topic, meter) in enumerate(sorted(meters.topics.by_name.items())):
            if number % _AT_ONCE == _AT_ONCE - 1:
                yield None
            page.add(name, labels(topic=topic), counter(meter))


class _TopicLabels(dict[str, str]):
    """The labels of each topic, as far as its partitions have the same."""

    def __missing__(self, topic: str) -> str:
        text = self[topic] = f"{open_labels(labels(topic=topic))}partition="
        return text


def partitions(page: Page, hosted: Replicas, replication: Replication) -> Work[None]:
    """Write what concerns replicas: how many, and for each partition its log, and where this broker leads its ISR."""
    listed = list(hosted)
    logs, leaders = [], []
    reassigning = leading = damaged = 0
    of_topic = _TopicLabels()
    for at in range(0, len(listed), _AT_ONCE_IN_BLOCKS):
        yield None
        some = listed[at : at + _AT_ONCE_IN_BLOCKS]
        label_texts = [f'{of_topic[topic]}"{number}"}}' for topic, number in [each.topic_partition for each in some]]
        some_logs = [partition.log for partition in some]
        led = [
            (label_text, leader)
            for label_text, partition in zip(label_texts, some, strict=True)
            if (leader := partition.leader) is not None
        ]
        reassigning += sum([leader.in_sync.state.is_moving for _, leader in led])
        damaged += sum([log.is_damaged for log in some_logs])
        leading += len(led)
        logs.append((LabelBlock(label_texts), some_logs))
        leaders.append((LabelBlock([label_text for label_text, _ in led]), [leader for _, leader in led]))
    for name, text, value_of in _LOG_FAMILIES:
        page.family(name, "gauge", text)
        for block, some_logs in logs:
            page.extend_block(name, block, [value_of(log) for log in some_logs])
            yield None
    counts = []
    for name, text, of_leader in _LEADER_FAMILIES:
        page.family(name, "gauge", text)
        count = 0
        for block, some_leaders in leaders:
            values = [of_leader(leader) for leader in some_leaders]
            page.extend_block(name, block, values)
            count += sum(values)
            yield None
        counts.append(count)
    _, _, under_replicated, under_min, at_min = counts
    manager = "kafka_server_replicamanager"
    for name, value, text in (
        ("partitioncount", len(listed), "Partitions that this broker hosts."),
        ("leadercount", leading, "Partitions that this broker leads."),
        ("underreplicatedpartitions", under_replicated, "Led partitions with replicas that are not in sync."),
        ("underminisrpartitioncount", under_min, "Led partitions whose ISR is smaller than min.insync.replicas."),
        ("atminisrpartitioncount", at_min, "Led partitions whose ISR has just min.insync.replicas members."),
        ("offlinereplicacount", hosted.offline_count, "Replicas whose log directory is offline."),
        ("reassigningpartitions", reassigning, "Led partitions that a reassignment is moving."),
    ):
        page.one(f"{manager}_{name}", "gauge", text, value)
    page.one("kafkalite_damaged_replicas", "gauge", "Hosted logs with ranges that are missing or unreadable.", damaged)
    changes = replication.isr_writes
    page.one(f"{manager}_isrshrinks_total", "counter", "ISRs that this leader has made smaller.", changes.shrinks)
    page.one(f"{manager}_isrexpands_total", "counter", "ISRs that this leader has made larger.", changes.expands)


def throttles(page: Page, hosted: Replicas, meters: Meters) -> None:
    """Write what is copied by replicas that are not in sync, as far as topics list them as throttled, and the rates."""
    for suffix, text, size_bytes in (
        ("in", "Bytes of batches that replicas of this broker received which a reassignment adds.",
         meters.reassignment_bytes_in),
        ("out", "Bytes of batches that replicas received from this broker which a reassignment adds.",
         meters.reassignment_bytes_out),
    ):  # fmt: skip
        page.one(f"kafka_server_brokertopicmetrics_reassignmentbytes{suffix}_total", "counter", text, size_bytes)
    for role, throttle in hosted.throttles.items():
        text = f"Bytes a second that were copied in the last windows under the throttle as {role}."
        page.one(f"kafka_server_{role}replication_byte_rate", "gauge", text, round(throttle.byte_rate()))
    for suffix, kind, text, value_of in _THROTTLE_FAMILIES:
        name = f"kafkalite_throttled_replication_{suffix}"
        page.family(name, kind, text)
        for role, throttle in hosted.throttles.items():
            if throttle.rate < UNLIMITED_RATE or kind == "counter":
                page.add(name, labels(role=role), value_of(throttle))


_THROTTLE_FAMILIES: Final[tuple[tuple[str, Kind, str, Callable[[ReplicationThrottle], float]], ...]] = (
    ("bytes_total", "counter", "Bytes that were copied under the throttle.", lambda throttle: throttle.total_bytes),
    ("rate", "gauge", "Bytes a second that the throttle allows.", lambda throttle: throttle.rate),
    ("owed_seconds", "gauge", "For how long nothing is copied.", lambda throttle: round(throttle.owed_s(), 3)),
)


def _is_under_replicated(leader: Leader) -> bool:
    state = leader.in_sync.state
    return len(state.isr) < len(state.replicas)


def _is_under_min_isr(leader: Leader) -> bool:
    in_sync = leader.in_sync
    return len(in_sync.state.isr) < in_sync.required


def _is_at_min_isr(leader: Leader) -> bool:
    in_sync = leader.in_sync
    return len(in_sync.state.isr) == in_sync.required and len(in_sync.state.replicas) > 1


_LOG_FAMILIES: Final[tuple[tuple[str, str, Callable[[PartitionLog], int]], ...]] = (
    ("kafka_log_log_size", "Bytes of a log.", lambda log: log.local.segments.size_bytes),
    ("kafka_log_log_logstartoffset", "First offset of a log.", lambda log: log.log_start_offset),
    ("kafka_log_log_logendoffset", "Next offset of a log.", lambda log: log.local.log_end_offset),
    ("kafka_log_log_numlogsegments", "Segments of a log.", lambda log: len(log.local.segments)),
)
# Of the partitions that this broker leads. The last three are conditions, 0 or 1.
_LEADER_FAMILIES: Final[tuple[tuple[str, str, Callable[[Leader], int]], ...]] = (
    (
        "kafka_cluster_partition_replicascount",
        "Replicas of a partition that this broker leads.",
        lambda leader: len(leader.in_sync.state.replicas),
    ),
    (
        "kafka_cluster_partition_insyncreplicascount",
        "Members of the ISR of a partition that this broker leads.",
        lambda leader: len(leader.in_sync.state.isr),
    ),
    (
        "kafka_cluster_partition_underreplicated",
        "1: a replica of the led partition is not in sync.",
        _is_under_replicated,
    ),
    (
        "kafka_cluster_partition_underminisr",
        "1: the ISR of the led partition is smaller than min.insync.replicas.",
        _is_under_min_isr,
    ),
    (
        "kafka_cluster_partition_atminisr",
        "1: the ISR of the led partition has just min.insync.replicas members.",
        _is_at_min_isr,
    ),
)


def controller(page: Page, cluster: ClusterState, broker_id: int) -> Work[None]:
    """Write what the controller alone knows: elsewhere the counts are 0, so that sums over brokers are right."""
    is_active = cluster.controller_id == broker_id
    offline = imbalanced = total = 0
    brokers = cluster.brokers
    if is_active:
        for number, topic in enumerate(cluster.topics.values()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                yield None
            states = topic.partitions.values()
            total += len(states)
            offline += sum([state.leader not in brokers for state in states])
            imbalanced += sum([state.leader != state.replicas[0] for state in states if state.replicas])
    name = "kafka_controller_kafkacontroller"
    page.one(f"{name}_activecontrollercount", "gauge", "1: this broker is the controller.", is_active)
    for suffix, value, text in (
        ("offlinepartitionscount", offline, "Partitions without a leader, at the controller."),
        ("preferredreplicaimbalancecount", imbalanced, "Partitions that another replica than the first leads."),
        ("globaltopiccount", len(cluster.topics) if is_active else 0, "Topics, at the controller."),
        ("globalpartitioncount", total, "Partitions, at the controller."),
        ("activebrokercount", len(cluster.brokers) if is_active else 0, "Live brokers, at the controller."),
    ):
        page.one(f"{name}_{suffix}", "gauge", text, value)


def groups(page: Page, coordinator: GroupCoordinator) -> None:
    """Write how many groups this broker coordinates, by state."""
    states = Counter(group.state for group in coordinator.groups())
    name = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    page.one(name, "gauge", "Groups that this broker coordinates.", sum(states.values()))
    for each in GroupState:
        page.one(f"{name}{each.value.lower()}", "gauge", f"Coordinated groups in the state {each.value}.", states[each])
    text = "Bytes of the metadata of group members."
    page.one("kafkalite_group_members_bytes", "gauge", text, coordinator.held_bytes)


def disks(page: Page, directories: LogDirectories) -> None:
    """Write the state and the room of each log directory. No room is asked of a disk that does not answer."""
    listed = list(directories)
    offline = sum(each.offline is not None for each in listed)
    name = "kafka_log_logmanager_offlinelogdirectorycount"
    page.one(name, "gauge", "Log directories that have failed.", offline)
    for name, text, attribute in (
        ("kafkalite_log_directory_offline", "1: the directory has failed.", "offline"),
        ("kafkalite_log_directory_refuses", "1: the directory takes no records.", "refusal"),
        ("kafkalite_log_directory_hangs", "1: the directory's disk does not answer.", "hanging"),
    ):
        page.family(name, "gauge", text)
        for each in listed:
            page.add(name, labels(directory=each.path), getattr(each, attribute) is not None)
    spaces = [
        (each.path, space)
        for each in listed
        if each.offline is None and each.hanging is None and (space := each.space()) is not None
    ]
    for name, text, number in (
        ("kafkalite_log_directory_free_bytes", "Free bytes of the file system.", 0),
        ("kafkalite_log_directory_total_bytes", "Size of the file system.", 1),
    ):
        page.family(name, "gauge", text)
        for path, space in spaces:
            page.add(name, labels(directory=path), space[number])


def cleaning(page: Page, cleaner: Cleaner) -> None:
    """Write whether compacted logs are cleaned; nothing where ``log.cleaner.enable`` is off."""
    idle_s = cleaner.seconds_since_look
    if idle_s is None:
        return
    text = "Threads of log.cleaner.threads that have ended by themselves."
    page.one("kafka_log_logcleaner_deadthreadcount", "gauge", text, cleaner.dead_count)
    text = "Since the cleaner last looked for a log to clean; a long cleaning counts, too."
    page.one("kafka_log_logcleanermanager_time_since_last_run_ms", "gauge", text, round(idle_s * 1000))
    name = "kafka_log_logcleanermanager_uncleanable_partitions_count"
    page.family(name, "gauge", "Compacted logs whose last cleaning has failed, by log directory.")
    for directory, count in cleaner.uncleanable.items():
        page.add(name, labels(logDirectory=directory), count)


def registry(page: Page, context: BrokerContext) -> None:
    """Write the state of the registry session."""
    membership = context.membership
    text = "1: the broker has a session with the registry, and a connection."
    page.one("kafkalite_registry_connected", "gauge", text, membership.is_connected)
    name = "kafka_server_sessionexpirelistener_zookeeperexpires_total"
    page.one(name, "counter", "Registry sessions that were lost.", membership.sessions_lost)
    if membership.clock_ahead_ms is not None:
        text = "How far this host's clock was ahead of the registry's when the broker registered; negative: behind."
        page.one("kafkalite_registry_clock_ahead_seconds", "gauge", text, round(membership.clock_ahead_ms / 1000, 3))
    page.one("kafkalite_registry_seen_zxid", "gauge", "Last transaction seen of the registry.", membership.seen_zxid)


def served(page: Page, context: BrokerContext) -> None:
    """Write what waits in the broker."""
    name, sessions = "kafka_server_fetchsessioncache_numincrementalfetch", context.fetch_sessions
    page.one(f"{name}sessions", "gauge", "Fetch sessions of clients.", len(sessions))
    text = "Partitions in fetch sessions of clients."
    page.one(f"{name}partitionscached", "gauge", text, sessions.partition_count)


def state(page: Page, broker_state: int, remaining_logs: int, version: str) -> None:
    """Write in what state the broker is, and its version."""
    text = "1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 shutting down."
    page.one("kafka_server_kafkaserver_brokerstate", "gauge", text, broker_state)
    page.one("kafkalite_remaining_logs_to_recover", "gauge", "Logs that the start has yet to open.", remaining_logs)
    page.family("kafkalite_build_info", "gauge", "The version of the broker.")
    page.add("kafkalite_build_info", labels(version=version), 1)


def _histograms(page: Page, name: str, text: str, label: str, found: Iterable[tuple[str, Histogram]]) -> None:
    page.family(name, "histogram", text)
    for value, durations in found:
        page.histogram(name, {label: value}, durations.buckets(), durations.total_s)


def _pages(path: str) -> tuple[int, int] | None:
    """Return the pages of virtual memory and those in use; None where the system has no /proc."""
    try:
        size, resident, *_ = Path(path).read_text().split()
    except OSError:
        return None
    return int(size), int(resident)


def _descriptors() -> int | None:
    """Return how many there are. Linux shows the number as the size of the directory from 6.2 on; before, the names are
    counted, which takes a millisecond for a thousand logs."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def _disk_bytes() -> list[tuple[str, int]]:
    """Return Kafka's names and values of what this process had from and to disks; nothing where that is not known."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return []
    return [
        (name, int(value))
        for name, _, value in (line.partition(": ") for line in lines)
        if name in ("read_bytes", "write_bytes")
    ]
