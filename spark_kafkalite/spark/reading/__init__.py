"""The source: offsets and ranges on the driver, records in the tasks."""
