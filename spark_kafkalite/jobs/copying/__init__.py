"""Copies of topics, replays and mirrors: what is copied, what a target has of it already, and at which pace."""
