#!/bin/sh
# Spark's Python in tests: a small program that has it forked. See spark_python.py.
exec "$KAFKALITE_TESTS_PYTHON" -I -S "${0%.sh}.py" "$@"
