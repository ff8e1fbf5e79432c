# Every target sets up what it needs in .venv; nothing outside the checkout is touched.

PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
TESTS := tests/affinity tests/wal tests/tx tests/checkpoints tests/rebalance tests/store
COVERED := affinity=95 wal=95 tx=95 checkpoints=95 rebalance=95 engine=85

# Tests start hundreds of processes; each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test fast check format coverage mutate nightly sim bench bench-spark wheel-check java strace clean

demo: .venv/.demo
	$(BIN)/tidelog demo

# `make test COVER=1` counts beside that what runs, and holds each folder to its floor.
test: .venv/.ready java strace
	$(BIN)/python -m pytest -n 2 \
		$(if $(COVER),--cov --cov-report=term --cov-report=json:.venv/coverage.json)
	$(if $(COVER),$(BIN)/python tests/support/coverage_floor.py .venv/coverage.json $(COVERED))

# `make fast TESTS=tests/engine`: the quick ones of another folder, or of all by `TESTS=tests`.
fast: .venv/.ready
	$(BIN)/python -m pytest -n 2 -m "not slow and not nightly and not spark" $(TESTS)

sim: .venv/.ready
	TIDELOG_STORMS=1-200 TIDELOG_COPIES_STORMS=1-300 TIDELOG_GROWING_STORMS=1-300 TIDELOG_TRANSACTION_STORMS=1-400 $(BIN)/python -m pytest -n 2 tests/cluster/test_storms.py

nightly: .venv/.ready
	TIDELOG_STORMS=1-2000 TIDELOG_COPIES_STORMS=1-3000 TIDELOG_GROWING_STORMS=1-3000 TIDELOG_TRANSACTION_STORMS=1-3000 $(BIN)/python -m pytest -n 2 tests/cluster/test_storms.py
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 -m nightly

# The second run of mypy goes without a cache: read from one, a test that looks names up in a module
# of the package can break mypy itself.
check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cd .typing && ../$(BIN)/mypy --config-file ../pyproject.toml --no-namespace-packages -p tidelog
	cd .typing && MYPYPATH=../tests:../benchmarks:../examples ../$(BIN)/mypy --config-file ../pyproject.toml \
		--cache-dir=/dev/null --explicit-package-bases ../tests ../benchmarks ../examples

format: .venv/.ready
	$(BIN)/ruff check --fix-only --select I .
	$(BIN)/ruff format .

coverage:
	$(MAKE) test COVER=1

# Takes about three quarters of an hour; stopped, it goes on where it was.
mutate: .venv/.ready
	PYTHONPATH=tests $(BIN)/python -m support.mutate $(MUTATE)

bench: .venv/.bench
	$(BIN)/python benchmarks/run.py --write
	$(BIN)/python benchmarks/cluster.py --write

bench-spark: .venv/.ready
	$(BIN)/python benchmarks/spark.py --write

wheel-check: .venv/.ready
	PYTHONPATH=tests $(BIN)/python -m support.wheel_check

clean:
	rm -rf .venv .typing build dist tidelog.egg-info .coverage \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis

# Spark's tests need it, nothing else does.
java:
	@ok() { "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
			| grep -qE 'version "(1[7-9]|[2-9][0-9])'; }; \
		ok || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null; }; \
		ok || { echo "The Spark tests need a full Java 17 or newer, on PATH or in JAVA_HOME" >&2; \
			exit 1; }

# With it tests/engine/test_real_syncs.py sees what the real disk is asked for.
strace:
	@ok() { command -v strace >/dev/null; }; \
		ok || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& apt-get install -y -qq --no-install-recommends strace >/dev/null; }; \
		ok || { echo "tests/engine/test_real_syncs.py needs strace on PATH" >&2; exit 1; }

# ------------------------------------------------------------------ the virtual environment

.venv/.created:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed" \
		"(on Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -U pip
	@touch $@

.venv/.demo: pyproject.toml | .venv/.created
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e '.[demo]'
	@touch $@

.venv/.bench: pyproject.toml | .venv/.created
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e '.[bench]'
	@touch $@

# Spark looks for its plug-ins in the folders of the path, where an editable install does not show.
# The hidden link lets mypy see the root under the package's name.
.venv/.ready: pyproject.toml | .venv/.created
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e '.[dev,examples,spark]'
	@echo "$(CURDIR)/pipeline/discovery" > "$$($(BIN)/python -c \
		'import sysconfig; print(sysconfig.get_path("purelib"))')/tidelog_discovery.pth"
	@mkdir -p .typing && ln -sfn .. .typing/tidelog && touch $@
