"""Requests that wait: for records, for acknowledgements, for pages of the disk, and their deadlines."""
