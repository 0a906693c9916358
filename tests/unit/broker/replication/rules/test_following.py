"""The rules of a follower over real logs: whatever happened before, it ends with its leader's log."""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.broker.replication.rules.following import (
    Append,
    Asked,
    CheckEpochs,
    Contested,
    Following,
    LeaderAnswer,
    OwnState,
    Refused,
    RefuseLogStart,
    SetAside,
    StartAnew,
    StopFollowing,
    Truncate,
)
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.epoch_completion import epoch_completion
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.steps import run_steps
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_fully, truncate_to
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import make_batch, make_stored_batch

TP = TopicPartition("t", 0)
OUT_OF_RANGE, FENCED = 1, 74


def new_log(name: str, **settings: object) -> PartitionLog:
    fs = MemoryFs()
    fs.make_directories(f"/{name}")
    fs.sync_directory("/")
    config = TopicConfig.from_properties({key.replace("_", "."): value for key, value in settings.items()})
    host = LogHost.alone(OpenFiles(fs), f"/{name}", ManualClock())
    return PartitionLog.create(host, f"/{name}/t-0", TP, b"i" * 16, config)


def log_with(*epochs: tuple[int, int]) -> PartitionLog:
    """A log with (leader epoch, number of records), each record a batch of its own."""
    log = new_log("follower")
    for epoch, count in epochs:
        for _ in range(count):
            copy_at_once(log, make_stored_batch(log.log_end_offset, epoch))
    return log


def answer_of(
    leader: PartitionLog, high_watermark: int, asked: Asked, max_bytes: int = 200
) -> tuple[LeaderAnswer, bytes]:
    """What a leader says: out of range, where the logs part, or records."""
    start = leader.log_start_offset
    if asked.fetch_offset < start:
        return LeaderAnswer(OUT_OF_RANGE, log_start_offset=start, log_end_offset=leader.log_end_offset), b""
    if asked.last_fetched_epoch >= 0:
        epoch, end = leader.end_offset_for_epoch(asked.last_fetched_epoch)
        if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
            # As the leader's ``contest`` does.
            if asked.high_watermark >= 0 or not leader.ends_epoch(epoch, end):
                run_steps(epoch_completion(leader))
            epoch, end = leader.end_offset_for_epoch(asked.last_fetched_epoch)
        if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
            return LeaderAnswer(0, high_watermark, start, diverging=(epoch, end)), b""
    if asked.fetch_offset > leader.log_end_offset:
        return LeaderAnswer(OUT_OF_RANGE, log_start_offset=start, log_end_offset=leader.log_end_offset), b""
    found = leader.read(asked.fetch_offset, max_bytes, leader.log_end_offset)
    return LeaderAnswer(0, high_watermark, start, found is not None), found.read() if found is not None else b""


NOBODY = OwnState()


def take(
    following: Following,
    asked: Asked,
    answer: LeaderAnswer,
    records: bytes,
    log: PartitionLog,
    own: OwnState = NOBODY,
) -> None:
    """What the follower's shell does, at once."""
    match following.answered(asked, answer, log, 0.0, own):
        case CheckEpochs():
            run_steps(epoch_completion(log))
            following.cut()
        case Append():
            copy_at_once(log, records)
            following.appended()
        case Truncate(offset):
            assert offset < log.log_end_offset
            truncate_to(log, offset)
            following.cut()
        case StartAnew(offset):
            truncate_fully(log, offset)
            following.cut()


