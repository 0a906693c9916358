"""Connections to brokers, and cluster metadata."""
