"""One member of a consumer group: joining, the thread that keeps it a member, leaving.

Owns the member's id and generation, and the connection on which JoinGroup and SyncGroup may be held for minutes. Its
thread ``kafkalite-group`` does all requests but LeaveGroup: it joins on request, then sends heartbeats, and leaves the
group when no thread polled for ``max.poll.interval.ms``. It never calls the user's code. It records here what the
thread that polls (:mod:`.group_consumer`) has to do, and ``notify`` wakes that thread.

    UNJOINED   in no generation, wants to join   -> JOINING   join(), after what the user wanted done before
    JOINING    JoinGroup, then SyncGroup         -> JOINED    the coordinator gave a generation and an assignment
                                                 -> UNJOINED  failed for good, or the partitions kept are lost
    JOINED     heartbeats                        -> JOINING   join(), because the group rebalances or a caller asked
                                                 -> UNJOINED  unknown to the coordinator, stalled, or left

What each error code asks for is :data:`.protocol.AFTER`; whatever is not in it is a failure, which the next poll
raises. Requests that fail otherwise are repeated, after finding the coordinator again. The coordinator removes a member
that was silent for ``session.timeout.ms``, and answers its next heartbeat with an error.

Everything is under one lock but the requests themselves. ``leave()`` counts ``_epoch`` up, and what a request brings
that was sent under an older one is dropped.

Source: AbstractCoordinator; KIP-62 (thread and poll interval), KIP-345 (static members), KIP-394 (ids first).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from spark_kafkalite.client.group.assignors import GroupMemberSubscription
from spark_kafkalite.client.group.consumer_protocol import NO_GENERATION, Assignment
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.group.offsets import GroupMember
from spark_kafkalite.client.group.protocol import (
    ADVICE,
    AFTER,
    Then,
    heartbeat_request,
    join_request,
    leave_request,
    members_of,
    sync_request,
)
from spark_kafkalite.client.group.settings import GroupConfig
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.metadata import Node
from spark_kafkalite.client.network.retry import TO_BE_MENDED, Backoff, Deadline
from spark_kafkalite.client.waiting_lock import waiting_lock
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ClosedError, KafkaliteError, MemberIdRequired, UnsupportedVersion
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import name_of
from spark_kafkalite.wire.rights import refusal

_LOG = logging.getLogger("spark_kafkalite.client")

# A rebalance may take as long as its slowest member may; Java's client allows this much for the way.
_JOIN_GRACE_MS: Final = 5_000
_LEAVE_MS: Final = 5_000
# JoinGroup knows static members from this version on.
_STATIC_MEMBERS_SINCE: Final = 5


class Phase(Enum):
    """Where a member stands."""

    UNJOINED = auto()
    JOINING = auto()
    JOINED = auto()


class Joined(NamedTuple):
    """The outcome of a rebalance: this member's identity, how partitions were assigned, and its own share."""

    member: GroupMember
    protocol: str
    assignment: Assignment
    is_leader: bool


# Given the protocol's name and all members, returns each one's assignment; called on the leader, in the thread.
Assign = Callable[[str, Sequence[GroupMemberSubscription]], dict[str, Assignment]]


