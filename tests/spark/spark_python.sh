#!/bin/sh
# Python as Spark starts it, with PySpark from site-packages. Spark puts an archive of PySpark before it
# on the path. Python keeps no compiled modules of an archive, so that each process would compile PySpark for itself:
# that is a CPU second for each query that reads a stream.
kept=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept=$kept${kept:+:}$entry ;;
    esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec "$KAFKALITE_TESTS_PYTHON" "$@"
