"""What a leader knows of its followers under one leader epoch, and what follows. Pure: values and times in, values out.

:class:`InSyncReplicas` takes the states that the registry has, the followers' fetches and the log's growth. It returns
the end of the committed records (:meth:`InSyncReplicas.committed_end_offset`), and the change of the ISR that is due
(:meth:`InSyncReplicas.due`). The rules, as docs/replication.md numbers them:

- **R2** The registry has the replicas in another node than the state, and both come apart: of each the newer one counts
  (``PartitionState.merged_with``). A broker that is no longer a replica leaves the ISR at once. The leader forgets what
  that broker has reported.
- **R4** A leaving member counts until the registry has confirmed the change. A joining member counts from the moment of
  the proposal. So the members that count always include the registry's ISR, and with it each replica that can be
  elected. One change is under way at a time. A change with an unknown outcome may have been written or not, so it stays
  under way until the leader has read the state again (:meth:`InSyncReplicas.resolved`).
- **R5** A change is written at the version of the state that it was made of. Another version means another state. The
  leader reads that state, and adopts it if it has the same epoch. Otherwise the leader proposes nothing more, and ends
  when the registry's change arrives.
- **R11** A member is an incarnation of a broker. Reports of another incarnation do not count, unless its registration
  proves that it has the log of the former one (R12). A member that has died or has been replaced by another incarnation
  leaves at once. The new incarnation joins like any replica that has caught up. A member whose log is damaged leaves in
  the same way, and is not eligible (``healing``).
- **R16** While the confirmed ISR is smaller than ``required`` nothing more is committed. A member whose leaving causes
  that, or that leaves meanwhile, stays eligible. So nothing is committed while there is an eligible replica outside the
  ISR, because that replica would lack the records.

A live member leaves when it has not been at the end of the log for the maximal lag. It has caught up when it fetches
from the end, or from where the end was at its previous fetch (Kafka's rule). Each fetch of its session repeats the last
position of every partition that the request does not name. A new member has the whole maximal lag.

A follower joins when it has everything below the high watermark and has reached the epoch's first offset. The high
watermark of a lone leader runs with the log's end, which no follower would ever meet under load: it waits a moment for
one that is nearly there. Source: kafka.cluster.Partition (isFollowerInSync, maybeIncrementLeaderHW) of Apache Kafka
3.9, KIP-497, KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, Incarnation
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState

# How long the high watermark waits for a follower that is about to join and has fetched just now.
HELD_S: Final = 1.0
_NEVER_S: Final = float("-inf")

LiveBrokers = Callable[[], Mapping[int, BrokerInfo]]


class AsksFollowers(Protocol):
    """What waits for a follower's next request; see ``replication.leadership_confirmation``."""

    def look(self) -> None:
        """Check the log ends that the request reports."""


class FetchClock(Protocol):
    """A follower's fetch session, as far as a leader asks. Times are the loop's seconds.

    ``last_fetch_s``: when its last request came. ``heard_s``: when the latest answer was made that the follower had
    certainly got when it sent that request.
    """

    last_fetch_s: float
    heard_s: float

    def name_again(self) -> None:
        """Have the follower name all its partitions again, by another session."""

    def hurry(self, question: AsksFollowers) -> None: ...

    def hurry_no_more(self, question: AsksFollowers) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class IsrChange:
    """A change of the ISR that is to be written: ``after``, if the state's version is still that of ``before``."""

    before: PartitionState
    after: PartitionState


