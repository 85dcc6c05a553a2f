# Everything runs in .venv, which the set-up makes; PYTHON names the interpreter that starts it.
PYTHON ?= python3
BIN := .venv/bin
SETUP := $(PYTHON) scripts/setup_environment.py

# Tests start some hundred processes: each would compile all sources again where none may be kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-all test-engines bench bench-guard lint format docs lock wheel release-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make or update .venv: locked dependencies, consortia, every extra that installs here
	@$(SETUP)

setup-dev:
	@$(SETUP) --require dev

demo: ## sample a posterior from data at four sites; results under runs/
	@$(SETUP) --only plots --only reference
	$(BIN)/consortia run examples/breast_cancer.toml

# Every check runs, also after one failed; the tests end the output.
test: selection := -m "not slow and not engines"
test: ## lint, types, and all tests that are not slow
test-all: ## the same with the slow tests
test test-all: setup-dev
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/mypy & types=$$!; \
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder $(selection) || status=1; \
	wait $$types || { echo "mypy has found errors, see above"; status=1; }; \
	exit $$status

test-engines: setup-dev ## the tests that start processes: MPI ranks, devices, hosts
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder -m "engines and not slow"

bench: setup-dev ## speed against a bare JAX loop and other libraries
	$(BIN)/python -m benchmarks --peers --results benchmarks/RESULTS.md

bench-guard: setup-dev ## ratios of speed that no change may spoil, in five minutes at most
	$(BIN)/python -m benchmarks --only guard

lint: setup-dev ## ruff and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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
