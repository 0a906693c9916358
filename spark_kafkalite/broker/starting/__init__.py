"""The phases of a broker's start, and the values that they pass on. ``broker.start`` runs them in their order."""
