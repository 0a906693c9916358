from spark_kafkalite.net.request_memory import FrameBuffers, MemoryShares, RequestMemory


class Reader:
    def __init__(self) -> None:
        self.woken = 0

    def memory_available(self) -> None:
        self.woken += 1


def test_reads_pause_at_the_limit_and_go_on_below_it() -> None:
    memory = RequestMemory(100)
    exempt, waiting = Reader(), Reader()
    memory.take(99)
    assert memory.may_read(waiting)
    memory.take(1)
    assert memory.may_read(exempt)
    assert not memory.may_read(waiting)
    memory.give_back(1)
    assert waiting.woken == 1
    assert memory.may_read(waiting)


def test_one_connection_at_a_time_may_pass_the_limit() -> None:
    memory = RequestMemory(10)
    memory.take(10)
    first, second, third = Reader(), Reader(), Reader()
    assert [memory.may_read(reader) for reader in (first, second, third)] == [True, False, False]
    memory.take(5)
    assert memory.may_read(first)
    memory.request_complete(first)
    assert (second.woken, third.woken) == (1, 0)
    assert memory.may_read(second)
    assert not memory.may_read(first)
    memory.forget(second)
    assert third.woken == 1


def test_a_closed_connection_is_not_woken() -> None:
    memory = RequestMemory(10)
    memory.take(10)
    exempt, gone = Reader(), Reader()
    assert memory.may_read(exempt)
    assert not memory.may_read(gone)
    memory.forget(gone)
    memory.give_back(10)
    assert gone.woken == 0


def test_who_stops_reading_lets_the_others_go_on() -> None:
    memory = RequestMemory(10)
    memory.take(10)
    exempt, first, second = Reader(), Reader(), Reader()
    assert [memory.may_read(reader) for reader in (exempt, first, second)] == [True, False, False]
    assert memory.hinders(exempt) and not memory.hinders(first)
    memory.stopped_reading(first)
    memory.stopped_reading(exempt)
    assert (first.woken, second.woken) == (0, 1)
    assert memory.may_read(second) and not memory.hinders(second)
    # It waits like all others when it is read again.
    assert not memory.may_read(exempt)
    memory.request_complete(second)
    assert exempt.woken == 1


def test_those_that_cannot_read_when_it_is_their_turn_are_passed_over() -> None:
    memory = RequestMemory(10)
    memory.take(10)

    class Stopped(Reader):
        def memory_available(self) -> None:
            super().memory_available()
            memory.stopped_reading(self)

    # More than calls may be nested.
    exempt, good, stopped = Reader(), Reader(), [Stopped() for _ in range(5_000)]
    assert memory.may_read(exempt)
    assert not any(memory.may_read(reader) for reader in (*stopped, good))
    memory.request_complete(exempt)
    assert {reader.woken for reader in (*stopped, good)} == {1}
    assert memory.may_read(good)


def test_a_client_that_has_used_its_share_leaves_the_rest_to_others() -> None:
    memory = RequestMemory(100)
    shares = MemoryShares(memory)
    greedy, other = shares.enter("User:greedy"), shares.enter("User:other")
    assert shares.enter("User:greedy") is greedy
    exempt, waiting, good = Reader(), Reader(), Reader()
    greedy.take(50)
    assert greedy.may_read(exempt) and not greedy.may_read(waiting)
    assert greedy.hinders(exempt) and not memory.hinders(exempt)
    assert other.may_read(good)
    # Its exempt request counts for all, and it is not this one's fault when it waits for others.
    greedy.take(50)
    assert memory.used_bytes == 100
    assert other.may_read(good) and not greedy.may_read(exempt)
    assert memory.hinders(good) and not greedy.hinders(exempt)
    memory.request_complete(good)
    assert (exempt.woken, waiting.woken) == (1, 0) and greedy.may_read(exempt)
    greedy.give_back(60)
    assert waiting.woken == 1 and memory.used_bytes == 40
    for client in ("User:greedy", "User:greedy", "User:other"):
        shares.leave(client)
    assert len(shares) == 0


def test_the_request_for_which_all_others_wait_does_not_wait_for_its_share() -> None:
    memory = RequestMemory(100)
    share = MemoryShares(memory).enter("User:a")
    first, second = Reader(), Reader()
    memory.take(100)
    assert share.may_read(first)
    share.take(50)
    # The second one is exempt from the share and waits for the first one, which needs more than the share.
    assert not share.may_read(second)
    assert share.may_read(first)
    share.request_complete(first)
    assert second.woken == 1 and share.may_read(second)


def test_buffers_are_writable_and_of_the_asked_size() -> None:
    buffers = FrameBuffers()
    for size_bytes in (1, 40_000, 1_048_700, 5_000_000):
        buffer = buffers.lend(size_bytes)
        buffer[-1] = 7
        assert (len(buffer), buffer[-1], buffer.readonly) == (size_bytes, 7, False)


def test_the_memory_of_a_request_is_used_again_but_never_by_two_at_once() -> None:
    buffers = FrameBuffers()
    first, second = buffers.lend(1_000_000), buffers.lend(40_000)
    first[:] = b"1" * len(first)
    second[:] = b"2" * len(second)
    assert bytes(first[:2]) == b"11"
    memory = first.obj
    buffers.take_back(first)
    assert buffers.lend(500_000).obj is memory
    assert buffers.lend(500_000).obj not in (memory, second.obj)


def test_only_a_few_buffers_of_common_sizes_are_kept() -> None:
    buffers = FrameBuffers()
    many = [buffers.lend(1_000_000) for _ in range(20)]
    for buffer in many:
        buffers.take_back(buffer)
    again = [buffers.lend(1_000_000) for _ in range(20)]
    assert len({id(buffer.obj) for buffer in many} & {id(buffer.obj) for buffer in again}) == 4
    large = buffers.lend(50_000_000)
    buffers.take_back(large)
    assert buffers.lend(50_000_000).obj is not large.obj
