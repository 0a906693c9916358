# The two commands for a fresh clone are `make demo` and `make test`; each sets up what it needs first.
# Files named .stamp-* inside a virtual environment say what was installed, so that a second run starts at once.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
VENV40 := .venv-spark40
VENV42 := .venv-spark42
# What the soak runs beside these: the oldest PySpark that is supported, and the newest of each minor version.
SOAK_VENVS := .venv-spark400 .venv-spark41 .venv-spark421
PY := $(VENV)/bin/python
PYTHON_FOUND = $(shell scripts/check_prerequisites.sh --python)
KERNEL_SOURCES := $(wildcard spark_kafkalite/*.pyx spark_kafkalite/records/*.pyx spark_kafkalite/records/*.pxi)
BUILD_INPUTS := pyproject.toml setup.py
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps

# A host's own name need not resolve; everything here stays on loopback.
export SPARK_LOCAL_IP := 127.0.0.1

.PHONY: help setup setup-spark40 setup-spark42 setup-sparks setup-pandas setup-recipes setup-kerberos setup-debian setup-jars setup-test build lint format check test costs stress test-pythons soak bench bench-quick setup-wheels wheel check-wheel docs demo clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp-project ## Check the prerequisites, make .venv, install everything and build the kernel

setup-spark40: $(VENV40)/.stamp-project ## The same in .venv-spark40, with the newest PySpark 4.0

setup-spark42: $(VENV42)/.stamp-project ## The same in .venv-spark42, with PySpark 4.2.0

setup-sparks: setup-spark40 setup-spark42 $(SOAK_VENVS:=/.stamp-project) ## The same with every PySpark that the soak runs

setup-pandas: $(VENV)/.stamp-pandas ## Install what one test of Spark needs, apart from everything else

setup-recipes: $(VENV)/.stamp-recipes ## Install what the recipes of docs/spark.md need, apart from everything else

# They are built with the headers of libkrb5, so they come after the packages of Debian.
setup-kerberos: $(VENV)/.stamp-kerberos ## Install what the tests of Kerberos need (after libkrb5-dev is installed)

$(VENV)/.stamp-kerberos: requirements-kerberos.txt | $(VENV)/.stamp-project
	@$(VENV)/bin/python $(PIP_INSTALL) -r $<
	@touch $@

setup-debian: ## Install the Debian packages that some tests use (needs root)
	@scripts/install_debian_packages.sh

setup-jars: setup ## Fetch the jars that tests and benches use (once; where they cannot be had the tests skip)
	@$(PY) -m tests.lab.jars || test "$$CI" != true

# One recipe for all environments: the stamp's directory is the environment, its requirements the first prerequisite.
define make_environment
	@scripts/check_prerequisites.sh
	@test ! -x $(@D)/bin/python || echo "Setting up $(@D), which is there already"
	@test -x $(@D)/bin/python || echo "Setting up $(@D) with $(PYTHON_FOUND); the first time takes some minutes"
	@test -x $(@D)/bin/python || $(PYTHON_FOUND) -m venv $(@D)
	@$(@D)/bin/python $(PIP_INSTALL) -r $<
	@touch $@
endef

$(VENV)/.stamp-requirements: requirements.txt scripts/check_prerequisites.sh
	$(make_environment)

.venv-%/.stamp-requirements: requirements-%.txt requirements-spark.txt scripts/check_prerequisites.sh
	$(make_environment)

.PRECIOUS: .venv-%/.stamp-requirements

# What is wanted apart from everything else lies in a directory of its own: the stamp .stamp-NAME is of NAME.
define install_apart
	@rm -rf $(@D)/$*
	@$(@D)/bin/python $(PIP_INSTALL) --target $(@D)/$* -r $<
	@touch $@
endef

$(VENV)/.stamp-pandas $(VENV)/.stamp-recipes: $(VENV)/.stamp-%: requirements-%.txt | $(VENV)/.stamp-requirements
	$(install_apart)

$(VENV42)/.stamp-pandas: $(VENV42)/.stamp-%: requirements-%.txt | $(VENV42)/.stamp-requirements
	$(install_apart)

# The kernel is built into the source tree, which all environments use.
%/.stamp-project: %/.stamp-requirements $(BUILD_INPUTS) $(KERNEL_SOURCES)
	@echo "Installing the project into $* and building its kernel"
	@$*/bin/python $(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

build: setup ## Build the native kernel in place
	@$(PY) setup.py --quiet build_ext --inplace

lint: setup ## ruff, mypy --strict, the layers, dead code, repeated code and the English of texts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo
	@! $(VENV)/bin/vulture | grep "^spark_kafkalite/" | grep -vE "^spark_kafkalite/(errors|wire/api_keys).py"
	@$(PY) scripts/check_repeated_code.py
	@$(PY) scripts/check_prose.py

format: setup ## Let ruff rewrite what it can
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

check: setup ## lint, types, layers, unit tests and the simulator's main tests: minutes
	@$(PY) scripts/run_tests.py --lint check

# What a machine needs for them is installed first; the clock of the fifteen minutes starts after it.
setup-test: setup setup-spark40 setup-spark42 setup-pandas setup-jars
	@for environment in $(VENV) $(VENV40) $(VENV42); do \
		$$environment/bin/python -m tests.spark.class_archive || echo "Spark starts without an archive of its classes."; \
	done
	@$(PY) -m tests.lab.class_archives || echo "Apache Kafka, HDFS and ZooKeeper start without archives of their classes."
ifeq ($(CI),true)
	@$(MAKE) --no-print-directory setup-debian
endif
	@if command -v krb5-config >/dev/null; then $(MAKE) --no-print-directory setup-kerberos; \
	else echo "Tests of Kerberos are skipped: libkrb5-dev is missing (make setup-debian)."; fi

test: setup-test ## All tests and lint in one pool: a quarter of an hour on two quiet cores
	@$(PY) scripts/run_tests.py --lint

costs: setup-test ## The same on a quiet machine; writes what each file costs to tests/costs.json
	@$(PY) scripts/run_tests.py --lint --write-costs

# Each has an environment of its own; its kernel lies beside the others' in the source tree, under a name of its own.
test-pythons: setup ## Unit, twin, golden and contract tests on the other interpreters that this machine has
	@pythons=$$(scripts/check_prerequisites.sh --others); failed=; \
	test -n "$$pythons" || { echo "There is no other Python here; name some in PYTHONS." >&2; exit 1; }; \
	for python in $$pythons; do \
		environment=.venv-py$$($$python -c 'import sys; print("%d%d" % sys.version_info[:2])') && \
		echo "### $$($$python --version) in $$environment" && \
		PYTHON=$$python $(MAKE) --no-print-directory VENV=$$environment setup && \
		$$environment/bin/python scripts/run_tests.py --environment $$environment unit contract || failed="$$failed $$python"; \
	done; \
	test -z "$$failed" || { echo "FAILED on$$failed" >&2; exit 1; }

stress: setup ## The test files that a change touches, ten times each next to busy loops and random stops
	@$(PY) -m tests.stress $(STRESS)

SUITE ?= simulator contract crash interop cluster chaos cluster-day mutants applications applications400 applications40 applications41 applications42 applications421 jvm
soak: setup setup-sparks setup-pandas $(VENV42)/.stamp-pandas setup-recipes setup-jars ## The full counts of SUITE, of all that have any by default: hours, and root for power cuts
	@KAFKALITE_SOAK=1 $(PY) scripts/run_tests.py $(SUITE) -- --timeout=3600

bench: setup setup-spark42 setup-jars ## Measure everything against Apache Kafka, its clients and Spark's connector
	@$(PY) -m bench

bench-quick: setup setup-spark42 setup-jars ## The same with small amounts: minutes, rough figures
	@$(PY) -m bench --quick

# One for each Python that this machine has, or that PYTHONS names.
PYTHONS_OF_WHEELS = $(PYTHON_FOUND) $(shell scripts/check_prerequisites.sh --others)

setup-wheels: .venv-wheels/.stamp-wheels

.venv-wheels/.stamp-wheels: requirements-wheels.txt scripts/check_prerequisites.sh
	$(make_environment)

wheel: setup-wheels ## Build the files of a release into dist/: manylinux wheels for x86_64 and aarch64, and an sdist
	@rm -rf dist
	@.venv-wheels/bin/python scripts/build_wheels.py $(PYTHONS_OF_WHEELS)

check-wheel: ## Install each wheel of dist/ that runs here without a compiler: produce, consume, read with Spark
	@$(PYTHON_FOUND) scripts/check_wheels.py $(PYTHONS_OF_WHEELS)

docs: setup ## Write the generated pages of docs/ again, and the pictures of our board if it has changed
	@$(PY) scripts/generate_docs.py
	@$(PY) -m tests.boards

demo: setup ## The main job on real input: about five minutes, ends with a table
	@$(PY) -m tests.lab.jars hdfs-mini-cluster || echo "The demo goes on without HDFS."
	@PYSPARK_PYTHON=$(CURDIR)/$(PY) PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) jobs/demo.py

clean: ## Remove what was built (not the virtual environments)
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -f spark_kafkalite/*.so spark_kafkalite/*.c spark_kafkalite/records/*.so spark_kafkalite/records/*.c
	@rm -f .venv*/.stamp-project
