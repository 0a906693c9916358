from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.errors import FrameError, UnsupportedVersion
from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.messages import fetch, produce
from tests.seeds import SOAK

names = st.text("aé-._", max_size=5) | st.sampled_from(["t", "x" * 126, "x" * 127, "x" * 300])
int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
topic_ids = st.binary(min_size=16, max_size=16)
endpoints = st.lists(st.builds(packed.NodeEndpoint, int32, names, int32, st.none() | names), max_size=2)
record_bytes = st.none() | st.binary(max_size=20) | st.sampled_from([bytes(126), bytes(127), bytes(5000)])


def by_topic(partitions: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(st.tuples(names, st.lists(partitions, max_size=3)), max_size=3)


PRODUCE_TOPICS = by_topic(st.tuples(int32, record_bytes))
PRODUCED = by_topic(
    st.builds(
        packed.ProducedPartition,
        int32,
        int16,
        int64,
        int64,
        int64,
        st.lists(st.tuples(int32, st.none() | names), max_size=2).map(tuple),
        st.none() | names,
        st.none() | st.tuples(st.integers(0, 100), int32),
    )
)
FETCH_PARTITIONS = st.builds(packed.FetchPartition, int32, int64, int32, int32, int32, int64, st.just(-1))
FETCH_REQUESTS = st.builds(
    packed.FetchRequest,
    by_topic(FETCH_PARTITIONS),
    int32,
    int32,
    int32,
    st.sampled_from([0, 1]),
    int32,
    int32,
    int32,
    st.lists(st.tuples(names, st.lists(int32, max_size=3)), max_size=2).map(tuple),
    names,
    st.none() | names,
    int64,
    st.just(b""),
)
# Of who keeps up with one partition: parsed and packed apart, but for the last.
KEEPING_UP_REQUESTS = st.builds(
    packed.FetchRequest,
    st.tuples(names, FETCH_PARTITIONS.map(lambda one: [one])).map(lambda one: [one]),
    int32,
    int32,
    int32,
    st.sampled_from([0, 1]),
    st.just(-1) | int32,
    int32,
    int32,
    st.just(()),
    st.sampled_from(["", "", "rack"]),
    st.none(),
    st.just(-1) | int64,
    st.just(b""),
)
FETCHED = by_topic(
    st.builds(
        packed.FetchedPartition,
        int32,
        int16,
        int64,
        int64,
        int64,
        record_bytes,
        st.none() | st.lists(st.tuples(int64, int64), max_size=2),
        int32,
        st.none() | st.tuples(st.integers(0, 100), int64),
        st.none() | st.tuples(st.integers(0, 100), int32),
    )
)
KEPT_UP_WITH = st.tuples(
    names,
    st.builds(
        packed.FetchedPartition,
        int32,
        int16,
        int64,
        int64,
        int64,
        st.binary(max_size=20) | record_bytes,
        st.none() | st.just([]) | st.lists(st.tuples(int64, int64), max_size=2),
        int32,
        st.none(),
        st.none(),
    ).map(lambda one: [one]),
).map(lambda one: [one])


def of_version(data: st.DataObject, version: int, topics):
    """Name the topics by ids where the version does."""
    return [(data.draw(topic_ids), partitions) for _, partitions in topics] if version >= packed.FETCH_BY_ID else topics


def named(topic: packed.Topic) -> dict[str, packed.Topic]:
    return {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}


def joined(pieces_and_length) -> bytes:
    pieces, length = pieces_and_length
    whole = b"".join(pieces)
    assert len(whole) == length
    return whole


def with_bytes(topics):
    """Records as bytes, so that parsed and given ones compare."""
    return [
        (name, [type(p)(*(bytes(v) if isinstance(v, memoryview) else v for v in p)) for p in partitions])
        if partitions and hasattr(partitions[0], "_fields")
        else (name, [tuple(bytes(v) if isinstance(v, memoryview) else v for v in p) for p in partitions])
        for name, partitions in topics
    ]


def body_of(frame: bytes) -> tuple[memoryview, int]:
    return memoryview(frame), read_request_header(frame)[1]


def produce_message(acks, timeout_ms, topics, transactional_id) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        transactional_id=transactional_id,
        topic_data=[
            produce.TopicProduceData(
                name=name,
                partition_data=[produce.PartitionProduceData(index=index, records=records) for index, records in rows],
            )
            for name, rows in topics
        ],
    )


