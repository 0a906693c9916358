"""The Spark jobs: load into Hadoop, replay, stream. Each has a plan (pure), a staging part and a publishing part."""
