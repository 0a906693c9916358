"""The broker's metrics and its health, served over HTTP."""