def produce_response_message(topics, throttle_time_ms, node_endpoints) -> produce.ProduceResponse:
    def partition(p):
        message = produce.PartitionProduceResponse(
            index=p.partition,
            error_code=p.error_code,
            base_offset=p.base_offset,
            log_append_time_ms=p.log_append_time_ms,
            log_start_offset=p.log_start_offset,
            record_errors=[
                produce.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                for index, text in p.record_errors
            ],
            error_message=p.error_message,
        )
        if p.current_leader is not None:
            leader_id, leader_epoch = p.current_leader
            message.current_leader = produce.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
        return message

    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(name=name, partition_responses=[partition(p) for p in partitions])
            for name, partitions in topics
        ],
        throttle_time_ms=throttle_time_ms,
        node_endpoints=[produce.NodeEndpoint(**each._asdict()) for each in node_endpoints],
    )


def fetch_partition_message(partition: packed.FetchPartition) -> fetch.FetchPartition:
    fields = partition._asdict()
    # Apache Kafka has it in a later version.
    assert fields.pop("high_watermark") == -1
    return fetch.FetchPartition(**fields)


def fetch_message(request: packed.FetchRequest) -> fetch.FetchRequest:
    return fetch.FetchRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica_id,
        replica_state=fetch.ReplicaState(replica_id=request.replica_id, replica_epoch=request.replica_epoch),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            fetch.FetchTopic(**named(topic), partitions=[fetch_partition_message(p) for p in partitions])
            for topic, partitions in request.topics
        ],
        forgotten_topics_data=[
            fetch.ForgottenTopic(**named(topic), partitions=numbers) for topic, numbers in request.forgotten_topics
        ],
        rack_id=request.rack_id,
    )


def fetch_response_message(topics, throttle_time_ms, error_code, session_id, node_endpoints) -> fetch.FetchResponse:
    def partition(p):
        aborted = p.aborted_transactions
        message = fetch.PartitionData(
            partition_index=p.partition,
            error_code=p.error_code,
            high_watermark=p.high_watermark,
            last_stable_offset=p.last_stable_offset,
            log_start_offset=p.log_start_offset,
            records=p.records,
            preferred_read_replica=p.preferred_read_replica,
            aborted_transactions=aborted
            and [fetch.AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in aborted],
        )
        if p.diverging_epoch is not None:
            epoch, end_offset = p.diverging_epoch
            message.diverging_epoch = fetch.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        if p.current_leader is not None:
            leader_id, leader_epoch = p.current_leader
            message.current_leader = fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
        return message

    return fetch.FetchResponse(
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        responses=[
            fetch.FetchableTopicResponse(**named(topic), partitions=[partition(p) for p in partitions])
            for topic, partitions in topics
        ],
        node_endpoints=[fetch.NodeEndpoint(**each._asdict()) for each in node_endpoints],
    )


