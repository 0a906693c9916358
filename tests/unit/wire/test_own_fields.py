"""Tagged fields of our own, which no schema of Kafka's has: read as they were written, and absent where unset."""

from __future__ import annotations

from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.codec import decode_request, decode_response_body, encode_body
from spark_kafkalite.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from spark_kafkalite.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from spark_kafkalite.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions


def test_why_a_partition_has_no_leader_is_said_where_it_has_none() -> None:
    partitions = [
        DescribeTopicPartitionsResponsePartition(partition_index=0, leader_id=-1, why_leaderless='{"reason":"é"}'),
        DescribeTopicPartitionsResponsePartition(partition_index=1, leader_id=2),
    ]
    topic = DescribeTopicPartitionsResponseTopic(name="t", partitions=partitions)
    body = encode_body(DescribeTopicPartitionsResponse(topics=[topic]), 0)
    found = decode_response_body(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body).topics[0].partitions
    assert [each.why_leaderless for each in found] == ['{"reason":"é"}', None]
    partitions[0].why_leaderless = None
    assert b"reason" not in encode_body(DescribeTopicPartitionsResponse(topics=[topic]), 0)


def test_the_replicas_that_are_to_lead_exist_in_the_flexible_version_alone() -> None:
    topic = TopicPartitions(topic="t", partitions=[0, 5], desired_leaders=[2, 3], seen_leader_epochs=[7, 8])
    request = ElectLeadersRequest(election_type=100, topic_partitions=[topic])
    (found,) = decode_request(ApiKey.ELECT_LEADERS, 2, encode_body(request, 2), 0).topic_partitions
    assert (found.partitions, found.desired_leaders, found.seen_leader_epochs) == ([0, 5], [2, 3], [7, 8])
    (found,) = decode_request(ApiKey.ELECT_LEADERS, 1, encode_body(request, 1), 0).topic_partitions
    assert (found.partitions, found.desired_leaders, found.seen_leader_epochs) == ([0, 5], [], [])


def test_what_is_wrong_with_a_log_is_said_where_something_is() -> None:
    logs = [
        DescribeLogDirsPartition(partition_index=0, damaged_offsets=[500, 1000, 1 << 40, 1 << 41]),
        DescribeLogDirsPartition(partition_index=1, why_stopped="its log parts"),
        DescribeLogDirsPartition(partition_index=2),
    ]
    result = DescribeLogDirsResult(log_dir="/d", topics=[DescribeLogDirsTopic(name="t", partitions=logs)])
    for version in (1, 4):
        body = encode_body(DescribeLogDirsResponse(results=[result]), version)
        found = decode_response_body(ApiKey.DESCRIBE_LOG_DIRS, version, body).results[0].topics[0].partitions
        said = [(each.damaged_offsets, each.why_stopped) for each in found]
        # Before the flexible versions there is no place for it.
        assert said == (
            [([500, 1000, 1 << 40, 1 << 41], None), ([], "its log parts"), ([], None)]
            if version > 1
            else [([], None)] * 3
        )


def test_a_directory_that_takes_no_records_names_the_reason_in_the_flexible_versions_alone() -> None:
    result = DescribeLogDirsResult(log_dir="/d", refusal="its disk is full")
    for version, refusal in ((1, None), (2, "its disk is full")):
        body = encode_body(DescribeLogDirsResponse(results=[result]), version)
        (found,) = decode_response_body(ApiKey.DESCRIBE_LOG_DIRS, version, body).results
        assert found.refusal == refusal


def test_a_comparison_is_asked_for_and_shown_in_the_flexible_versions_alone() -> None:
    for version, asked in ((1, False), (4, True)):
        body = encode_body(DescribeLogDirsRequest(topics=None, compares=True), version)
        assert decode_request(ApiKey.DESCRIBE_LOG_DIRS, version, body, 0).compares is asked
    log = DescribeLogDirsPartition(partition_index=0, comparison_state="same", comparison="offsets 0 to 9")
    result = DescribeLogDirsResult(log_dir="/d", topics=[DescribeLogDirsTopic(name="t", partitions=[log])])
    body = encode_body(DescribeLogDirsResponse(results=[result]), 4)
    (found,) = decode_response_body(ApiKey.DESCRIBE_LOG_DIRS, 4, body).results[0].topics[0].partitions
    assert (found.comparison_state, found.comparison) == ("same", "offsets 0 to 9")
    assert b"compar" not in encode_body(DescribeLogDirsRequest(topics=None), 4)


def test_accepted_offsets_exist_in_the_flexible_version_alone() -> None:
    topic = TopicPartitions(topic="t", partitions=[0], accepted_offsets=[0, 500, 1 << 40])
    request = ElectLeadersRequest(election_type=100, topic_partitions=[topic])
    (found,) = decode_request(ApiKey.ELECT_LEADERS, 2, encode_body(request, 2), 0).topic_partitions
    assert found.accepted_offsets == [0, 500, 1 << 40]
    (found,) = decode_request(ApiKey.ELECT_LEADERS, 1, encode_body(request, 1), 0).topic_partitions
    assert found.accepted_offsets == []
