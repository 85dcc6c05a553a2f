# Everything runs in .venv, which the set-up makes; PYTHON names the interpreter that starts it.
PYTHON ?= python3
BIN := .venv/bin
SETUP := $(PYTHON) scripts/setup_environment.py
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest --dist loadgroup --no-loadscope-reorder

# Tests start some hundred processes: each would compile all sources again where none may be kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-all every-test test-engines bench bench-guard lint format docs lock wheel release-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make or update .venv: locked dependencies, consortia, every extra that installs here
	@$(SETUP)

setup-dev:
	@$(SETUP) --require dev

demo: ## sample a posterior from data at four sites; results under runs/
	@$(SETUP) --only plots --only reference
	$(BIN)/consortia run examples/breast_cancer.toml

test: setup-dev ## all tests that are not slow and start no processes
	$(PYTEST) -n 2 -m "not slow and not engines and not lint"

test-engines: setup-dev ## the tests that start processes: MPI ranks, devices, hosts
	$(PYTEST) -n 2 -m "engines and not slow"

# The tests run also where `lint` has failed. No recipe calls both: make -n would run the tests.
test-all: ## what `make lint` checks, and all tests, the slow ones too
	@$(MAKE) --keep-going lint every-test

every-test: setup-dev
	$(PYTEST) -n 2 -m "not lint"

bench: setup-dev ## speed against a bare JAX loop and other libraries
	$(BIN)/python -m benchmarks --peers --results benchmarks/RESULTS.md

bench-guard: setup-dev ## ratios of speed that no change may spoil, in five minutes at most
	$(BIN)/python -m benchmarks --only guard

# Every check runs, also after one failed; mypy beside the others.
lint: SOURCES := --doctest-modules --doctest-glob=README.md src README.md tests/algorithms/test_shapes.py tests/docs tests/mutants tests/packaging tests/test_rooms.py
lint: setup-dev ## ruff, types, rooms, English, docstrings and their examples
	@status=0; \
	$(BIN)/mypy & types=$$!; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(PYTEST) -n 0 -m lint $(SOURCES) || status=1; \
	wait $$types || { echo "mypy has found errors, see above"; status=1; }; \
	exit $$status

format: setup-dev ## let ruff mend and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: ## write docs/study-file.md and the schema, then the site: build/site/index.html
	@$(SETUP) --require dev --require docs
	$(BIN)/python scripts/write_study_page.py
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs build/site

lock: ## resolve pyproject.toml into requirements/ (needs uv; UPGRADE=1: the newest)
	$(PYTHON) scripts/lock_requirements.py $(if $(UPGRADE),--upgrade)

wheel: setup-dev ## build dist/consortia-*.whl, and dist/consortia_site-*.whl
	$(BIN)/python -m build --wheel --no-isolation
	$(BIN)/python -m build --wheel --no-isolation --outdir dist packaging/site

release-check: setup-dev ## build, and try the oldest and newest dependencies in empty environments
	$(BIN)/python scripts/release_check.py

clean: ## remove .venv and what the tools made; runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