class TestEqualToTheCodecAndToKio:
    @pytest.mark.parametrize("version", packed.PRODUCE_VERSIONS)
    @settings(max_examples=200 if SOAK else 15, deadline=None)
    @given(int16, int32, PRODUCE_TOPICS, st.none() | names)
    def test_produce_request(self, samples, version, acks, timeout_ms, topics, transactional_id):
        packed_bytes = joined(packed.pack_produce_request(7, "me", version, acks, timeout_ms, topics, transactional_id))
        message = produce_message(acks, timeout_ms, topics, transactional_id)
        assert packed_bytes == codec.encode_request(message, version, 7, "me")
        view, position = body_of(packed_bytes)
        assert view[position:] == samples.kio_bytes(samples.to_kio(message, version))
        parsed = packed.parse_produce(view, position, version)
        assert parsed[:3] == (transactional_id, acks, timeout_ms)
        assert with_bytes(parsed.topics) == topics

    @pytest.mark.parametrize("version", packed.PRODUCE_VERSIONS)
    @settings(max_examples=200 if SOAK else 15, deadline=None)
    @given(PRODUCED, int32, endpoints)
    def test_produce_response(self, version, topics, throttle_time_ms, node_endpoints):
        packed_bytes = packed.pack_produce_response(7, version, topics, throttle_time_ms, node_endpoints)
        message = produce_response_message(topics, throttle_time_ms, node_endpoints)
        assert packed_bytes == codec.encode_response(message, version, 7)
        parsed = packed.parse_produce_response(packed_bytes, version)
        correlation_id, parsed_topics, parsed_throttle, parsed_endpoints = parsed
        assert (correlation_id, parsed_throttle) == (7, throttle_time_ms)
        assert list(parsed_endpoints) == (node_endpoints if version >= 10 else [])
        missing = {}
        if version < 10:
            missing["current_leader"] = None
        if version < 8:
            missing |= {"record_errors": (), "error_message": None}
        if version < 5:
            missing["log_start_offset"] = -1
        assert parsed_topics == [(name, [p._replace(**missing) for p in ps]) for name, ps in topics]

    @pytest.mark.parametrize("version", packed.FETCH_VERSIONS)
    @settings(max_examples=200 if SOAK else 20, deadline=None)
    @given(FETCH_REQUESTS | KEEPING_UP_REQUESTS, st.data())
    def test_fetch_request(self, samples, version, request_fields, data):
        request_fields = request_fields._replace(
            topics=of_version(data, version, request_fields.topics),
            forgotten_topics=tuple(of_version(data, version, request_fields.forgotten_topics)),
        )
        packed_bytes = packed.pack_fetch_request(7, "me", version, request_fields)
        message = fetch_message(request_fields)
        assert packed_bytes == codec.encode_request(message, version, 7, "me")
        view, position = body_of(packed_bytes)
        assert view[position:] == samples.kio_bytes(samples.to_kio(message, version))
        missing, partition_missing = {}, {}
        if version < 15:
            missing["replica_epoch"] = -1
        if version < 12:
            missing["cluster_id"] = None
            partition_missing["last_fetched_epoch"] = -1
        if version < 11:
            missing["rack_id"] = ""
        if version < 9:
            partition_missing["current_leader_epoch"] = -1
        if version < 7:
            missing |= {"session_id": 0, "session_epoch": -1, "forgotten_topics": ()}
        if version < 5:
            partition_missing["log_start_offset"] = -1
        topics = [(name, [p._replace(**partition_missing) for p in ps]) for name, ps in request_fields.topics]
        expected = request_fields._replace(**missing, topics=topics)
        assert packed.parse_fetch(view, position, version) == expected

    @pytest.mark.parametrize("version", [12, 17])
    def test_fetch_request_with_a_high_watermark(self, samples, version):
        """Kafka's tagged field, beside others and alone; who does not know it passes it over."""
        one = packed.FetchPartition(0, 5, 100, 3, 2, 1, 1 << 40)
        topics = [(bytes(16) if version >= 13 else "t", [one, one._replace(partition=1, high_watermark=-1)])]
        request = packed.FetchRequest(topics, replica_id=3, replica_epoch=9 if version >= 15 else -1)
        view, position = body_of(packed.pack_fetch_request(7, "me", version, request))
        assert packed.parse_fetch(view, position, version) == request
        alone = packed.FetchRequest([(topics[0][0], [one])])
        view, position = body_of(packed.pack_fetch_request(7, "me", version, alone))
        assert packed.parse_fetch(view, position, version) == alone
        raw = bytes(view[position:])
        field = b"\x01\x01\x08" + (1 << 40).to_bytes(8, "big")
        assert raw.count(field) == 1
        # Behind tag 0, before tag 5, and of another size.
        more = memoryview(raw.replace(field, b"\x03\x00\x02ab" + field[1:] + b"\x05\x00"))
        assert packed.parse_fetch(more, 0, version) == alone
        with pytest.raises(FrameError, match="high_watermark"):
            packed.parse_fetch(memoryview(raw.replace(field, b"\x01\x01\x07" + bytes(7))), 0, version)

    @pytest.mark.parametrize("version", packed.FETCH_VERSIONS)
    @settings(max_examples=200 if SOAK else 20, deadline=None)
    @given(FETCHED | KEPT_UP_WITH, int32, int16, int32, st.just([]) | endpoints, st.data())
    def test_fetch_response(self, version, topics, throttle_time_ms, error_code, session_id, node_endpoints, data):
        topics = of_version(data, version, topics)
        rest = (topics, throttle_time_ms, error_code, session_id, node_endpoints)
        packed_bytes = joined(packed.pack_fetch_response(7, version, *rest))
        message = fetch_response_message(*rest)
        assert packed_bytes == codec.encode_response(message, version, 7)
        parsed = packed.parse_fetch_response(packed_bytes, version)
        assert parsed[:1] == (7,)
        assert parsed.throttle_time_ms == throttle_time_ms
        assert list(parsed.node_endpoints) == (node_endpoints if version >= 16 else [])
        assert (parsed.error_code, parsed.session_id) == ((error_code, session_id) if version >= 7 else (0, 0))
        missing = {}
        if version < 12:
            missing |= {"diverging_epoch": None, "current_leader": None}
        if version < 11:
            missing["preferred_read_replica"] = -1
        if version < 5:
            missing["log_start_offset"] = -1
        assert with_bytes(parsed.topics) == [(name, [p._replace(**missing) for p in ps]) for name, ps in topics]


