"""A whole cluster at a glance, for monitoring: what brokers do not answer in time is left out."""
