"""The part of a group's member that runs in the polling thread: rebalances, callbacks, commits.

Every poll calls :meth:`GroupConsumer.step` before it returns anything. The step does what is due and waits for nothing
but the commit of what a cooperative member gives up. It hands over the changes that :class:`.membership.Membership` has
recorded, calls the user's callbacks, gives partitions to the read-ahead and takes them away, and starts automatic
commits. What a callback raises comes out of that poll, after the step.

A rebalance, eager: commit what earlier polls returned (``enable.auto.commit``), wait for commits that are on their way,
``on_revoked`` of all partitions, give them up, join; then take the new ones and call ``on_assigned``. Cooperative: join
with all partitions kept, and meanwhile records go on. Then commit those that are gone, ``on_revoked`` of them only,
give them up, ``on_assigned`` of the new ones. Join again when something was given up, so that others get it.

Fallen out of the group (no heartbeats, no polls, fenced): ``on_lost`` of all partitions, because other members may have
them already; nothing is committed.

Partitions that come back with the rebalance that took them stay paused when they were. Their positions are those
committed: what was returned and not committed comes again.

Source: ConsumerCoordinator; KIP-62, KIP-429.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from spark_kafkalite.client.consume.consumer_metrics import ConsumerMetrics
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.consume.subscription import TopicSelection
from spark_kafkalite.client.group.assignors import Assignor, GroupMemberSubscription
from spark_kafkalite.client.group.auto_commit import AutoCommit
from spark_kafkalite.client.group.commits import CommitCallback, CommitLane
from spark_kafkalite.client.group.consumer_protocol import NO_GENERATION, Assignment, Subscription
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.group.membership import Joined, Membership, Phase
from spark_kafkalite.client.group.offsets import NO_MEMBER, GroupMember, fetch_offsets
from spark_kafkalite.client.group.settings import GroupConfig
from spark_kafkalite.client.group.topics import GroupTopics
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import FencedInstanceId, KafkaliteError, RebalanceInProgress, UnknownMemberId
from spark_kafkalite.model import CommittedOffset, CommittedOffsets, TopicPartition
from spark_kafkalite.wire.error_codes import error_for

_LOG = logging.getLogger("spark_kafkalite.client")

RebalanceCallback = Callable[[list[TopicPartition]], object]

# How long a commit of what is being revoked may take before the rebalance goes on without it.
_REVOKE_COMMIT_MS = 5_000


class GroupConsumer:
    """The group's side of one consumer: a member once it has subscribed, before that only a client that commits."""

    def __init__(
        self, config: GroupConfig, cluster: ClusterClient, clock: Clock, metrics: ConsumerMetrics | None = None
    ) -> None:
        self._metrics = metrics
        self.config = config
        self._cluster = cluster
        self._clock = clock
        self.coordinator = CoordinatorLink(cluster, config.group_id)
        self._lane = CommitLane(self.coordinator, self._notify, clock, None if metrics is None else metrics.committed)
        self._auto = AutoCommit(config, self._lane, clock)
        self._ahead: ReadAhead | None = None
        self._topics: GroupTopics | None = None
        self._membership: Membership | None = None
        self._closing: Membership | None = None
        self._on_assigned: RebalanceCallback | None = None
        self._on_revoked: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None
        # As whom this consumer commits: the member of the generation whose assignment is in force.
        self._member = GroupMember("", NO_GENERATION, config.group_instance_id)
        # What the last assignment was, for assignors that tell each other.
        self._last_assigned: Sequence[TopicPartition] = ()
        self._last_generation = NO_GENERATION
        self._paused_before: set[TopicPartition] = set()
        # While commits are waited for before joining: until when.
        self._preparing_until_s: float | None = None
        self._fatal: Exception | None = None
        self._stepping = False

    def attach(self, ahead: ReadAhead) -> None:
        """Take the partitions to work on; the two need each other."""
        self._ahead = ahead

    @property
    def ahead(self) -> ReadAhead:
        assert self._ahead is not None
        return self._ahead

    def _notify(self) -> None:
        self.ahead.notify()

    # Subscribing ----------------------------------------------------------------------------------------------------

    @property
    def is_subscribed(self) -> bool:
        """Whether this consumer is, or is about to be, a member."""
        return self._membership is not None

    @property
    def member(self) -> GroupMember:
        """Id and generation as of the last rebalance that is done, "" and -1 outside of any."""
        return self._member

    def subscribe(
        self,
        selection: TopicSelection,
        on_assigned: RebalanceCallback | None,
        on_revoked: RebalanceCallback | None,
        on_lost: RebalanceCallback | None,
        *,
        auto_create: bool,
    ) -> None:
        """Want these topics; the next poll joins the group, or joins it again when the topics are others."""
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        if self._topics is None:
            self._topics = GroupTopics(self._cluster, self._clock)
        self._topics.select(selection, auto_create=auto_create)
        if self._membership is None:
            self._membership = Membership(self.config, self.coordinator, self._assign, self._notify, self._clock)
        self._preparing_until_s = None

    def unsubscribe(self, reason: str, deadline: Deadline) -> None:
        """Give all partitions up and leave the group; the consumer may subscribe or assign again."""
        membership = self._membership
        if membership is None:
            return
        failure: Exception | None = None
        owned = self._owned()
        if owned:
            if membership.lost is not None or membership.phase is Phase.UNJOINED:
                failure = self._call(self._on_lost or self._on_revoked, owned)
            else:
                if self._auto.is_on:
                    self._commit_before_revoking(owned, deadline)
                failure = self._call(self._on_revoked, owned)
            self.ahead.assign(())
        self._lane.wait_idle(deadline)
        self._membership = None
        if self._topics is not None:
            self._topics.stop()
            self._topics = None
        membership.leave(reason, deadline)
        membership.close()
        self._closing = membership
        self._member = GroupMember("", NO_GENERATION, self.config.group_instance_id)
        self._fatal = self._preparing_until_s = None
        self._paused_before.clear()
        if failure is not None:
            raise failure

    def request_rejoin(self, reason: str) -> None:
        """Have the next poll join again."""
        if self._membership is not None:
            self._membership.request_rejoin(reason)

    # Every poll -----------------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether :meth:`step` has something to do that it could do at once."""
        membership = self._membership
        return self._lane.has_outcomes or (
            membership is not None
            and (self._has_changed(membership) or (membership.wants_join and self._may_prepare()))
        )

    def _has_changed(self, membership: Membership) -> bool:
        return (
            membership.has_news
            or self._fatal is not None
            or (self._topics is not None and self._topics.is_behind(self._cluster.snapshot))
        )

    def _may_prepare(self) -> bool:
        return self._preparing_until_s is None or (
            self._lane.is_idle and self._topics is not None and self._topics.is_known
        )

    def step(self) -> None:
        """Do what is due. Raises what callbacks raise, and why the member cannot be in the group."""
        if self._stepping:
            # A callback polls: the rebalance that called it comes first.
            return
        self._stepping = True
        try:
            failures = self._call_back()
            membership = self._membership
            if membership is not None:
                membership.polled()
                if self._has_changed(membership) or membership.wants_join:
                    self._take_part(membership, failures)
            if self._auto.is_due:
                self._auto_commit()
        finally:
            self._stepping = False
        if failures:
            raise failures[0]

    def _take_part(self, membership: Membership, failures: list[Exception]) -> None:
        joined = membership.take_joined()
        if joined is not None:
            self._start_generation(membership, joined, failures)
        if membership.lost is not None:
            self._lose_all(membership, failures)
        if self._membership is not membership or self._topics is None:
            # A callback has unsubscribed.
            return
        failure = membership.take_failure()
        if isinstance(failure, FencedInstanceId):
            self._fatal = failure
        failure = failure or self._fatal
        if failure is not None:
            failures.append(failure)
            return
        reason = self._topics.change(self._cluster.snapshot)
        if reason is not None:
            membership.request_rejoin(reason)
        if membership.wants_join:
            self._prepare_join(membership, failures)

    def _call_back(self) -> list[Exception]:
        """Call the callbacks of commits that have their outcome; returns what they raise."""
        failures: list[Exception] = []
        if self._lane.has_outcomes:
            for commit, error in self._lane.take_outcomes():
                if commit.callback is not None:
                    try:
                        commit.callback(commit.offsets, error)
                    except Exception as failure:
                        failures.append(failure)
        return failures

    # A rebalance ----------------------------------------------------------------------------------------------------

    def _prepare_join(self, membership: Membership, failures: list[Exception]) -> None:
        """Do what comes before joining; over several steps while commits are on their way."""
        assert self._topics is not None
        now_s = self._clock.monotonic_s()
        owned = self._owned()
        if self._preparing_until_s is None:
            if owned and self._auto.is_on:
                self._auto_commit()
            patience_ms = min(self.config.max_poll_interval_ms // 2, self._cluster.config.request_timeout_ms)
            self._preparing_until_s = now_s + patience_ms / 1000
        # A pattern needs to know what topics there are; they are being asked for.
        if not self._topics.is_known and (failure := self._cluster.take_failure()) is not None:
            failures.append(failure)
        if not self._topics.is_known or (not self._lane.is_idle and now_s < self._preparing_until_s):
            return
        topics = self._topics.for_join()
        self._preparing_until_s = None
        if self.config.is_cooperative:
            unwanted = [each for each in owned if each.topic not in topics]
            self._revoke(unwanted, failures)
            owned = [each for each in owned if each.topic in topics]
        else:
            self._revoke(owned, failures)
            owned = []
        if self._membership is not membership:
            # The callback has unsubscribed.
            return
        protocols = [
            (each.name, self._subscription(each, sorted(topics), owned).encode()) for each in self.config.assignors
        ]
        membership.join(protocols, keeps_partitions=bool(owned))

    def _subscription(self, assignor: Assignor, topics: list[str], owned: list[TopicPartition]) -> Subscription:
        return Subscription(
            tuple(topics),
            assignor.user_data(self._last_assigned, self._last_generation),
            tuple(owned),
            self._member.generation_id,
            self.config.client_rack or None,
        )

    def _revoke(self, partitions: list[TopicPartition], failures: list[Exception]) -> None:
        """Give partitions up: call the user's callback, then stop reading them."""
        if not partitions:
            return
        failure = self._call(self._on_revoked, partitions)
        if failure is not None:
            failures.append(failure)
        self._drop(partitions)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        with self.ahead.lock:
            self._paused_before |= {each for each in gone if (s := self.ahead.states.get(each)) and s.paused}
        self._read([each for each in self._owned() if each not in gone])

    def _read(self, partitions: list[TopicPartition], paused: Collection[TopicPartition] = ()) -> None:
        # What the group deals out exists: a topic that was deleted since must not be made again.
        self.ahead.assign(partitions, paused=paused, auto_create=False)
        self._auto.restart()

    def _start_generation(self, membership: Membership, joined: Joined, failures: list[Exception]) -> None:
        """Put an assignment into force."""
        assert self._topics is not None
        self._member = joined.member
        self._topics.joined(is_leader=joined.is_leader)
        assigned = [each for each in joined.assignment.partitions if self._topics.wants(each.topic)]
        owned = self._owned()
        revoked = sorted(set(owned) - set(assigned))
        if revoked:
            # Only cooperative members still have any.
            if self._auto.is_on:
                self._commit_before_revoking(revoked, Deadline.after_ms(_REVOKE_COMMIT_MS, self._clock))
            self._revoke(revoked, failures)
            if self._membership is not membership:
                # The callback has unsubscribed.
                return
            membership.request_rejoin(f"{len(revoked)} partitions were given up")
        added = sorted(set(assigned) - set(owned))
        self._last_assigned, self._last_generation = tuple(assigned), joined.member.generation_id
        if self._metrics is not None:
            self._metrics.rebalanced()
        _LOG.info("%s: assigned %s by %s", membership, ", ".join(map(str, assigned)) or "nothing", joined.protocol)
        self._read(assigned, self._paused_before)
        self._paused_before.clear()
        failure = self._call(self._on_assigned, added)
        if failure is not None:
            failures.append(failure)

    def _lose_all(self, membership: Membership, failures: list[Exception]) -> None:
        """Stop reading what others may be reading already."""
        self._member = GroupMember("", NO_GENERATION, self.config.group_instance_id)
        self._preparing_until_s = None
        owned = self._owned()
        if owned:
            failure = self._call(self._on_lost or self._on_revoked, owned)
            if failure is not None:
                failures.append(failure)
            self._drop(owned)
        membership.take_lost()

    def _call(self, callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> Exception | None:
        if callback is None:
            return None
        try:
            callback(partitions)
        except Exception as failure:
            return failure
        return None

    def _owned(self) -> list[TopicPartition]:
        with self.ahead.lock:
            return sorted(self.ahead.states)

    def _assign(self, protocol: str, members: Sequence[GroupMemberSubscription]) -> dict[str, Assignment]:
        """Deal out the partitions, as the group's leader; in the member's thread."""
        topics = self._topics
        assignor = next((each for each in self.config.assignors if each.name == protocol), None)
        if topics is None or assignor is None:
            raise KafkaliteError(
                f"{self._membership}: the group has chosen assignor {protocol!r}, which was not offered"
            )
        counts = topics.counts_for({topic for member in members for topic in member.subscription.topics})
        assigned = assignor.assign(counts, members)
        return {member_id: Assignment(tuple(partitions)) for member_id, partitions in assigned.items()}

    def fetch_committed(
        self, partitions: list[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return where the group has got to; for the read-ahead, in its thread."""
        return fetch_offsets(self.coordinator, partitions, deadline)

    # Commits --------------------------------------------------------------------------------------------------------

    def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, CommittedOffset]:
        """Return what to commit: the positions behind all that polls returned, where they are known."""
        wanted = None if partitions is None else set(partitions)
        with self.ahead.lock:
            return {
                each: CommittedOffset(state.position, leader_epoch=state.leader_epoch)
                for each, state in self.ahead.states.items()
                if state.position is not None and (wanted is None or each in wanted)
            }

    def commit(self, offsets: CommittedOffsets | None, deadline: Deadline) -> None:
        """Store offsets, by default all positions, and wait until they are."""
        self._lane.commit(self.positions() if offsets is None else offsets, self._committer(), deadline)

    def commit_async(self, offsets: CommittedOffsets | None, callback: CommitCallback | None) -> None:
        """Have offsets stored; a later poll, commit or close calls ``callback``."""
        self._lane.submit(self.positions() if offsets is None else offsets, self._committer(), callback)

    def _committer(self) -> GroupMember:
        membership = self._membership
        if membership is None:
            return NO_MEMBER
        if self._fatal is not None:
            raise self._fatal
        if membership.lost is not None or self._member.generation_id == NO_GENERATION:
            # Joined: the next poll takes up what the heartbeat thread has been assigned meanwhile.
            joins = membership.phase is not Phase.UNJOINED and membership.lost is None
            code = RebalanceInProgress.code if joins else UnknownMemberId.code
            raise error_for(
                code,
                f"{membership}: offsets cannot be committed: this consumer is in no generation of its group"
                + (f" ({membership.lost})" if membership.lost else "")
                + ". poll() joins it; partitions that it had may be another member's now, which reads from the last "
                "commit on",
            )
        return self._member

    def _auto_commit(self) -> None:
        """Have the positions stored in the background."""
        if self._membership is None or self._member.generation_id != NO_GENERATION:
            self._auto.submit(self.positions(), self._member if self._membership else NO_MEMBER)

    def _commit_before_revoking(self, partitions: list[TopicPartition], deadline: Deadline) -> None:
        member = self._member if self._membership else NO_MEMBER
        self._auto.commit(self.positions(partitions), member, deadline)

    # The end --------------------------------------------------------------------------------------------------------

    def before_assign(self) -> None:
        """Have what polls returned stored before other partitions are assigned by hand, if that is automatic."""
        if self._auto.is_on:
            self._auto_commit()

    def close(self, deadline: Deadline) -> None:
        """Commit what polls returned if that is automatic, call the user's callbacks, and leave the group at once."""
        failure: Exception | None = None
        try:
            if self._membership is not None:
                self.unsubscribe("the consumer is being closed", deadline)
            elif self._auto.is_on:
                self._commit_before_revoking(self._owned(), deadline)
            self._lane.wait_idle(deadline)
        except Exception as error:
            failure = error
        failures = self._call_back()
        self._lane.close()
        if failure is not None or failures:
            raise failure or failures[0]

    def wait_closed(self) -> None:
        """Wait for the threads to end, when their connections are closed."""
        for part in (self._closing, self._lane):
            if part is not None:
                part.wait_closed(5)
