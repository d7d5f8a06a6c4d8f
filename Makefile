# Everything a contributor runs. `make help` prints the targets.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow fuzz check format proto bench lock clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with everything in it; nothing to do the second time

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## compact a log of a million entries; then a topic of as many, at a node
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/demo_topics.py

test: setup  ## run the tests; the rules of the repository are part of `make check`
	$(BIN)/python -m pytest --ignore tests/test_tidy.py --ignore tests/test_docs.py

test-slow: setup  ## run also the tests that take minutes
	$(BIN)/python -m pytest -m "slow or not slow" -o faulthandler_timeout=1800

SECONDS ?= 60
fuzz: setup  ## change conversations of the corpus and play them to sessions, for SECONDS=60
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

check: setup  ## lint, format, types, layers, rules of the repository
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q -n 0 tests/test_tidy.py tests/test_docs.py

format: setup  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup  ## generate the protobuf modules
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
	  lithify/topics/messages/message.proto lithify/pulsar/wire/wire.proto

bench: setup  ## measure all rows and write docs/benchmarks.md; python -m bench --help for one row
	$(BIN)/python -m bench
	$(BIN)/python -m bench.page

lock: setup  ## renew requirements.lock from pyproject.toml
	$(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --generate-hashes --upgrade \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  --extra dev --output-file requirements.lock pyproject.toml

clean:  ## remove what the other targets made
	rm -rf .venv build dist demo-data .mypy_cache .ruff_cache .pytest_cache .hypothesis
