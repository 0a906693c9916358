"""The Spark jobs: load into Hadoop, audit and compact what was loaded, replay, stream."""