@dataclass
class FileSlice:
    length: int
    is_cut: bool = False

    def read(self) -> bytes | None:
        return None if self.is_cut else b"s" * self.length


@pytest.mark.parametrize("version", [12, 13])
def test_a_file_slice_becomes_a_piece_of_its_own_unless_it_is_small(version):
    """One that is cut while it waits is left to the outbox, which closes the connection."""
    slices = [FileSlice(5000), FileSlice(0), FileSlice(10), FileSlice(10, is_cut=True)]
    partitions = [packed.FetchedPartition(n, records=records) for n, records in enumerate(slices)]
    topic = "t" if version < 13 else bytes(16)
    pieces, total = packed.pack_fetch_response(1, version, [(topic, partitions)])
    assert [piece for piece in pieces if isinstance(piece, FileSlice)] == [slices[0], slices[3]]
    assert total == sum(piece.length if isinstance(piece, FileSlice) else len(piece) for piece in pieces)
    filled = b"".join(bytes(piece.length) if isinstance(piece, FileSlice) else piece for piece in pieces)
    parsed = packed.parse_fetch_response(filled, version)
    assert [bytes(p.records) for p in parsed.topics[0][1]] == [bytes(5000), b"", b"s" * 10, bytes(10)]


@pytest.mark.parametrize("records", [FileSlice(4096), FileSlice(4097), FileSlice(10, is_cut=True)])
def test_a_file_slice_alone(records):
    partition = packed.FetchedPartition(3, records=records)
    pieces, total = packed.pack_fetch_response(1, 17, [(bytes(16), [partition])])
    is_sent = records.length > 4096 or records.is_cut
    assert [piece for piece in pieces if isinstance(piece, FileSlice)] == ([records] if is_sent else [])
    filled = b"".join(bytes(piece.length) if isinstance(piece, FileSlice) else piece for piece in pieces)
    assert total == len(filled)
    ((_, (parsed,)),) = packed.parse_fetch_response(filled, 17).topics
    assert bytes(parsed.records) == (b"\x00" if is_sent else b"s") * records.length


