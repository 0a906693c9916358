"""Files of the log: the file system as it is used, files replaced as a whole, removal."""
