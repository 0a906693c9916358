"""Coordinators whose state is a compacted internal topic: each key is served by the broker that leads its partition.

One machine for all of them. A coordinator brings the topic (:class:`~.internal_topic.InternalTopic`), the format of its
records and what they mean (:class:`~.state_machine.StateMachine`), and everything that happens by request or time. The
machine brings the rest: a shard for each partition that this broker leads, under one leader epoch (``shard.py``,
``shards.py``); loading; the writer (``record_writer.py``). It knows neither logs nor brokers: a
:class:`~.internal_topic.TopicHost` is given to it, which appends and reads.

**The rule.** What is in the log comes into memory in one way: :meth:`StateMachine.apply`, in the order of the log, with
committed records, whether a load reads them or this broker has just written them. So the state shown is the state that
another broker would find. A coordinator also has state that is not in the log: requests that wait, and what is being
agreed upon or written. This state is its own until it is written, and ends with the leader epoch.

All of it runs in the event loop, and nothing is awaited between reading a shard and changing it. Nothing here knows of
a particular coordinator; ``groups/`` is the first.
"""
