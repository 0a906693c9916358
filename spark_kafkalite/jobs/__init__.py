"""The Spark jobs, a module each: load into Hadoop, audit and compact what was loaded, replay, mirror, stream."""
