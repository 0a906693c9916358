#!/bin/sh
# Says what this machine lacks, and what to install. Exit code 1 when the project cannot be set up here.
#   check_prerequisites.sh            check everything
#   check_prerequisites.sh --python   print the Python interpreter to use, nothing else
#   check_prerequisites.sh --others   print the other interpreters that the project is tested on, one a line
# $PYTHON, when set, is the only interpreter considered; $PYTHONS, when set, names the others.

set -u

version_of() {
    # "3.12"; nothing for what does not run, is not CPython, or has no global interpreter lock.
    "$1" -c '
import sys, sysconfig
if sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

is_usable_python() {
    case "$(version_of "$1")" in 3.1[1-9] | 3.[2-9][0-9]) ;; *) return 1 ;; esac
}

is_optimized_python() {
    # Whether it was compiled with profile-guided optimizations, which brokers are a fifth faster for, and has all that
    # set-up wants of it. Distributions compile theirs so, though not all say it.
    "$1" -c '
import ensurepip, os, sys, sysconfig, venv
said = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
headers = os.path.isfile(sysconfig.get_path("include") + "/Python.h")
sys.exit(not ((said or sys.base_prefix == "/usr") and headers))' >/dev/null 2>&1
}

all_of() {
    IFS=:
    for directory in $PATH; do
        [ -x "$directory/$1" ] && echo "$directory/$1"
    done
    unset IFS
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_usable_python "$PYTHON" && command -v "$PYTHON"
        return
    fi
    # 3.11 first: the locked versions were tested on it. A name may exist without running (a shim of a version manager).
    for name in python3.11 python3.12 python3.13 python3 python3.14; do
        found=
        for candidate in $(all_of "$name"); do
            is_usable_python "$candidate" || continue
            if is_optimized_python "$candidate"; then
                echo "$candidate"
                return 0
            fi
            found=${found:-$candidate}
        done
        if [ -n "$found" ]; then
            echo "$found"
            return 0
        fi
    done
    return 1
}

# What pyproject.toml names; by name on the PATH, or any that pyenv has installed.
TESTED="3.11 3.12 3.13"

interpreters_of() {
    command -v "python$1" 2>/dev/null
    command -v pyenv >/dev/null 2>&1 || return 0
    for installed in $(pyenv versions --bare 2>/dev/null | grep "^$1\.[0-9]*$"); do
        echo "$(pyenv prefix "$installed")/bin/python"
    done
}

find_others() {
    own=$(version_of "$(find_python)")
    for version in $TESTED; do
        [ "$version" = "$own" ] && continue
        for candidate in $(interpreters_of "$version"); do
            # A name may belong to another version, or to none (a shim of a version manager).
            if [ "$(version_of "$candidate")" = "$version" ]; then
                echo "$candidate"
                break
            fi
        done
    done
}

if [ "${1:-}" = "--others" ]; then
    if [ -n "${PYTHONS:-}" ]; then printf '%s\n' $PYTHONS; else find_others; fi
    exit 0
fi

if [ "${1:-}" = "--python" ]; then
    find_python || { echo python3.11; exit 1; }
    exit 0
fi

failed=0
missing() {
    echo "MISSING  $1" >&2
    echo "         $2" >&2
    failed=1
}
optional() {
    # In CI nothing is optional: a test that skips there counts as failed.
    if [ "${CI:-}" = "true" ]; then missing "$1" "$2"; else
        echo "optional $1" >&2
        echo "         $2" >&2
    fi
}

if python=$(find_python); then
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        missing "the venv module of $python" "install it: apt-get install python3-venv"
    header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
    [ -f "$header" ] || missing "Python's C headers ($header)" "install them: apt-get install python3-dev"
else
    missing "CPython 3.11 or newer${PYTHON:+ (PYTHON=$PYTHON)}" \
        "install it: apt-get install python3 python3-venv python3-dev, or set PYTHON to one"
fi

command -v make >/dev/null 2>&1 || missing "make" "install it: apt-get install make"

compiler=${CC:-cc}
command -v "${compiler%% *}" >/dev/null 2>&1 ||
    missing "a C compiler (${compiler%% *})" "install one: apt-get install gcc libc6-dev"

java=java
[ -n "${JAVA_HOME:-}" ] && java=$JAVA_HOME/bin/java
if command -v "$java" >/dev/null 2>&1; then
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 17 ] ||
        missing "Java 17 or newer ($java is Java ${major:-?})" "install it: apt-get install openjdk-17-jdk-headless"
else
    missing "Java 17 (Spark runs on it)" "install it: apt-get install openjdk-17-jdk-headless"
fi

command -v mvn >/dev/null 2>&1 ||
    optional "Maven (mvn): without it the tests against real Apache Kafka and HDFS skip" "install it: apt-get install maven"

[ "$failed" -eq 0 ] || { echo "Set-up needs what is missing above." >&2; exit 1; }
