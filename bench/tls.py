"""Our clients beside confluent-kafka over TLS: one Apache Kafka 4.3, values of 1,000 bytes, CPU seconds of the client.

Both use the same listener, an EC certificate and TLS 1.3, in turn, on topics of their own with four partitions. Ours
send and read columns; confluent-kafka reads batches of 500. The last rows are what TLS adds to the same work without it,
and the memory of a connection that is open and has fetched.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.clients import PARTITIONS, Bench, Timed, in_turn
from bench.measurement import Row, resident_bytes, warm_page_cache
from spark_kafkalite.client.config import admin_config
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.testing.secure_kafka import Listener, SecureKafka
from spark_kafkalite.testing.token_endpoint import TokenEndpoint

_VALUE = b"x" * 1000
_GB = 1e9
_CONNECTIONS = 1000
