"""Clients of several projects that send, read and ask without a pause, and note what they are told in a history.

Each runs in a thread of its own and ends when it is told to. An error that its user would see is an event; one that
nobody expected fails the run (``Client.problem``).
"""