def test_large_records_are_not_copied():
    records = bytearray(10_000)
    pieces, _ = packed.pack_fetch_response(1, 11, [("t", [packed.FetchedPartition(0, records=records)])])
    assert any(piece is records for piece in pieces)
    pieces, _ = packed.pack_produce_request(1, "c", 9, -1, 1, [("t", [(0, records)])])
    assert any(piece is records for piece in pieces)


def test_parsed_records_are_writable_views_into_the_frame():
    frame = bytearray(joined(packed.pack_produce_request(1, "c", 9, -1, 1, [("t", [(0, b"r" * 1000)])])))
    records = packed.parse_produce(frame, read_request_header(frame)[1], 9).topics[0][1][0][1]
    assert records.obj is frame
    records[0:1] = b"S"
    assert b"Srrr" in frame


def sample_frames() -> list[tuple[str, int, bytes, int]]:
    """(name of the parser, version, bytes, position) of messages that use every field."""
    topics = [("topic", [(0, b"r" * 40), (1, None)]), ("other", [])]
    produced = [
        (
            "topic",
            [
                packed.ProducedPartition(0, 87, 5, 6, 7, [(1, "bad"), (2, None)], "two bad"),
                packed.ProducedPartition(1, 6, current_leader=(2, 5)),
            ],
        )
    ]
    nodes = [packed.NodeEndpoint(2, "host", 9092), packed.NodeEndpoint(3, "other", 9093, "rack")]
    request = packed.FetchRequest(
        [("topic", [packed.FetchPartition(0, 5, 100), packed.FetchPartition(1, 6, 100, 3, 2, 1)])],
        forgotten_topics=[("gone", [1, 2])],
        rack_id="rack",
        cluster_id="cluster",
        replica_id=3,
        replica_epoch=2**40,
    )
    fetched = [
        (
            "topic",
            [
                packed.FetchedPartition(0, 0, 9, 9, 0, b"r" * 40, [(1, 2)], 3, (1, 2), (3, 4)),
                packed.FetchedPartition(1),
            ],
        )
    ]
    frames = []
    for version in packed.PRODUCE_VERSIONS:
        frame = joined(packed.pack_produce_request(1, "c", version, -1, 100, topics, "transaction"))
        frames.append(("parse_produce", version, frame, read_request_header(frame)[1]))
        frame = packed.pack_produce_response(1, version, produced, 0, nodes)
        frames.append(("parse_produce_response", version, frame, 0))
    for version in packed.FETCH_VERSIONS:
        if version == packed.FETCH_BY_ID:
            request = request._replace(
                topics=[(b"i" * 16, request.topics[0][1])],
                forgotten_topics=[(b"j" * 16, request.forgotten_topics[0][1])],
            )
            fetched = [(b"i" * 16, fetched[0][1])]
        frame = packed.pack_fetch_request(1, "c", version, request)
        frames.append(("parse_fetch", version, frame, read_request_header(frame)[1]))
        frame = joined(packed.pack_fetch_response(1, version, fetched, 0, 0, 5, nodes))
        frames.append(("parse_fetch_response", version, frame, 0))
        for request_of_one in (
            packed.FetchRequest([(request.topics[0][0], [packed.FetchPartition(0, 5, 100)])]),
            packed.FetchRequest(
                [(request.topics[0][0], [packed.FetchPartition(0, 5, 100)])], replica_id=3, replica_epoch=2**40
            ),
        ):
            frame = packed.pack_fetch_request(1, "c", version, request_of_one)
            frames.append(("parse_fetch", version, frame, read_request_header(frame)[1]))
        of_one = [(fetched[0][0], [packed.FetchedPartition(0, 0, 9, 9, 0, b"r" * 40)])]
        frames.append(("parse_fetch_response", version, joined(packed.pack_fetch_response(1, version, of_one)), 0))
    return frames


def parse(name: str, version: int, frame: bytes, position: int):
    parser = getattr(packed, name)
    return parser(frame, version) if name.endswith("response") else parser(frame, position, version)


FRAMES = sample_frames()
frame_ids = [f"{name}-{version}" for name, version, _, _ in FRAMES]


