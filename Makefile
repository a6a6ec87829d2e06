# Every target sets up .venv by itself; Python 3.11+, git and make are enough.
# PYTHON=python3.12 picks the interpreter, ARGS="-k gate" goes to pytest.

PYTHON ?=
ARGS ?=
export PYTHON

bin := .venv/bin
mark := $(subst /,_,$(PYTHON))
demo_ready := .venv/.demo-$(mark)
dev_ready := .venv/.dev-$(mark)

.DEFAULT_GOAL := help
.PHONY: help demo test simulate check lint types imports coverage format clean

help:
	@echo "make demo      builds a search index over the standard library's source"
	@echo "make test      runs the tests"
	@echo "make simulate  runs simulated fleets under fresh seeds (SEEDS=2000)"
	@echo "make check     what CI runs: lint, types, imports, tests with coverage"
	@echo "make format    formats the code and mends what ruff can mend"
	@echo "make clean     removes .venv and caches"

demo: $(demo_ready)
	@$(bin)/python examples/stdlib_index.py

test: $(dev_ready)
	@$(bin)/python -m pytest -q -n auto $(ARGS)

# Fresh seeds, and before them all that ever failed. SEEDS=100000 for a long night, FIRST=0 for the
# same seeds each time.
SEEDS ?= 2000
FIRST ?=
simulate: $(dev_ready)
	@$(bin)/python -m piecework.testing.simulation --known tests/simulation/failed_seeds.txt \
		--seeds $(SEEDS) $(if $(FIRST),--first $(FIRST),--fresh)

check: lint types imports coverage

lint: $(dev_ready)
	@$(bin)/ruff format --check --quiet .
	@$(bin)/ruff check --quiet .

types: $(dev_ready)
	@$(bin)/pyright --pythonpath $(bin)/python

imports: $(dev_ready)
	@$(bin)/lint-imports --no-logo

coverage: $(dev_ready)
	@$(bin)/coverage erase
	@$(bin)/coverage run -m pytest -q $(ARGS)
	@$(bin)/coverage combine --quiet
	@$(bin)/coverage report --fail-under=95

format: $(dev_ready)
	@$(bin)/ruff format --quiet .
	@$(bin)/ruff check --quiet --fix .

clean:
	@rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache .hypothesis htmlcov .coverage .coverage.*

$(demo_ready): pyproject.toml .ci/install
	@.ci/install demo
	@touch $@

$(dev_ready): pyproject.toml .ci/install
	@.ci/install dev
	@touch $@ $(demo_ready)