class _Progress:
    """What one incarnation of a follower has reported. Times are the loop's seconds."""

    __slots__ = (
        "caught_up_s",
        "damage_stage",
        "end_offset",
        "fetched_s",
        "held_until_s",
        "incarnation",
        "is_damaged",
        "is_level",
        "log_end_then",
        "must_catch_up",
        "session",
    )

    def __init__(self, incarnation: Incarnation = UNKNOWN_INCARNATION) -> None:
        self.incarnation = incarnation
        # Its log's end. Who has not been heard of under this epoch counts as empty.
        self.end_offset = 0
        # Whether its log lacks something that it had, and how often that has changed in its process.
        self.is_damaged = False
        self.damage_stage = 0
        self.caught_up_s = _NEVER_S
        # Its last fetch, and where the leader's log ended then.
        self.fetched_s = _NEVER_S
        self.log_end_then = 0
        self.session: FetchClock | None = None
        # Whether it has had everything since its last fetch, so that each fetch of its session says so again.
        self.is_level = False
        # Until when the high watermark waits for it to join.
        self.held_until_s = _NEVER_S
        # It was slow as a member, so it joins again from the end of the log only.
        self.must_catch_up = False


_UNHEARD: Final = _Progress()


class InSyncReplicas:
    """See the module's text. ``state`` is the last one that the registry is known to have had."""

    __slots__ = (
        "_contested_by",
        "_counted",
        "_followers",
        "_level",
        "_live",
        "_me",
        "_unregistered",
        "change",
        "epoch_start_offset",
        "is_superseded",
        "keeps_eligible",
        "required",
        "state",
    )

    def __init__(self, me: BrokerId, epoch_start_offset: int, live: LiveBrokers) -> None:
        """Lead in an epoch that begins at ``epoch_start_offset``; ``live`` gives the registered brokers."""
        self._me = me
        self._live = live
        self.epoch_start_offset = epoch_start_offset
        self.state = PartitionState(())
        # The change that is being written.
        self.change: IsrChange | None = None
        # Whether the registry has a state of another epoch: then this one is over, and its news are on their way.
        self.is_superseded = False
        # How many members a commit takes, and whether it takes them (high.watermark.requires.min.insync).
        self.required = 1
        self.keeps_eligible = True
        self._followers: dict[int, _Progress] = {}
        # What processes have said that were not registered then, of brokers whose registered ones have been heard of:
        # ended ones, by what was still on its way, and such as register just now.
        self._unregistered: dict[int, _Progress] = {}
        # The last broker that has contested where the logs part, until it fetches what fits.
        self._contested_by: BrokerId | None = None
        # Of the maximal ISR without this broker, and of those that are waited for.
        self._counted: list[_Progress] = []
        # Who has been level since the log has last grown.
        self._level: list[_Progress] = []

    # The registry ---------------------------------------------------------------------------------------------------

    def take_state(self, state: PartitionState, now_s: float) -> None:
        """Adopt a state of this epoch from the registry, as far as it is newer than the last one (R2).

        With a newer state a change under way is over: either this is what it wrote, or the version is not the one that
        it needs. Newer replicas alone end no change.
        """
        before, state = self.state, self.state.merged_with(state)
        if state is before:
            return
        if state.replicas != before.replicas:
            self._forget_all_but(state.replicas, now_s)
        if state.order == before.order:
            self.state = state
            self._recount()
            return
        proposed = before if self.change is None else self.change.after
        for broker in before.isr:
            if broker in proposed.isr and broker not in state.isr:
                follower = self._followers.get(broker)
                if follower is not None and follower.incarnation == before.incarnations.get(broker):
                    # It has taken itself out, and says by its next fetch that it wants to come back. What it has said
                    # so far may be of before that, or of after it: this state may come late.
                    del self._followers[broker]
                    if follower.session is not None:
                        follower.session.name_again()
                    if follower.damage_stage:
                        # What it said before its log was damaged, or healed, stays without weight.
                        self._followers[broker] = left = _Progress(follower.incarnation)
                        left.is_damaged, left.damage_stage = follower.is_damaged, follower.damage_stage
                        left.must_catch_up = True
        self._adopt(state, now_s)

    def _forget_all_but(self, replicas: Collection[BrokerId], now_s: float) -> None:
        """Forget the reports of brokers that are no replicas: one that comes back may have set its log aside."""
        for heard in (self._followers, self._unregistered):
            for broker in [each for each in heard if each not in replicas]:
                del heard[broker]
        for broker in self.state.isr:
            if broker not in replicas:
                # It counts, as an empty log, until the registry says that it has left.
                self._followers[broker] = follower = _Progress()
                follower.caught_up_s = now_s

    def _adopt(self, state: PartitionState, now_s: float) -> None:
        for broker in state.isr:
            if broker not in self.state.isr:
                follower = self._followers.get(broker)
                if follower is None:
                    follower = self._followers[broker] = _Progress()
                follower.caught_up_s = max(follower.caught_up_s, now_s)
        self.state, self.change = state, None
        self._recount()

    def written(self, change: IsrChange, version: int, zxid: int, now_s: float) -> None:
        """Adopt a change that has been written, as the state's ``version``, in transaction ``zxid``."""
        if self.change is change:
            after = replace(change.after, version=version, modified_zxid=zxid)
            self._adopt(after.merged_with(self.state), now_s)

    def resolved(self, change: IsrChange, state: PartitionState | None, now_s: float) -> None:
        """Adopt the state that was read after ``change`` had failed, or had an unknown outcome; None: it is gone.

        It must have been read when the change could not be written any more.
        """
        if state is None or state.leader != self._me or state.leader_epoch != self.state.leader_epoch:
            # Whoever was added may be among the others' ISR; nothing is decided here any more.
            self.is_superseded = True
            return
        self.take_state(state, now_s)
        if self.change is change:
            self.change = None
            self._recount()

    # Followers and the log ------------------------------------------------------------------------------------------

    def fetched(
        self,
        broker: int,
        incarnation: Incarnation,
        offset: int,
        log_end_offset: int,
        high_watermark: int,
        now_s: float,
        session: FetchClock | None = None,
        damage_stage: int = 0,
    ) -> float | None:
        """Note that a follower has everything below ``offset``, which is not beyond the log's end.

        ``damage_stage``: how often its damage had changed at the time of the report. A report from before the last
        change, or a delayed one, does not count: the follower may have truncated its log since. Returns in how many
        seconds :meth:`due` should be asked; None when this makes nothing due.
        """
        if incarnation == UNKNOWN_INCARNATION:
            return None
        follower = self._followers.get(broker)
        if follower is None or follower.incarnation != incarnation:
            follower = self._first_heard_of(broker, incarnation)
        if damage_stage != follower.damage_stage:
            return None
        if broker == self._contested_by:
            self._contested_by = None
        follower.end_offset = offset
        follower.session = session
        follower.is_level = offset >= log_end_offset
        if follower.is_level:
            # One that goes to and fro is there once.
            if follower not in self._level:
                self._level.append(follower)
            follower.caught_up_s = now_s
            follower.must_catch_up = False
        elif offset >= follower.log_end_then and follower.fetched_s > follower.caught_up_s:
            follower.caught_up_s = follower.fetched_s
            follower.must_catch_up = False
        follower.fetched_s, follower.log_end_then = now_s, log_end_offset
        if follower in self._counted and follower.held_until_s == _NEVER_S:
            return None
        return self._joining(broker, follower, high_watermark, now_s)

    def damaged(self, broker: int, incarnation: Incarnation, stage: int, *, is_damaged: bool) -> bool:
        """Note the damage that a follower reports for its log; return whether that is news.

        While it is damaged it joins nothing, and it leaves the ISR and the eligible replicas (R11). The offset that it
        has reported is forgotten until its next report: it may have truncated its log since.
        """
        if incarnation == UNKNOWN_INCARNATION or self.is_superseded:
            return False
        follower = self._followers.get(broker)
        if follower is None or follower.incarnation != incarnation:
            follower = self._first_heard_of(broker, incarnation)
        if stage <= follower.damage_stage:
            return False
        follower.damage_stage, follower.is_damaged = stage, is_damaged
        follower.end_offset, follower.is_level = 0, False
        # So that the leader does not take it for a log that ends at 0, and accepts as lost what this one has.
        follower.fetched_s, follower.log_end_then = _NEVER_S, 0
        follower.held_until_s = _NEVER_S
        if follower in self._level:
            self._level.remove(follower)
        self._recount()
        return True

    def is_uncounted(self, broker: int, incarnation: Incarnation, stage: int) -> bool:
        """Whether a follower is known to be damaged, as of this stage, and nothing is committed, or can be elected, for
        which its log counts: neither the ISR that the registry has nor one that is being written names it."""
        follower = self._followers.get(broker)
        if follower is None or follower.incarnation != incarnation or self.is_superseded:
            return False
        if not follower.is_damaged or follower.damage_stage != stage:
            return False
        states = (self.state,) if self.change is None else (self.state, self.change.after)
        return not any(broker in each.isr or broker in each.eligible for each in states)

    def damaged_followers(self) -> frozenset[int]:
        """Return the followers that have reported damaged logs."""
        return frozenset(broker for broker, each in self._followers.items() if each.is_damaged)

    def end_offset_of(self, broker: int) -> int | None:
        """Return the end of a registered follower's log, None when the follower has not reported it under this
        epoch."""
        follower, info = self._followers.get(broker), self._live().get(broker)
        if (
            follower is None
            or info is None
            or follower.incarnation != info.incarnation
            or follower.fetched_s == _NEVER_S
        ):
            return None
        return follower.end_offset

    def near(self, now_s: float) -> frozenset[int]:
        """Return the followers that are at the log's end, or have been there less than a moment ago."""
        return frozenset(
            broker
            for broker, each in self._followers.items()
            if each.fetched_s > _NEVER_S and (each.is_level or each.caught_up_s >= now_s - HELD_S)
        )

    def _first_heard_of(self, broker: int, incarnation: Incarnation) -> _Progress:
        """Return what is known of a process other than the one with the latest fetch."""
        known, info = self._followers.get(broker), self._live().get(broker)
        other = self._unregistered.get(broker)
        if other is None or other.incarnation != incarnation:
            other = _Progress(incarnation)
        if known is not None and info is not None and info.incarnation == known.incarnation:
            # The registered process's fetches need not name the partition again: what they have said stays.
            self._unregistered[broker] = other
        else:
            self._follow(broker, other)
            self._recount()
        return other

    def _follow(self, broker: int, follower: _Progress) -> None:
        former = self._followers.get(broker)
        if former is not None and self.is_member(broker, follower.incarnation):
            follower.caught_up_s = max(follower.caught_up_s, former.caught_up_s)
        self._followers[broker] = follower
        self._unregistered.pop(broker, None)

    def _follow_registered(self) -> None:
        """Apply the reports that processes sent before their registrations were known."""
        live = self._live()
        for broker, follower in list(self._unregistered.items()):
            info = live.get(broker)
            if info is not None and info.incarnation == follower.incarnation:
                self._follow(broker, follower)

    def is_member(self, broker: int, incarnation: Incarnation) -> bool:
        """Whether this incarnation has the log of the one that the confirmed ISR names (R11, R12)."""
        member = self.state.incarnations.get(BrokerId(broker), UNKNOWN_INCARNATION)
        return broker in self.state.isr and self._has_log_of(broker, incarnation, member)

    def is_eligible(self, broker: int, incarnation: Incarnation) -> bool:
        """Whether this incarnation has the log of the one that the confirmed state names as eligible (R16)."""
        named = self.state.eligible.get(BrokerId(broker), UNKNOWN_INCARNATION)
        return self._has_log_of(broker, incarnation, named)

    def _has_log_of(self, broker: int, incarnation: Incarnation, named: Incarnation) -> bool:
        if UNKNOWN_INCARNATION in (named, incarnation):
            return False
        info = self._live().get(broker)
        return incarnation == named or (info is not None and info.incarnation == incarnation and info.has_log_of(named))

    def may_succeed(self, broker: int, incarnation: Incarnation) -> bool:
        """Whether this registered process has a replica whose log lacks nothing, as far as is known (R24)."""
        info, follower = self._live().get(broker), self._followers.get(broker)
        is_damaged = follower is not None and follower.is_damaged
        return (
            info is not None
            and info.incarnation == incarnation != UNKNOWN_INCARNATION
            and broker in self.state.replicas
            and not is_damaged
        )

    def unheard(self, claimant: int) -> frozenset[int]:
        """Return the members and eligible replicas, without ``claimant`` and this broker, that have not reported under
        this epoch that their logs fit this one."""
        named = {*self.state.isr, *self.state.eligible} - {self._me, claimant}
        return frozenset(broker for broker in named if self.end_offset_of(broker) is None)

    def contested(self, broker: int, now_s: float) -> None:
        """Note that a follower contests what its log would be cut to.

        A member waits for this leader, so it is not slow. While a registered replica outside the ISR contests, no
        replica joins, and an eligible one stays eligible: the ISR would be large enough, and what only that replica has
        would not count.
        """
        self._contested_by = BrokerId(broker)
        follower = self._followers.get(broker)
        if follower is not None:
            follower.caught_up_s = now_s

    def _joining(self, broker: int, follower: _Progress, high_watermark: int, now_s: float) -> float | None:
        if self.is_superseded or not self._may_join(broker, follower):
            return None
        if follower.end_offset >= high_watermark:
            return 0.0 if self.change is None else None
        if follower.caught_up_s >= now_s - HELD_S:
            is_new = follower.held_until_s == _NEVER_S
            follower.held_until_s = now_s + HELD_S
            if is_new:
                self._recount()
                return HELD_S
        return None

    def _may_join(self, broker: int, follower: _Progress) -> bool:
        """Whether a follower is fit to be a member, once it has what is committed."""
        info = self._live().get(broker)
        return (
            info is not None
            and info.incarnation == follower.incarnation != UNKNOWN_INCARNATION
            and broker in self.state.replicas
            and not follower.must_catch_up
            and not follower.is_damaged
            and follower.end_offset >= self.epoch_start_offset
        )

    def appended(self) -> None:
        """Note that the log's end has moved: a follower at the old end had caught up when its session fetched last."""
        for follower in self._level:
            if follower.is_level and follower.session is not None:
                follower.caught_up_s = max(follower.caught_up_s, follower.session.last_fetch_s)
            follower.is_level = False
        self._level.clear()

    @property
    def held_until_s(self) -> float | None:
        """When the high watermark waits no longer for a follower that is about to join; None when it does not wait."""
        return min(
            (each.held_until_s for each in self._followers.values() if each.held_until_s > _NEVER_S), default=None
        )

    # What follows ---------------------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether the log's end is the only one that counts."""
        return not self._counted

    def counted_sessions(self) -> list[FetchClock | None]:
        """Return the fetch sessions of all others whose log ends count; None for one that has not fetched yet."""
        return [follower.session for follower in self._counted]

    def counts(self, broker: int) -> bool:
        """Whether commits wait for a broker: it is in the maximal ISR, or the high watermark waits for it to join."""
        return broker in self.state.isr or self._followers.get(broker) in self._counted

    @property
    def is_enough(self) -> bool:
        """Whether the confirmed ISR is as large as a commit takes (R16)."""
        return len(self.state.isr) >= self.required

    @property
    def may_commit(self) -> bool:
        """Whether the high watermark may move (R16)."""
        return not self.state.eligible and (self.is_enough or not self.keeps_eligible)

    def committed_end_offset(self, log_end_offset: int) -> int:
        """Return the smallest log end of the maximal ISR; only where :attr:`may_commit` is it the high watermark."""
        for follower in self._counted:
            if follower.end_offset < log_end_offset:
                log_end_offset = follower.end_offset
        return log_end_offset

    def _recount(self) -> None:
        """See whose log ends count: R4's maximal ISR, of R11's incarnations, and those that are waited for."""
        counted = {}
        for broker in self.state.isr:
            if broker != self._me:
                follower = self._followers.get(broker, _UNHEARD)
                counted[broker] = follower if self.is_member(broker, follower.incarnation) else _UNHEARD
        if self.change is not None:
            after = self.change.after
            for broker in after.isr:
                if broker not in counted and broker != self._me:
                    follower = self._followers.get(broker, _UNHEARD)
                    counts = follower.incarnation == after.incarnations[broker]
                    counted[broker] = follower if counts else _UNHEARD
        for number, follower in self._followers.items():
            if number in counted:
                follower.held_until_s = _NEVER_S
            elif follower.held_until_s != _NEVER_S:
                counted[BrokerId(number)] = follower
        self._counted = list(counted.values())

    def release(self, now_s: float) -> None:
        """Wait no longer for followers that were about to join: they have not fetched since, or cannot join now."""
        released = False
        for broker, follower in self._followers.items():
            if follower.held_until_s != _NEVER_S and (
                now_s >= follower.held_until_s or not self._may_join(broker, follower)
            ):
                follower.held_until_s = _NEVER_S
                released = True
        if released:
            self._recount()

    def due(self, now_s: float, high_watermark: int, lag_max_s: float) -> IsrChange | None:
        """Begin the change that is due, if any, and if none is under way; it counts from now on, and is to be written.

        ``lag_max_s`` is replica.lag.time.max.ms; infinite where no member is to leave for being slow.
        """
        self.release(now_s)
        # Registrations may have changed since it was last seen whose fetches count.
        self._follow_registered()
        self._recount()
        if self.change is not None or self.is_superseded:
            return None
        state = self.state
        if self._me not in state.replicas:
            # Who elects next has all that is to be written.
            return None
        members = self._staying(now_s, lag_max_s)
        is_contested = self._contested_by in self._live() and self._contested_by not in state.isr
        for broker in state.replicas:
            follower = self._followers.get(broker)
            if broker in members or is_contested or follower is None or follower.end_offset < high_watermark:
                continue
            if self._may_join(broker, follower):
                members[broker] = follower.incarnation
        isr = tuple(broker for broker in state.isr if broker in members)
        isr += tuple(broker for broker in members if broker not in state.isr)
        eligible: dict[BrokerId, Incarnation] = {}
        if is_contested or (self.keeps_eligible and len(isr) < self.required):
            left = {broker: state.incarnations[broker] for broker in state.isr if broker in state.incarnations}
            gone = {*members, *self.damaged_followers()}
            before = {**state.eligible, **left}
            eligible = {
                broker: which for broker, which in before.items() if broker not in gone and broker in state.replicas
            }
        incarnations = {broker: which for broker, which in members.items() if which != UNKNOWN_INCARNATION}
        if (isr, incarnations, eligible) == (state.isr, state.incarnations, state.eligible):
            return None
        after = replace(state, isr=isr, incarnations=incarnations, eligible=eligible)
        self.change = IsrChange(state, after)
        self._recount()
        return self.change

    def _staying(self, now_s: float, lag_max_s: float) -> dict[BrokerId, Incarnation]:
        """Return the members that stay, with the incarnation that has each one's log now."""
        live, staying = self._live(), {}
        for broker in self.state.isr:
            if broker not in self.state.replicas:
                continue
            member = self.state.incarnations.get(broker, UNKNOWN_INCARNATION)
            info = live.get(broker)
            proven = info is not None and info.has_log_of(member)
            if broker == self._me or (proven and not self._is_slow(broker, now_s, lag_max_s)):
                staying[broker] = info.incarnation if info is not None and proven else member
        return staying

    def _is_slow(self, broker: int, now_s: float, lag_max_s: float) -> bool:
        follower = self._followers[broker]
        if follower.is_damaged:
            return True
        if follower.is_level or now_s - follower.caught_up_s <= lag_max_s:
            return False
        follower.must_catch_up = True
        return True
