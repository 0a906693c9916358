"""Benches: one script per question, each measuring us and the peer in the same run. See README.md."""
