"""The log on the disk: segments, indexes, recovery, and the manager of all logs of a broker.

Synchronous code with a single owner; only ``SyncJob.run``, ``IdentitySync.work`` and ``LogManager.load`` may run in
other threads. Knows no network, no registry and no high watermark.
"""
