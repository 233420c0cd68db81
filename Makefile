PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# One environment, which holds what has been needed so far. A stamp for each set of extras says that it is there.
run_EXTRAS := parquet
serve_EXTRAS := serve
docs_EXTRAS := docs,client
all_EXTRAS := test,docs,parquet,cluster,data,adapters,postgres,serve,client,otel,ray
SETS := run serve docs

# One process more than there are cores, as tests of servers mostly wait, and up to four: each takes a gigabyte. A
# file's tests stay in one process, as they share fixtures; tests/conftest.py puts long files first.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL := -n $(PROCESSES) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
TESTED := $(BIN)/python -m pytest $(COUNTED)

# What `make check` runs: the arithmetic, the same seed giving the same run, what is refused, records and stores.
QUICK := tests/core/kernels tests/core/test_validation.py tests/core/contracts/test_policies.py tests/test_golden.py \
  tests/lab/test_simulation.py tests/live/journal tests/live/population/test_decisions.py tests/live/population/test_rewards.py
# Or everything in core that names a policy. "club" is also in "sclub", and some tests say "mixture" for short.
club_WORDS := club and not sclub
cluster_mixture_WORDS := mixture
ONE = tests/core tests/test_golden.py tests/lab/test_simulation.py -k "$(or $($(POLICY)_WORDS),$(POLICY))"

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup run serve check test coverage uncompiled plain warm chaos lint docs clients bench bench-peers release clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.setup-all  ## Create .venv with everything that developers need (PYTHON=... picks the interpreter)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "shoal needs Python 3.11 or newer, and $(PYTHON) is not: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one, for example: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.setup-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$($*_EXTRAS)]'
	@touch $@ $(if $(filter all,$*),$(SETS:%=$(VENV)/.setup-%))

run: $(VENV)/.setup-run  ## Reproduce the quick experiments into results/quick
	$(BIN)/shoal reproduce quick --out results/quick

serve: $(VENV)/.setup-serve  ## See three simulated populations live, in the browser (PORT=... picks the port)
	$(BIN)/shoal demo --port $${PORT:-8000}

check: lint  ## Lint and the quick tests, for while you work (POLICY=bass: those of one policy instead)
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow" $(if $(POLICY),$(ONE),$(QUICK))

test: setup  ## Lint, run all tests, and those of kernels again without compilation and as plain Numba
	@$(MAKE) --no-print-directory -j2 lint warm
	$(TESTED) $(PARALLEL) --ignore tests/test_speed.py
	@$(MAKE) --no-print-directory -j2 uncompiled plain
	$(BIN)/python -m pytest tests/test_speed.py

coverage: setup  ## All tests again, counting the lines that they reach; that takes half as long again
	$(BIN)/coverage erase
	@$(MAKE) --no-print-directory test COUNTED="--cov --cov-append --cov-report= --cov-fail-under=0"
	$(BIN)/coverage report --skip-covered

uncompiled:  # of compiled functions no lines are counted
	NUMBA_DISABLE_JIT=1 $(TESTED) -n 2 tests/core/kernels tests/core/policies/test_against_reference.py::test_same_run

plain:  # in one process, as each would compile everything
	SHOAL_UNITS=0 $(BIN)/python -m pytest -q tests/core/kernels

chaos: setup  ## Attack files, threads, forks and signals for many minutes (SHOAL_CHAOS=20 by default)
	SHOAL_CHAOS=$${SHOAL_CHAOS:-20} $(BIN)/python -m pytest $(PARALLEL) tests/core/attack tests/core/jit tests/core/policies/test_against_reference.py tests/test_site.py tests/live --timeout 0

warm: setup  # so that the tests' processes do not all compile the same
	@$(BIN)/shoal warm $$($(BIN)/python -c 'from shoal.core.policies.registry import policy_names; print(*policy_names())')

lint: setup  ## Style, formatting, types, import direction, private members
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/private.py

docs: $(VENV)/.setup-docs  ## Build the site into site/, offline, with warnings as errors; tutorials also as notebooks
	$(BIN)/python -m mkdocs build --strict

clients: setup  ## Generate the TypeScript client from the OpenAPI document, and pack it into dist/ (needs npm)
	$(BIN)/python -m tools.typescript dist/typescript
	cd dist/typescript && npm pack

bench: setup  ## Measure speed and memory, and write docs/performance.md and the table of docs/live.md
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/cold.py
	$(BIN)/python benchmarks/controller.py
	$(BIN)/python benchmarks/service.py

bench-peers: setup  ## Measure other libraries beside ours, in an environment of their own, and write docs/comparison.md
	$(BIN)/python benchmarks/peers.py

release: setup  ## Build the stated version, try its wheel in a fresh environment, tag it
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[release]'
	$(BIN)/python tools/release.py

clean:  ## Remove .venv, caches and build output (results/ stays)
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