def contents(log: PartitionLog, from_offset: int) -> bytes:
    data, offset = b"", from_offset
    while (found := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        data += found.read()
        offset = kernel.scan_headers(data)[-1].next_offset
    return data


def ask(following: Following, log: PartitionLog, now_s: float = 0.0) -> Asked:
    asked = following.ask(log, now_s, flushed_only=False)
    assert asked is not None
    return asked


def test_asks_for_what_comes_after_its_own_end_under_the_epoch_of_its_last_record() -> None:
    following = Following(1.0)
    assert ask(following, new_log("follower")) == Asked(0, -1, 0)
    log = log_with((0, 2), (3, 1))
    assert ask(following, log) == Asked(3, 3, 0)
    # It has led under epoch 5 and appended nothing.
    log.assign_leader_epoch(5)
    assert ask(following, log) == Asked(3, 3, 0)
    # An empty answer changes nothing (KAFKA-15510).
    assert following.answered(Asked(3, 3, 0), LeaderAnswer(0, 3, 0), log, 0.0) is None
    assert ask(following, log) == Asked(3, 3, 0)


def test_appends_after_an_epoch_in_which_it_wrote_nothing_what_is_of_an_older_one() -> None:
    log = log_with((0, 2), (3, 1))
    log.assign_leader_epoch(5)
    copy_at_once(log, make_stored_batch(3, 3))
    copy_at_once(log, make_stored_batch(4, 6))
    assert log.epochs.entries == [(0, 0), (3, 2), (6, 4)]
    log.flush()
    assert log.end_offset_for_epoch(5) == (3, 4)


def test_records_count_only_behind_the_own_end() -> None:
    log, following = log_with((0, 3)), Following(1.0)
    asked = ask(following, log)
    assert following.answered(asked, LeaderAnswer(0, 9, 0, has_records=True), log, 0.0) == Append()
    # Nothing is asked while the append is under way, and another answer to the same brings nothing.
    assert following.ask(log, 0.0, flushed_only=False) is None
    assert following.answered(asked, LeaderAnswer(0, 9, 0, has_records=True), log, 0.0) is None
    copy_at_once(log, make_stored_batch(3, 0))
    following.appended()
    assert following.answered(asked, LeaderAnswer(0, 9, 0, has_records=True), log, 0.0) is None
    assert ask(following, log).fetch_offset == 4


def test_unflushed_records_are_not_acknowledged_where_that_means_flushed() -> None:
    log, following = log_with((0, 3)), Following(1.0)
    assert following.ask(log, 0.0, flushed_only=True) is None
    log.flush()
    assert following.ask(log, 0.0, flushed_only=True) == Asked(3, 0, 0)


def test_the_high_watermark_follows_the_truncation() -> None:
    """KAFKA-14704: what lies below the leader's high watermark may be what is about to be cut."""
    log, following = log_with((0, 2), (1, 4)), Following(1.0)
    asked = ask(following, log)
    assert following.answered(asked, LeaderAnswer(0, 5, 0, diverging=(0, 3)), log, 0.0) == Truncate(2)
    assert following.high_watermark(log) == 0
    truncate_to(log, 2)
    following.cut()
    assert following.high_watermark(log) == 0
    # What was asked before the truncation says nothing about what is left.
    following.has_no_news(asked)
    assert following.answered(asked, LeaderAnswer(0, 5, 0, has_records=True), log, 0.0) is None
    assert following.high_watermark(log) == 0
    following.has_no_news(ask(following, log))
    assert following.high_watermark(log) == 2


@pytest.mark.parametrize(
    ("diverging", "effect"),
    [
        ((2, 20), Truncate(10)),  # The leader's epoch 2 is not here: back to the end of the largest one below it.
        ((1, 7), Truncate(7)),  # An epoch of both ends earlier there.
        ((1, 30), Truncate(10)),  # And here.
        ((4, 12), Truncate(12)),
        ((0, 2), Truncate(2)),
    ],
)
def test_truncates_to_the_end_of_the_largest_common_epoch(diverging: tuple[int, int], effect: Truncate) -> None:
    """KIP-279."""
    log, following = log_with((0, 5), (1, 5), (4, 5)), Following(1.0)
    assert following.answered(ask(following, log), LeaderAnswer(diverging=diverging), log, 0.0) == effect


@pytest.mark.parametrize("diverging", [(-1, -1), (4, 15), (4, 99), (9, 15)])
def test_a_divergence_that_is_none_is_refused(diverging: tuple[int, int]) -> None:
    log, following = log_with((0, 5), (1, 5), (4, 5)), Following(1.0)
    effect = following.answered(ask(following, log), LeaderAnswer(diverging=diverging), log, 0.0)
    assert isinstance(effect, Refused)
    assert "ends at 15 with leader epoch 4" in effect.problem
    assert following.ask(log, 0.0, flushed_only=False) is None


def test_begins_anew_where_the_leaders_log_begins() -> None:
    log, following = log_with((0, 5)), Following(1.0)
    asked = ask(following, log)
    assert following.answered(asked, LeaderAnswer(OUT_OF_RANGE, log_start_offset=40), log, 0.0) == StartAnew(40)
    truncate_fully(log, 40)
    following.cut()
    # Empty, and beyond the end of another leader's log.
    asked = ask(following, log)
    assert asked == Asked(40, -1, 40, 1)
    assert following.answered(asked, LeaderAnswer(OUT_OF_RANGE, log_start_offset=3), log, 0.0) == StartAnew(3)


def test_records_are_not_dropped_for_an_answer_that_cannot_be() -> None:
    """Behind the leader's end with a last epoch the logs part; a leader that does not say so is asked again."""
    log, following = log_with((0, 5)), Following(1.0)
    for answer in (LeaderAnswer(OUT_OF_RANGE), LeaderAnswer(OUT_OF_RANGE, log_start_offset=2)):
        effect = following.answered(ask(following, log, 99.0), answer, log, 0.0)
        assert effect == Refused(OUT_OF_RANGE)


def test_waits_longer_after_each_error_and_goes_on_after_an_answer() -> None:
    """KAFKA-7414: no error ends following."""
    log, following = log_with((0, 5)), Following(1.0)
    now_s, waits = 0.0, []
    for _ in range(40):
        asked = ask(following, log, now_s)
        assert following.answered(asked, LeaderAnswer(FENCED), log, now_s) == Refused(FENCED)
        assert following.ask(log, now_s, flushed_only=False) is None
        waits.append(round(following.ready_at_s - now_s, 6))
        now_s = following.ready_at_s
    assert waits[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert waits[-1] == 1.0
    following.has_no_news(ask(following, log, now_s))
    following.failed(now_s)
    assert following.ready_at_s - now_s == pytest.approx(0.05)


def test_the_log_start_follows_the_leaders_as_far_as_the_high_watermark() -> None:
    log, following = log_with((0, 5)), Following(1.0)
    following.answered(ask(following, log), LeaderAnswer(0, 4, 3), log, 0.0)
    assert following.high_watermark(log) == 4
    assert [following.log_start(log, high_watermark) for high_watermark in (0, 2, 4, 5)] == [0, 2, 3, 3]


MEMBER = OwnState(high_watermark=12, is_member=True)
OUTSIDER = OwnState(high_watermark=12)


def test_an_in_sync_replica_is_never_cut_below_its_high_watermark() -> None:
    log, following = log_with((0, 5), (1, 5), (4, 5)), Following(1.0)
    asked = ask(following, log)
    assert asked.high_watermark == -1
    assert following.answered(asked, LeaderAnswer(diverging=(1, 10)), log, 0.0, MEMBER) == CheckEpochs()
    following.cut()
    now_s = 0.0
    for _ in range(3):
        answer = LeaderAnswer(diverging=(1, 10))
        assert following.answered(ask(following, log, now_s), answer, log, now_s, MEMBER) == Contested(10)
        assert following.ask(log, now_s, flushed_only=False) is None
        now_s = following.ready_at_s
        assert ask(following, log, now_s).high_watermark == 12
    # What was never committed is cut off.
    assert following.answered(
        ask(following, log, now_s), LeaderAnswer(diverging=(4, 13)), log, 0.0, MEMBER
    ) == Truncate(13)
    truncate_to(log, 13)
    following.cut()
    following.has_no_news(ask(following, log, now_s))
    assert ask(following, log, now_s).high_watermark == -1


def test_an_eligible_replica_is_not_cut_below_a_high_watermark_that_its_leader_does_not_know() -> None:
    log, following = log_with((0, 5), (1, 5), (4, 5)), Following(1.0)
    own = OwnState(high_watermark=12, is_eligible=True)
    answer = LeaderAnswer(high_watermark=11, diverging=(1, 10))
    assert following.answered(ask(following, log), answer, log, 0.0, own) == CheckEpochs()
    following.cut()
    assert following.answered(ask(following, log), answer, log, 0.0, own) == Contested(10)
    now_s = following.ready_at_s
    assert ask(following, log, now_s).high_watermark == 12
    # The leader knows all that it knows to be committed, so this log may be the one that lacks something.
    answer = LeaderAnswer(high_watermark=12, diverging=(1, 10))
    assert following.answered(ask(following, log, now_s), answer, log, now_s, own) == Truncate(10)
    truncate_to(log, 10)
    following.cut()
    assert ask(following, log, now_s).high_watermark == -1, "what was said of the longer log is over"


def test_an_in_sync_replica_drops_nothing_for_a_log_start_behind_its_end() -> None:
    log, following = log_with((0, 5)), Following(1.0)
    answer = LeaderAnswer(OUT_OF_RANGE, log_start_offset=40)
    effect = following.answered(ask(following, log), answer, log, 0.0, OwnState(5, is_member=True))
    assert isinstance(effect, Refused)
    assert "begins at 40, behind all that this in-sync replica has, which ends at 5" in effect.problem
    assert following.answered(ask(following, log, 9.0), answer, log, 9.0, OwnState(5)) == StartAnew(40)


@pytest.mark.parametrize("own", [OwnState(5, is_member=True), OwnState(5), OwnState()])
def test_a_leaders_log_start_behind_its_own_end_deletes_nothing(own: OwnState) -> None:
    log, following = log_with((0, 5)), Following(1.0)
    asked = ask(following, log)
    wrong = LeaderAnswer(OUT_OF_RANGE, log_start_offset=40, log_end_offset=39)
    assert following.answered(asked, wrong, log, 0.0, own) == RefuseLogStart(40, 39)
    assert following.stopped == RefuseLogStart(40, 39)
    assert following.ask(log, 99.0, flushed_only=False) is None
    assert following.answered(asked, wrong, log, 0.0, own) is None, "the answer to the request before is no news"
    assert (following.log_start(log, 5), following.high_watermark(log)) == (0, 0)


def test_a_leaders_log_start_moves_the_own_only_where_the_logs_fit() -> None:
    log, following = log_with((0, 5)), Following(1.0)
    for answer in (
        LeaderAnswer(OUT_OF_RANGE, log_start_offset=40, log_end_offset=50),
        LeaderAnswer(0, 50, 40, diverging=(0, 4)),
    ):
        following.answered(ask(following, log, 9.0), answer, log, 0.0, OwnState(5, is_member=True))
        following.cut()
        assert following.log_start(log, 5) == 0
    following.answered(ask(following, log, 9.0), LeaderAnswer(0, 50, 4), log, 9.0)
    assert following.log_start(log, 5) == 4


def test_a_wrong_file_of_the_followers_own_cuts_nothing() -> None:
    log, following = log_with((0, 5), (1, 5), (4, 5)), Following(1.0)
    log.epochs.replace([(0, 0)])
    asked = ask(following, log)
    assert asked.last_fetched_epoch == 0
    answer = LeaderAnswer(diverging=(0, 5))
    take(following, asked, answer, b"", log, OUTSIDER)
    assert log.log_end_offset == 15
    assert ask(following, log).last_fetched_epoch == 4


def test_a_replica_out_of_sync_is_cut_below_its_high_watermark_until_it_fits_and_not_again() -> None:
    log, following = log_with((0, 5), (1, 5), (4, 5)), Following(1.0)
    take(following, ask(following, log), LeaderAnswer(diverging=(1, 10)), b"", log, OUTSIDER)
    assert log.log_end_offset == 15, "its own file is compared first"
    # Two cuts in a row: the leader's log has none of epoch 1 either (KIP-279).
    take(following, ask(following, log), LeaderAnswer(diverging=(1, 10)), b"", log, OUTSIDER)
    take(following, ask(following, log), LeaderAnswer(diverging=(0, 5)), b"", log, OwnState(10))
    assert log.log_end_offset == 5
    asked = ask(following, log)
    take(following, asked, LeaderAnswer(0, 15, 0, has_records=True), bytes(make_stored_batch(5, 4)), log)
    assert log.log_end_offset == 6
    effect = following.answered(ask(following, log), LeaderAnswer(diverging=(0, 5)), log, 0.0, OwnState(6))
    assert effect == StopFollowing(5)
    assert following.stopped == effect
    assert following.ask(log, 99.0, flushed_only=False) is None


SOUND = OwnState(high_watermark=12, is_sound=True)


def checked() -> tuple[PartitionLog, Following]:
    """A log whose leader epochs have been compared with its batches."""
    log, following = log_with((0, 5), (1, 5), (4, 5)), Following(1.0)
    answer = LeaderAnswer(diverging=(1, 10))
    assert following.answered(ask(following, log), answer, log, 0.0, SOUND) == CheckEpochs()
    following.cut()
    return log, following


def test_a_former_member_asks_its_leader_to_hand_over_and_sets_its_log_aside_if_that_cannot_be() -> None:
    log, following = checked()
    answer, before = LeaderAnswer(high_watermark=10, diverging=(1, 10)), ask(following, log)
    assert following.answered(before, answer, log, 0.0, SOUND) == Contested(10)
    # The answer to a second request that was under way is no answer to that.
    assert following.answered(before, answer, log, 0.0, SOUND) == Contested(10)
    now_s = following.ready_at_s
    claim = ask(following, log, now_s)
    assert claim.high_watermark == 12
    # The leader looks, and says so for as long as it takes.
    assert following.answered(claim, LeaderAnswer(78), log, now_s, SOUND) == Refused(78)
    now_s = following.ready_at_s
    assert ask(following, log, now_s).high_watermark == 12
    assert following.answered(claim, answer, log, now_s, SOUND) == SetAside(10)
    assert following.stopped == SetAside(10)
    assert following.ask(log, 99.0, flushed_only=False) is None
    assert log.log_end_offset == 15


@pytest.mark.parametrize(
    ("answer", "offset"),
    [
        pytest.param(LeaderAnswer(high_watermark=11, diverging=(1, 10)), 10, id="the leader knows of later commits"),
        pytest.param(LeaderAnswer(diverging=(2, 12)), 10, id="the leader has an epoch that this log lacks"),
        pytest.param(LeaderAnswer(diverging=(1, 11)), 10, id="the leader has more of the epoch"),
    ],
)
def test_a_former_member_that_lacks_what_its_leader_had_does_not_ask_to_lead(answer: LeaderAnswer, offset: int) -> None:
    log, following = checked()
    assert following.answered(ask(following, log), answer, log, 0.0, SOUND) == SetAside(offset)


class Replica:
    def __init__(self, number: int) -> None:
        self.log = new_log(f"r{number}", segment_bytes=400, index_interval_bytes=0)
        self.high_watermark = 0


class Schedule:
    """Three replicas, led by one after the other; answers come late, and after others.

    In clean elections, a leader has everything that all replicas have had, which is what is committed. With
    ``damages_epochs`` the files of leader epochs are replaced by older ones, of any replica, between two epochs.
    """

    def __init__(self, seed: int, *, clean: bool, damages_epochs: bool = False) -> None:
        self.chance = random.Random(seed)
        self.clean = clean
        self.damages_epochs = damages_epochs
        self.replicas = [Replica(number) for number in range(3)]
        self.committed, self.committed_end_offset = b"", 0
        self.epoch = -1
        self.elect()

    def elect(self) -> None:
        self.epoch += 1
        candidates = [each for each in self.replicas if not self.clean or self.has_committed(each)]
        self.leader = self.chance.choice(candidates)
        for replica in self.replicas:
            if self.damages_epochs and self.chance.random() < 0.3:
                entries = replica.log.epochs.entries
                replica.log.epochs.replace(
                    each for number, each in enumerate(entries) if not number or self.chance.random() < 0.5
                )
                # What a start of the broker sees (``loading.epoch_check``).
                headers = kernel.scan_headers(contents(replica.log, 0))
                if headers and headers[-1].partition_leader_epoch != replica.log.last_record_epoch:
                    run_steps(epoch_completion(replica.log))
        self.leader.log.assign_leader_epoch(self.epoch, sync=False)
        self.followers = [(each, Following(1.0)) for each in self.replicas if each is not self.leader]
        self.known = {replica: 0 for replica, _ in self.followers}
        self.waiting: list[tuple[Replica, Following, Asked, LeaderAnswer, bytes]] = []

    def has_committed(self, replica: Replica) -> bool:
        return contents(replica.log, 0).startswith(self.committed)

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.35:
            batch = make_batch(self.chance.randrange(1, 4))
            self.leader.log.append_as_leader(batch, kernel.read_header(batch), self.epoch)
        elif what < 0.75:
            self.fetch(*self.chance.choice(self.followers))
        elif self.waiting:
            self.take(*self.waiting.pop(0))

    def fetch(self, replica: Replica, following: Following) -> None:
        asked = following.ask(replica.log, 99.0, flushed_only=False)
        if asked is None:
            return
        answer, records = answer_of(self.leader.log, self.leader.high_watermark, asked)
        if answer.diverging is None and not answer.error_code:
            self.known[replica] = max(self.known[replica], asked.fetch_offset)
            self.commit()
            answer = answer._replace(high_watermark=self.leader.high_watermark)
        self.waiting.append((replica, following, asked, answer, records))

    def commit(self) -> None:
        log = self.leader.log
        end_offset = min([log.log_end_offset, *self.known.values()]) if self.clean else log.log_end_offset
        self.leader.high_watermark = high_watermark = max(self.leader.high_watermark, end_offset)
        if self.clean and high_watermark > self.committed_end_offset:
            data = contents(log, 0)
            below = [each.size_bytes for each in kernel.scan_headers(data) if each.next_offset <= high_watermark]
            assert data.startswith(self.committed)
            self.committed, self.committed_end_offset = data[: sum(below)], high_watermark

    def take(self, replica: Replica, following: Following, asked: Asked, answer: LeaderAnswer, records: bytes) -> None:
        take(following, asked, answer, records, replica.log, OwnState(replica.high_watermark, self.clean))
        # Nothing that may have been shown is cut.
        assert replica.log.log_end_offset >= replica.high_watermark or not self.clean
        replica.high_watermark = max(
            min(replica.high_watermark, replica.log.log_end_offset), following.high_watermark(replica.log)
        )
        if self.clean:
            assert replica.high_watermark <= self.committed_end_offset
            assert self.has_committed(replica)
        elif self.chance.random() < 0.1 and self.leader.log.log_end_offset:
            # Where a batch begins: inside of one, a log that has parted from it may not find back to it.
            log = self.leader.log
            found = log.segments.floor(each := self.chance.randrange(log.log_end_offset)).find(each)
            log.advance_log_start(log.log_end_offset if found is None else found.header.base_offset)

    def settle(self) -> None:
        leader = self.leader.log
        for replica, following in self.followers:
            for _ in range(200):
                asked = ask(following, replica.log, 99.0)
                answer, records = answer_of(leader, self.leader.high_watermark, asked)
                take(following, asked, answer, records, replica.log, OwnState(replica.high_watermark, self.clean))
                if not records and not answer.error_code and answer.diverging is None:
                    break
            assert replica.log.log_end_offset == leader.log_end_offset
            start = max(replica.log.log_start_offset, leader.log_start_offset)
            assert contents(replica.log, start) == contents(leader, start)
            for offset in range(start, leader.log_end_offset) if not self.damages_epochs else ():
                assert replica.log.epochs.epoch_at(offset) == leader.epochs.epoch_at(offset)


@pytest.mark.parametrize("seed", range(150))
def test_random_schedules_end_with_the_leaders_log(seed: int) -> None:
    schedule = Schedule(seed, clean=seed % 2 == 0)
    for _ in range(12):
        for _ in range(schedule.chance.randrange(30)):
            schedule.step()
        if schedule.chance.random() < 0.4:
            schedule.settle()
        schedule.elect()


@pytest.mark.parametrize("seed", range(100))
def test_older_files_of_leader_epochs_cut_nothing_that_is_committed(seed: int) -> None:
    schedule = Schedule(seed, clean=True, damages_epochs=True)
    for _ in range(12):
        for _ in range(schedule.chance.randrange(30)):
            schedule.step()
        if schedule.chance.random() < 0.4:
            schedule.settle()
        schedule.elect()
