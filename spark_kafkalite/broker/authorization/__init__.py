"""Which client may do what: ACLs indexed for decisions, the authorizer, and what a session remembers of it."""
