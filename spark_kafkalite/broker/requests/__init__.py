"""From a complete request to its answer: dispatch, the handlers, and requests that wait."""
