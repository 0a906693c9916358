"""One-line faults, and the tests of ``make test`` that must find each.

A mutant takes one promise of the product away: what it replaces (``old``) occurs once in its file. ``tests`` are the
files that find it, the cheapest first, or single tests of files that take long, as pytest names them. One of the unit
tests checks that every text is still in its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutant:
    """One fault. ``file`` is a path in the project, ``tests`` are paths that may go on as ``::name``."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_LOG: Final = "spark_kafkalite/log"
_REPLICATION: Final = "spark_kafkalite/broker/replication"
_GROUPS: Final = "spark_kafkalite/coordinator/groups"
_SCRAM: Final = "spark_kafkalite/security/scram.py"
_DESTINATION: Final = "spark_kafkalite/jobs/destination"

_REPLICATION_TESTS: Final = "tests/unit/broker/replication"
_RULES_TESTS: Final = "tests/unit/broker/replication/rules"
_RECOVERY: Final = "spark_kafkalite/registry/recovery"
_RECOVERY_TESTS: Final = "tests/unit/registry/recovery"

MUTANTS: Final = (
    # Acknowledgements, and what consumers see.
    Mutant(
        "acks_all_is_answered_at_the_log_end",
        f"{_REPLICATION}/bounds.py",
        "end = self.high_watermark if acks == ACKS_ALL else log_end_offset",
        "end = log_end_offset",
        (f"{_REPLICATION_TESTS}/test_bounds.py",),
    ),
    Mutant(
        "acks_do_not_wait_for_the_flush",
        f"{_REPLICATION}/bounds.py",
        "return min(end, flushed_end_offset) if self.acknowledges_flushed else end",
        "return end",
        (f"{_REPLICATION_TESTS}/test_bounds.py",),
    ),
    Mutant(
        "follower_acknowledges_before_its_flush",
        f"{_REPLICATION}/rules/following.py",
        "        if flushed_only and log.recovery_point < log.log_end_offset:\n",
        "        if False:\n",
        (f"{_RULES_TESTS}/test_following.py", f"{_REPLICATION_TESTS}/test_flusher.py"),
    ),
    Mutant(
        "consumers_see_beyond_the_high_watermark",
        f"{_REPLICATION}/bounds.py",
        "        return self.high_watermark\n\n    def stable",
        "        return 1 << 60\n\n    def stable",
        (f"{_REPLICATION_TESTS}/test_bounds.py",),
    ),
    Mutant(
        "high_watermark_ignores_followers",
        f"{_REPLICATION}/rules/in_sync.py",
        "            if follower.end_offset < log_end_offset:\n                log_end_offset = follower.end_offset",
        "            pass",
        (f"{_RULES_TESTS}/test_in_sync.py", f"{_REPLICATION_TESTS}/test_leader.py"),
    ),
    Mutant(
        "high_watermark_taken_before_the_log_is_aligned",
        f"{_REPLICATION}/rules/following.py",
        "return min(self.leader_high_watermark, log.log_end_offset) if self._is_aligned else 0",
        "return min(self.leader_high_watermark, log.log_end_offset)",
        (f"{_RULES_TESTS}/test_following.py", f"{_REPLICATION_TESTS}/test_replica_fetcher.py"),
    ),
    Mutant(
        "low_watermark_is_the_leaders_own",
        f"{_REPLICATION}/follower_logs.py",
        "return min([self._log.log_start_offset, *others])",
        "return self._log.log_start_offset",
        (f"{_REPLICATION_TESTS}/test_leader.py",),
    ),
    # In-sync replicas.
    Mutant(
        "min_insync_replicas_not_checked",
        f"{_REPLICATION}/leader.py",
        "        if acks == ACKS_ALL and not self._isr_is_enough:\n            raise NotEnoughReplicas(",
        "        if False:\n            raise NotEnoughReplicas(",
        (f"{_REPLICATION_TESTS}/test_isr_changes.py", f"{_REPLICATION_TESTS}/test_partition.py"),
    ),
    Mutant(
        "min_insync_replicas_not_checked_after_the_append",
        f"{_REPLICATION}/leader.py",
        "        if acks == ACKS_ALL and not self._isr_is_enough:\n            raise NotEnoughReplicasAfterAppend(",
        "        if False:\n            raise NotEnoughReplicasAfterAppend(",
        (f"{_REPLICATION_TESTS}/test_leader.py", f"{_REPLICATION_TESTS}/test_isr_changes.py"),
    ),
    Mutant(
        "isr_never_shrinks",
        f"{_REPLICATION}/rules/in_sync.py",
        "if follower.is_level or now_s - follower.caught_up_s <= lag_max_s:",
        "if True:",
        (f"{_RULES_TESTS}/test_in_sync.py", f"{_REPLICATION_TESTS}/test_isr_changes.py"),
    ),
    Mutant(
        "follower_joins_before_the_epoch_start",
        f"{_REPLICATION}/rules/in_sync.py",
        "            and follower.end_offset >= self.epoch_start_offset\n",
        "",
        (f"{_RULES_TESTS}/test_in_sync.py", f"{_REPLICATION_TESTS}/test_isr_changes.py"),
    ),
    Mutant(
        "commits_while_other_replicas_may_lead",
        f"{_REPLICATION}/rules/in_sync.py",
        "return not self.state.eligible and (self.is_enough or not self.keeps_eligible)",
        "return self.is_enough or not self.keeps_eligible",
        (f"{_RULES_TESTS}/test_in_sync.py", f"{_REPLICATION_TESTS}/test_isr_changes.py"),
    ),
    Mutant(
        "incarnation_ignored",
        f"{_REPLICATION}/rules/in_sync.py",
        "return incarnation == named or (",
        "return True or (",
        (f"{_RULES_TESTS}/test_in_sync.py", f"{_REPLICATION_TESTS}/test_isr_changes.py"),
    ),
    # Leaders and followers.
    Mutant(
        "follower_truncates_to_the_leaders_end_only",
        f"{_REPLICATION}/rules/following.py",
        "offset = min(end_offset, own_end_offset) if own_epoch >= 0 else end_offset",
        "offset = end_offset",
        (f"{_RULES_TESTS}/test_following.py", f"{_REPLICATION_TESTS}/test_replica_fetcher.py"),
    ),
    Mutant(
        "follower_asks_for_no_divergence",
        f"{_REPLICATION}/rules/following.py",
        "            log.log_end_offset,\n            log.last_record_epoch,\n",
        "            log.log_end_offset,\n            -1,\n",
        (f"{_RULES_TESTS}/test_following.py", f"{_REPLICATION_TESTS}/test_replica_fetcher.py"),
    ),
    Mutant(
        "follower_believes_a_log_start_behind_the_leaders_end",
        f"{_REPLICATION}/rules/following.py",
        "        if answer.is_start_wrong:\n",
        "        if False:\n",
        (f"{_RULES_TESTS}/test_following.py",),
    ),
    Mutant(
        "a_log_that_ends_before_an_emptied_one_leads_by_itself",
        "spark_kafkalite/registry/controller/recovery.py",
        "    if other.end_offset > log.end_offset:\n        return False\n    if other.is_emptied or",
        "    if other.is_emptied or",
        ("tests/unit/registry/controller/test_recovery.py",),
    ),
    Mutant(
        "leader_epoch_not_fenced",
        f"{_REPLICATION}/partition.py",
        "if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:",
        "if False:",
        (f"{_REPLICATION_TESTS}/test_partition.py", f"{_REPLICATION_TESTS}/test_leader.py"),
    ),
    Mutant(
        "lease_never_ends",
        f"{_REPLICATION}/rules/lease.py",
        "return now_s < self.end_s",
        "return True",
        (f"{_RULES_TESTS}/test_lease.py",),
    ),
    Mutant(
        "lease_is_longer_than_the_session",
        f"{_REPLICATION}/rules/lease.py",
        "LEASE_SHARE: Final = 2 / 3",
        "LEASE_SHARE: Final = 3 / 2",
        (f"{_RULES_TESTS}/test_lease.py",),
    ),
    Mutant(
        "election_of_any_live_replica",
        "spark_kafkalite/registry/controller/election.py",
        "    whole = _in_sync_and_whole(state, live)\n    if not whole:\n        whole = [each",
        "    whole = [each for each in state.replicas if each in live][:1]\n    if not whole:\n        whole = [each",
        ("tests/unit/registry/controller/test_election.py",),
    ),
    Mutant(
        "anybody_fetches_as_a_replica",
        "spark_kafkalite/broker/network/session.py",
        "        if replica_id >= 0 and replica_id != self.broker_id:",
        "        if False:",
        ("tests/unit/broker/requests/test_fetching.py",),
    ),
    # Logs.
    Mutant(
        "crc_not_checked_on_produce",
        "spark_kafkalite/records/admission.py",
        "    check_crc(buffer, position, layout.LOG_OVERHEAD + header.batch_length)\n",
        "",
        ("tests/unit/records/test_admission.py",),
    ),
    Mutant(
        "sequence_gap_accepted",
        f"{_LOG}/producer_state.py",
        "            raise OutOfOrderSequenceNumber(\n"
        '                f"producer {header.producer_id}: sequence {first_sequence} does not follow',
        "            return None\n            raise OutOfOrderSequenceNumber(\n"
        '                f"producer {header.producer_id}: sequence {first_sequence} does not follow',
        ("tests/unit/log/test_producer_state.py",),
    ),
    Mutant(
        "duplicate_not_found",
        f"{_LOG}/producer_state.py",
        "if batch.first_sequence == first_sequence and batch.last_sequence == last:",
        "if False:",
        ("tests/unit/log/test_producer_state.py",),
    ),
    Mutant(
        "retention_takes_the_active_segments_first_timestamp",
        f"{_LOG}/retention.py",
        "yield SegmentFacts(log_end_offset, active.size_bytes, active.largest_timestamp_ms, is_active=True)",
        "yield SegmentFacts(log_end_offset, active.size_bytes, active.first_timestamp_ms, is_active=True)",
        ("tests/unit/log/test_retention.py",),
    ),
    Mutant(
        "retention_is_one_ms_short",
        f"{_LOG}/retention.py",
        "0 <= self.retention_ms < self.now_ms - timestamp_ms",
        "0 <= self.retention_ms <= self.now_ms - timestamp_ms",
        ("tests/unit/log/test_retention.py",),
    ),
    Mutant(
        "tombstones_go_at_once",
        f"{_LOG}/compaction/cleaner.py",
        "if 0 <= horizon_ms <= self._job.now_ms:",
        "if 0 <= horizon_ms:",
        ("tests/unit/log/compaction/test_cleaner.py",),
    ),
    Mutant(
        "tombstones_stay",
        f"{_LOG}/compaction/cleaner.py",
        "if 0 <= horizon_ms <= self._job.now_ms:",
        "if False:",
        ("tests/unit/log/compaction/test_cleaner.py",),
    ),
    Mutant(
        "min_compaction_lag_ignored",
        f"{_LOG}/compaction/plan.py",
        "is_young = min_compaction_lag_ms > 0 and segment.max_timestamp_ms > now_ms - min_compaction_lag_ms",
        "is_young = False",
        ("tests/unit/log/compaction/test_cleanable.py", "tests/unit/log/compaction/test_compaction.py"),
    ),
    Mutant(
        "time_lookup_skips_the_segment_that_holds_it",
        f"{_LOG}/reader.py",
        "            if segment.max_timestamp[0] < timestamp_ms:",
        "            if segment.max_timestamp[0] <= timestamp_ms:",
        ("tests/unit/log/test_partition_log.py",),
    ),
    # Groups.
    Mutant(
        "generation_not_checked",
        f"{_GROUPS}/group.py",
        "        if generation != self.generation:\n",
        "        if False:\n",
        ("tests/unit/coordinator/groups/test_group.py", "tests/unit/coordinator/groups/test_coordinator.py"),
    ),
    Mutant(
        "commits_generation_not_checked",
        f"{_GROUPS}/group.py",
        "        self.roster.find(member_id, group_instance_id)\n"
        "        self._check_generation(generation)\n"
        "        self._raise_for(COMMIT)",
        "        self.roster.find(member_id, group_instance_id)\n        self._raise_for(COMMIT)",
        ("tests/unit/coordinator/groups/test_group.py", "tests/unit/coordinator/groups/test_coordinator.py"),
    ),
    Mutant(
        "static_member_not_fenced",
        f"{_GROUPS}/roster.py",
        "            if owner is not None and owner != member_id:",
        "            if False:",
        ("tests/unit/coordinator/groups/test_roster.py", "tests/unit/coordinator/groups/test_group.py"),
    ),
    # Clients.
    Mutant(
        "aborted_records_are_shown",
        "spark_kafkalite/client/consume/isolation.py",
        "return header.is_transactional and header.producer_id in self._open",
        "return False",
        ("tests/unit/client/consume/test_isolation.py",),
    ),
    Mutant(
        "abort_marker_ends_nothing",
        "spark_kafkalite/client/consume/isolation.py",
        "self._open.discard(header.producer_id)",
        "pass",
        ("tests/unit/client/consume/test_isolation.py",),
    ),
    Mutant(
        "consumer_does_not_see_a_truncation",
        "spark_kafkalite/client/consume/truncation.py",
        "    if 0 <= end_offset < offset:",
        "    if False:",
        ("tests/unit/client/consume/test_truncation.py",),
    ),
    # Security.
    Mutant(
        "host_name_not_checked",
        "spark_kafkalite/security/tls.py",
        'context.check_hostname = values["ssl.endpoint.identification.algorithm"] == "https"',
        "context.check_hostname = False",
        ("tests/unit/security/test_tls_contexts.py",),
    ),
    Mutant(
        "any_password_accepted",
        _SCRAM,
        "if hmac.compare_digest(stored_key, candidate.stored_key):",
        "if True:",
        ("tests/unit/security/test_scram.py",),
    ),
    Mutant(
        "server_signature_not_checked",
        _SCRAM,
        'if not hmac.compare_digest(_decoded(final["signature"], "the broker\'s signature"), self._signature):',
        "if False:",
        ("tests/unit/security/test_scram.py",),
    ),
    Mutant(
        "scram_nonce_not_checked",
        _SCRAM,
        "if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):",
        "if False:",
        ("tests/unit/security/test_scram.py",),
    ),
    Mutant(
        "token_for_any_audience_accepted",
        "spark_kafkalite/security/token_rules.py",
        '"verify_aud": bool(self.audiences),',
        '"verify_aud": False,',
        ("tests/unit/security/test_token_rules.py",),
    ),
    Mutant(
        "token_chooses_its_algorithm",
        "spark_kafkalite/security/token_rules.py",
        "key = next((each for each in keys if algorithm in each.algorithms), None)",
        "key = next(iter(keys), None)",
        ("tests/unit/security/test_token_rules.py",),
    ),
    Mutant(
        "token_of_another_user_serves",
        "spark_kafkalite/security/oauthbearer_server.py",
        'if authzid not in ("", user):',
        "if False:",
        ("tests/unit/broker/network/test_token_door.py",),
    ),
    Mutant(
        "unknown_keys_are_asked_for_without_limit",
        "spark_kafkalite/broker/authentication/token_keys.py",
        "is_due = self._loop.time() >= self._ended_s + self._source.backoff_max_s",
        "is_due = True",
        ("tests/unit/broker/authentication/test_token_keys.py",),
    ),
    Mutant(
        "tokens_may_come_from_any_url",
        "spark_kafkalite/security/token_endpoint.py",
        "        if not is_listed(self.url):",
        "        if False:",
        ("tests/unit/security/test_token_endpoint.py", "tests/unit/security/test_oauthbearer.py"),
    ),
    Mutant(
        "registry_version_not_checked",
        "spark_kafkalite/registry/tree/tree.py",
        "        if operation.version not in (ANY_VERSION, node.version):\n            raise BadVersion(\n"
        '                f"registry node {operation.path} has version {node.version}',
        "        if False:\n            raise BadVersion(\n"
        '                f"registry node {operation.path} has version {node.version}',
        ("tests/contract/test_store.py::test_versions_guard_writes[embedded]",),
    ),
    # Spark.
    Mutant(
        "manifest_overwrites",
        "spark_kafkalite/manifests/files.py",
        "        temporary = self._written_beside(target, text)\n"
        "        try:\n            self._link(temporary, target)",
        "        temporary = self._written_beside(target, text)\n"
        "        try:\n            os.replace(temporary, target)",
        ("tests/unit/jobs/destination/test_lease.py",),
    ),
    Mutant(
        "manifest_number_not_checked_again",
        f"{_DESTINATION}/publish.py",
        "        if newest_number(files) >= manifest.number:\n"
        "            raise _overtaken(files, manifest)\n"
        '        fault_point("staged")',
        '        fault_point("staged")',
        ("tests/unit/jobs/destination/test_publish.py",),
    ),
    Mutant(
        "job_lease_is_taken_at_once",
        f"{_DESTINATION}/lease.py",
        "else modified_ms + holder.lease_ms - now_ms",
        "else modified_ms - now_ms",
        ("tests/unit/jobs/destination/test_lease.py",),
    ),
    Mutant(
        "loss_of_data_never_fails",
        "spark_kafkalite/spark/reading/data_loss.py",
        "return self.fails_of.get(cause, self.fails_by_default)",
        "return False",
        ("tests/unit/spark/reading/test_data_loss.py",),
    ),
    Mutant(
        "cause_of_a_loss_is_swapped_in_tasks",
        "spark_kafkalite/spark/reading/partition_reader.py",
        "cause = LossCause.END_WENT_BACK if error.offset > error.log_end_offset else LossCause.AGED_OUT",
        "cause = LossCause.AGED_OUT",
        ("tests/unit/spark/reading/test_partition_reader.py",),
    ),
    Mutant(
        "reader_goes_on_at_the_end_after_a_loss",
        "spark_kafkalite/spark/reading/partition_reader.py",
        "        resume = max(error.log_start_offset, error.offset)",
        "        resume = whole.end_offset",
        ("tests/unit/spark/reading/test_partition_reader.py",),
    ),
    # A registry that is made again from the logs.
    Mutant(
        "recovery_takes_the_longest_log",
        f"{_RECOVERY}/host_logs.py",
        "return (self.last_epoch, self.end_offset, not self.damaged) if",
        "return (self.end_offset, self.last_epoch, not self.damaged) if",
        (f"{_RECOVERY_TESTS}/test_plan.py",),
    ),
    Mutant(
        "recovery_lets_brokers_in_before_the_states_are_written",
        f"{_RECOVERY}/registry_nodes.py",
        "(sorted(nodes.keys() - set(_LAST)), [path for path in _LAST if path in nodes])",
        "(sorted(nodes),)",
        (f"{_RECOVERY_TESTS}/test_registry_nodes.py",),
    ),
    Mutant(
        "recovery_goes_on_without_a_replica",
        f"{_RECOVERY}/plan.py",
        "unread = set(replicas) - self._hosts.keys() - self._without",
        "unread = set[BrokerId]()",
        (f"{_RECOVERY_TESTS}/test_plan.py",),
    ),
)
