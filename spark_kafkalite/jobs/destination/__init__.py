"""A destination: its files and their names, its lease, its manifests, and the commit of a run."""
