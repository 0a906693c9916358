"""The audit: counts files and log again, and compares both with the manifests."""
