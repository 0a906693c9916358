"""What a load has published: its files, their names, the manifests, and the interface to a file system."""
