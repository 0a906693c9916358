"""``kafkalite topics``: one file per action, or a few that belong together; each is loaded when it is chosen."""
