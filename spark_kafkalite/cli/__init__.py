"""The command line, ``kafkalite``: one file per command, loaded only when it is used."""