class Membership:
    """This member; see the module's text. ``wants_join``, ``lost`` and ``failure`` are for the thread that polls."""

    def __init__(
        self,
        config: GroupConfig,
        coordinator: CoordinatorLink,
        assign: Assign,
        notify: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._config = config
        self._client = coordinator.cluster.config
        self._coordinator = coordinator
        self._assign = assign
        self._notify = notify
        self._clock = clock
        self._lock = waiting_lock()
        self._changed = threading.Condition(self._lock)
        self._phase = Phase.UNJOINED
        self._member = GroupMember("", NO_GENERATION, config.group_instance_id)
        self._protocols: Sequence[tuple[str, bytes]] = ()
        self._keeps_partitions = False
        self._joined: Joined | None = None
        self._rejoin_reason = "first join"
        self._join_reason = ""
        self._lost: str | None = None
        self._failure: Exception | None = None
        self._epoch = 0
        self._node: Node | None = None
        self._connection: BrokerConnection | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._backoff = Backoff(self._client.retry_backoff_ms, self._client.retry_backoff_max_ms)
        self._not_before_s = 0.0
        self._heartbeat_s = 0.0
        self._polled_s = clock.monotonic_s()

    def __repr__(self) -> str:
        return f"Membership({self}, {self._phase.name})"

    def __str__(self) -> str:
        return f"group {self._config.group_id!r}, {self._member}, {self._coordinator}"

    # For the thread that polls --------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where the member stands at this moment."""
        return self._phase

    @property
    def member(self) -> GroupMember:
        """The member id that the coordinator gave, "" before, and the generation, -1 outside of any."""
        return self._member

    @property
    def wants_join(self) -> bool:
        """Whether :meth:`join` is due."""
        return self._phase is Phase.UNJOINED or (self._phase is Phase.JOINED and bool(self._rejoin_reason))

    @property
    def has_news(self) -> bool:
        """Whether a rebalance has ended, partitions are lost, or something failed."""
        return self._joined is not None or self._lost is not None or self._failure is not None

    @property
    def lost(self) -> str | None:
        """Why the partitions of the last assignment are not this member's any more, None while they are."""
        return self._lost

    def polled(self) -> None:
        """Note that the user polls."""
        self._polled_s = self._clock.monotonic_s()

    def join(self, protocols: Sequence[tuple[str, bytes]], *, keeps_partitions: bool) -> None:
        """Have the thread join with these subscriptions, by assignor; ``take_joined()`` has the outcome later."""
        with self._lock:
            self._check_open()
            self._protocols = protocols
            self._keeps_partitions = keeps_partitions
            self._phase = Phase.JOINING
            self._joined = self._lost = None
            self._join_reason, self._rejoin_reason = self._rejoin_reason, ""
            self._not_before_s = 0.0
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafkalite-group", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def take_joined(self) -> Joined | None:
        """Return the outcome of a rebalance, once."""
        with self._lock:
            joined, self._joined = self._joined, None
            return joined

    def take_failure(self) -> Exception | None:
        """Return why the member could not join or stay, once."""
        with self._lock:
            failure, self._failure = self._failure, None
            return failure

    def take_lost(self) -> None:
        """Note that the partitions have been given up."""
        with self._lock:
            self._lost = None

    def request_rejoin(self, reason: str) -> None:
        """Have the member join again, as a change of its subscription or of the topics asks for."""
        with self._lock:
            self._rejoin_reason = self._rejoin_reason or reason

    def leave(self, reason: str, deadline: Deadline) -> None:
        """Leave the group at once, whatever is going on; a static member is only forgotten here.

        A coordinator that cannot be reached is left to find out by itself.
        """
        with self._lock:
            member, connection = self._reset("first join"), self._connection
            self._connection = None
            self._lost = self._failure = None
            self._changed.notify_all()
        if connection is not None:
            connection.close()
        self._tell_leaving(member, reason, deadline)

    def _reset(self, rejoin_reason: str) -> GroupMember:
        """Be in no generation and under no id (the lock is held); returns what the member was."""
        member, self._member = self._member, GroupMember("", NO_GENERATION, self._config.group_instance_id)
        self._epoch += 1
        self._phase = Phase.UNJOINED
        self._joined = None
        self._rejoin_reason = rejoin_reason
        return member

    def _tell_leaving(self, member: GroupMember, reason: str, deadline: Deadline) -> None:
        if not member.member_id or member.group_instance_id is not None:
            return
        request = leave_request(self._config, member, reason)
        try:
            self._coordinator.attempt(request, deadline)
        except KafkaliteError as error:
            _LOG.info("group %r: %s could not leave its group cleanly: %s", self._config.group_id, member, error)

    def close(self) -> None:
        """End the thread, without leaving the group; ``wait_closed()`` waits for it."""
        with self._lock:
            self._closed = True
            connection = self._connection
            self._changed.notify_all()
        if connection is not None:
            connection.close()

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; returns whether it has."""
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer has been closed")

    # The thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (work := self._next_work()) is not None:
                epoch, step = work
                try:
                    step(epoch)
                except ClosedError:
                    return
                except Exception as error:
                    if not self._try_again(epoch, error):
                        self._fail(epoch, error)
        finally:
            connection = self._connection
            if connection is not None:
                connection.close()

    def _next_work(self) -> tuple[int, Callable[[int], None]] | None:
        """Wait for something to do; None to end."""
        with self._lock:
            while not self._closed:
                now_s = self._clock.monotonic_s()
                if self._phase is Phase.JOINING:
                    work, at_s = self._join_group, self._not_before_s
                elif self._phase is Phase.JOINED:
                    stalled_s = self._polled_s + self._config.max_poll_interval_ms / 1000
                    work, at_s = self._heartbeat, max(self._heartbeat_s, self._not_before_s)
                    if stalled_s < at_s:
                        work, at_s = self._leave_stalled, stalled_s
                else:
                    self._changed.wait()
                    continue
                if now_s >= at_s:
                    return self._epoch, work
                self._changed.wait(at_s - now_s)
            return None

    def _try_again(self, epoch: int, error: Exception) -> bool:
        """Have the step done again after a pause, if the error is one that may pass."""
        if not isinstance(error, KafkaliteError):
            return False
        if isinstance(error, TO_BE_MENDED) and self._phase is Phase.JOINED:
            # poll() raises it. A password that is put right before the session ends costs the member nothing.
            with self._lock:
                if self._epoch == epoch:
                    self._failure = error
            self._notify()
        elif not error.retriable:
            return False
        self._pause(epoch, error, find=True)
        return True

    def _pause(self, epoch: int, error: KafkaliteError, *, find: bool) -> None:
        with self._lock:
            # leave() closes the connection, which says nothing of the coordinator.
            if self._epoch != epoch or self._closed:
                return
            if not self._backoff.attempts:
                _LOG.warning("%s: %s; it is tried again", self, error)
            self._not_before_s = self._clock.monotonic_s() + self._backoff.next_s()
        if find:
            self._coordinator.forget(self._node)
            self._drop_connection()

    def _fail(self, epoch: int, error: Exception) -> None:
        with self._lock:
            if self._epoch != epoch or self._closed:
                return
            self._reset("the last try failed")
            self._failure = error
            self._lost = str(error)
        self._notify()

    def _exchange(self, epoch: int, request: Any, timeout_ms: int) -> Any:
        """Send a request and wait for its answer. Raises BrokerUnreachable."""
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        connection = self._connection
        if connection is None or connection.closed:
            node, connection = self._coordinator.connect(deadline.earlier_of(self._client.request_timeout_ms))
            with self._lock:
                if self._epoch != epoch or self._closed:
                    connection.close()
                self._node, self._connection = node, connection
        if self._config.group_instance_id is not None and connection.version(ApiKey.JOIN_GROUP) < _STATIC_MEMBERS_SINCE:
            raise UnsupportedVersion(
                f"group.instance.id={self._config.group_instance_id}: broker {connection.name} does not know static "
                "members (JoinGroup version 5); leave the setting out"
            )
        return connection.request(request.API_KEY, request, deadline)

    def _after(self, epoch: int, request: Any, code: int) -> None:
        """Do what an error code asks for."""
        name = request.API_KEY.api_name
        then = AFTER[request.API_KEY].get(code)
        if then is None or then in (Then.AGAIN, Then.FIND):
            advice = ADVICE.get(code)
            text = f"{name} is refused" + (f": {advice}" if advice else "")
            if then is None:
                raise refusal(request.API_KEY, code, f"{self}: {text}")
            self._pause(epoch, refusal(request.API_KEY, code, text), find=then is Then.FIND)
            return
        with self._lock:
            if self._epoch != epoch:
                return
            if then is not Then.REJOIN:
                self._lose(name_of(code), keep_id=then is Then.LOSE)
            elif self._phase is Phase.JOINED:
                # In the middle of a rebalance the next one is joined as this one was, without the user's part.
                self._rejoin_reason = self._rejoin_reason or "the group rebalances"
        self._notify()

    def _lose(self, reason: str, *, keep_id: bool) -> None:
        """Fall out of the generation; the lock is held."""
        joining = self._phase is Phase.JOINING
        _LOG.warning("%s: out of the group's generation: %s", self, reason)
        member = self._reset("the member fell out of the group's generation")
        if keep_id:
            self._member = member._replace(generation_id=NO_GENERATION)
        if joining and not self._keeps_partitions:
            # There is nothing that the user would have to give up: on with it.
            self._phase = Phase.JOINING
            self._rejoin_reason = ""
        else:
            self._lost = reason

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Joining --------------------------------------------------------------------------------------------------------

    def _join_group(self, epoch: int) -> None:
        config = self._config
        with self._lock:
            member, protocols, reason = self._member, self._protocols, self._join_reason
        request = join_request(config, member, protocols, reason)
        timeout_ms = max(self._client.request_timeout_ms, config.max_poll_interval_ms + _JOIN_GRACE_MS)
        answer = self._exchange(epoch, request, timeout_ms)
        if answer.error_code == MemberIdRequired.code:
            with self._lock:
                if self._epoch == epoch:
                    self._member = member._replace(member_id=answer.member_id)
            return
        if answer.error_code:
            self._after(epoch, request, answer.error_code)
            return
        joined = GroupMember(answer.member_id, answer.generation_id, config.group_instance_id)
        with self._lock:
            if self._epoch != epoch:
                return
            self._member = joined
        is_leader = answer.leader == answer.member_id
        assignments: dict[str, Assignment] = {}
        if is_leader:
            assignments = self._assign(answer.protocol_name, members_of(answer))
            if answer.skip_assignment:
                # A static leader that came back: it has to know what is dealt out, and the group keeps it.
                assignments = {}
        self._sync(epoch, joined, answer.protocol_name, assignments, is_leader, timeout_ms)

    def _sync(
        self,
        epoch: int,
        joined: GroupMember,
        protocol: str,
        assignments: dict[str, Assignment],
        is_leader: bool,
        timeout_ms: int,
    ) -> None:
        request = sync_request(self._config, joined, protocol, assignments)
        answer = self._exchange(epoch, request, timeout_ms)
        if answer.error_code:
            self._after(epoch, request, answer.error_code)
            return
        assignment = Assignment.decode(answer.assignment)
        with self._lock:
            if self._epoch != epoch:
                return
            self._phase = Phase.JOINED
            self._joined = Joined(joined, protocol, assignment, is_leader)
            self._heartbeat_s = self._clock.monotonic_s() + self._config.heartbeat_interval_ms / 1000
            self._succeeded()
        self._notify()

    def _succeeded(self) -> None:
        self._backoff.reset()
        self._not_before_s = 0.0

    # Staying --------------------------------------------------------------------------------------------------------

    def _heartbeat(self, epoch: int) -> None:
        config = self._config
        request = heartbeat_request(config, self._member)
        # The next one is due an interval after this one was sent, however long its answer takes.
        sent_s = self._clock.monotonic_s()
        answer = self._exchange(epoch, request, min(self._client.request_timeout_ms, config.session_timeout_ms))
        with self._lock:
            self._heartbeat_s = sent_s + config.heartbeat_interval_ms / 1000
            if self._phase is not Phase.JOINED or self._epoch != epoch:
                # join() or leave() came in between: this answer is about what was.
                return
            if not answer.error_code:
                self._succeeded()
        if answer.error_code:
            self._after(epoch, request, answer.error_code)

    def _leave_stalled(self, epoch: int) -> None:
        """Leave because no thread polls, so that others get the partitions."""
        with self._lock:
            if self._epoch != epoch or self._phase is not Phase.JOINED:
                return
            text = (
                f"{self}: poll() was not called for max.poll.interval.ms={self._config.max_poll_interval_ms}; the "
                "member leaves the group. Raise the setting, or do less between polls (max.poll.records)"
            )
            member = self._reset("poll() came back")
            self._lost = text
        _LOG.warning("%s", text)
        deadline = Deadline.after_ms(_LEAVE_MS, self._clock)
        self._tell_leaving(member, "poll() was not called for max.poll.interval.ms", deadline)
        self._notify()
