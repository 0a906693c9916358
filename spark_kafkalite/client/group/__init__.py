"""Consumer groups at a coordinator: membership, assignment, committed offsets."""
