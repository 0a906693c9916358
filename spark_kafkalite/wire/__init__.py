"""The Kafka protocol on the wire: frames, headers, messages and error codes.

Bytes in, values out; no sockets and no clocks. ``frame`` cuts a stream into frames, ``header`` reads the header before
a body. ``codec`` turns bodies into the message classes of ``messages/`` and back; ``packed`` does the same by hand for
Produce and Fetch. ``error_codes`` gives every code of the protocol its exception class. Record batches are opaque here:
they pass as views and belong to ``records/``.

Input from a peer either becomes a value or raises ``errors.FrameError``. Every count and length is compared with the
bytes received before it is used.
"""
