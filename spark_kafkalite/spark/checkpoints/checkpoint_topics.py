"""A checkpoint of other topics than the query's options name: a wrong option, or a topic that was taken out."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import LOSS_PARTITIONS_DELETED, SparkConditionError, listed
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.reading.data_loss import LossCause

_LOG = logging.getLogger("spark_kafkalite.spark")


def meet_unsubscribed(options: ReaderOptions, left: Iterable[TopicPartition], *, is_all: bool) -> None:
    """Raise the error of partitions that the checkpoint has and the options do not name, or warn that they are left.

    ``is_all``: the options name none of the checkpoint's partitions. This is the checkpoint of another query, and only
    ``dataLoss.unsubscribed=warn`` goes on with it: ``failOnDataLoss=false`` is for records that are lost.
    """
    losses, cause = options.losses, LossCause.UNSUBSCRIBED
    fails = losses.fails(cause) or (is_all and not losses.is_decided(cause))
    named = options.subscription
    names = [str(tp) for tp in sorted(left)] if named.kind == "assign" else sorted({tp.topic for tp in left})
    if not fails:
        _LOG.warning(
            "[%s] %s: %s does not name %s, where the checkpoint goes on; the query leaves it without reading its "
            "records%s",
            LOSS_PARTITIONS_DELETED,
            losses.said(cause),
            named,
            listed(names),
            ", and begins with what it names" if is_all else "",
        )
        return
    if is_all:
        raise SparkConditionError(
            LOSS_PARTITIONS_DELETED,
            f"{named}: the checkpoint is of {listed(names)}, and of nothing that this query reads. If the checkpoint "
            f"is the wrong one, give this query a checkpointLocation of its own. If the option is wrong, name "
            f"{listed(names)} again. To leave it on purpose and go on with this checkpoint set {cause.option}=warn",
        )
    raise SparkConditionError(
        LOSS_PARTITIONS_DELETED,
        f"{named}: the checkpoint goes on in {listed(names)}, too, which the option does not name. If it was left out "
        f"by mistake, name it again. If the query is to read it no more, set {cause.option}=warn; it may be removed "
        "after one batch",
    )
