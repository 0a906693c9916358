"""The settings of the broker, of topics and of groups, and changes to them at run time."""
