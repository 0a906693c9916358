"""The Kafka protocol on the wire: frames, headers, messages and error codes.

Bytes in, values out; no sockets and no clocks. ``frame`` cuts a stream into frames, ``header`` reads what stands before
a body, ``codec`` turns bodies into the message classes of ``messages/`` and back, ``packed`` does the same by hand for
Produce and Fetch, ``error_codes`` gives every code of the protocol its exception class. Record batches are opaque here:
they pass as views and belong to ``records/``.

Whatever arrives from a peer either becomes a value or raises ``errors.FrameError``; no count or length is believed
before it has been compared with the bytes that are there.
"""