@pytest.mark.parametrize(("name", "version", "frame", "position"), FRAMES, ids=frame_ids)
class TestHostileBytes:
    def test_cut_anywhere_is_a_frame_error(self, name, version, frame, position):
        for length in range(position, len(frame)):
            with pytest.raises(FrameError):
                parse(name, version, frame[:length], position)

    def test_bytes_after_the_body_are_ignored(self, name, version, frame, position):
        assert parse(name, version, frame + b"\xff\x00", position) == parse(name, version, frame, position)

    def test_damage_gives_the_codecs_verdict(self, name, version, frame, position):
        """A value where the codec gives one, a FrameError where it raises one, and nothing else."""
        rng = random.Random(version)
        api_key = 0 if "produce" in name else 1
        for _ in range(400):
            damaged = bytearray(frame)
            for _ in range(rng.randrange(1, 3)):
                damaged[rng.randrange(position, len(frame))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            verdicts = []
            for decode in (
                lambda data=damaged: parse(name, version, data, position),
                lambda data=damaged: (
                    codec.decode_response(api_key, version, data)
                    if name.endswith("response")
                    else codec.decode_request(api_key, version, data, position)
                ),
            ):
                try:
                    decode()
                    verdicts.append("value")
                except FrameError:
                    verdicts.append("error")
            assert verdicts[0] == verdicts[1], bytes(damaged).hex()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: packed.parse_produce(bytes(50), 0, 12), "Produce request version 12: packed here are 3 to 11"),
        (lambda: packed.parse_fetch(bytes(50), 0, 18), "Fetch request version 18: packed here are 4 to 17"),
        (lambda: packed.pack_produce_response(1, 2, []), "Produce version 2"),
        (lambda: packed.pack_fetch_response(1, 3, []), "Fetch version 3"),
    ],
)
def test_other_versions_are_unsupported(call, text):
    with pytest.raises(UnsupportedVersion, match=text):
        call()


def test_very_many_tagged_fields_are_refused():
    tags = b"\xff\x1f" + b"\x63\x00" * 4095
    partition = bytes(4) + b"\x00" + tags
    body = b"\x00" + bytes(6) + b"\x02" + b"\x02t" + b"\xc9\x01" + partition * 200 + bytes(2)
    with pytest.raises(FrameError, match="too many array elements"):
        packed.parse_produce(body, 0, 9)
    with pytest.raises(FrameError, match="too many array elements"):
        codec.decode_request(0, 9, body, 0)


@pytest.mark.parametrize("version", [8, 9])
def test_very_many_empty_partitions_are_refused(version):
    partition = bytes(4) + (b"\x00\x00" if version == 9 else b"\xff\xff\xff\xff")
    count = codec.MAX_REQUEST_ELEMENTS
    head = b"\x00" if version == 9 else b"\xff\xff"
    one = b"\x02" if version == 9 else b"\x00\x00\x00\x01"
    topic = b"\x02t" if version == 9 else b"\x00\x01t"
    many = b"\x81\x80\x10" if version == 9 else count.to_bytes(4, "big")
    body = head + bytes(6) + one + topic + many + partition * count + bytes(2)
    with pytest.raises(FrameError, match="too many array elements"):
        packed.parse_produce(body, 0, version)


@pytest.mark.parametrize("topic", ["a name", b"short"])
def test_a_topic_without_an_id_is_not_packed_where_ids_name_topics(topic):
    with pytest.raises(ValueError, match="a topic's id has 16 bytes"):
        packed.pack_fetch_request(1, "c", 13, packed.FetchRequest([(topic, [])]))
    for version in packed.FETCH_VERSIONS[-5:]:
        of_one = [(topic, [packed.FetchPartition(0, 5, 100)])]
        with pytest.raises(ValueError, match="a topic's id has 16 bytes"):
            packed.pack_fetch_request(1, "c", version, packed.FetchRequest(of_one))
        with pytest.raises(ValueError, match="a topic's id has 16 bytes"):
            packed.pack_fetch_response(1, version, [(topic, [packed.FetchedPartition(0)])])
