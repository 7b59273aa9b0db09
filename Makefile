# What a developer runs; .ci/run runs the same. PYTHON, VENV, DJANGO and ARGS can be given.

PYTHON ?= python3
VENV ?= .venv
# For example DJANGO='django~=6.1.0', together with a VENV of its own.
DJANGO ?= django
ARGS ?=
# The peers want a newer Python than the package: a venv of their own, with the newest there is.
BENCH_VENV ?= .venv-bench
BENCH_PYTHONS ?= python3.14 python3.13 python3.12 $(PYTHON)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
PACKAGE := django_durable_jobs
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types migrations docs wheel messages bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## Run the example project
	$(BIN)/python testproject/demo.py $(ARGS)

test: $(VENV)/.installed-test ## Run the tests on every database that is to be had, e.g. ARGS="--db sqlite -x"
	$(BIN)/python -m pytest $(ARGS)

check: lint types migrations docs wheel ## Run all checks but the tests

lint: $(VENV)/.installed-dev ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## Check types
	$(BIN)/mypy

migrations: $(VENV)/.installed-test ## Check that no migration is missing, whatever the project's keys
	@for field in AutoField BigAutoField; do \
		echo "makemigrations --check with $$field"; \
		DJANGO_SETTINGS_MODULE=tests.settings DDJ_AUTO_FIELD=django.db.models.$$field \
			$(BIN)/python -m django makemigrations $(PACKAGE) --check --dry-run --pythonpath . || exit 1; \
	done

messages: $(VENV)/.installed-test ## Bring the catalogues of translations up to date (needs gettext)
	cd $(PACKAGE) && ../$(BIN)/python -m django makemessages --all --no-location --no-obsolete
	cd $(PACKAGE) && ../$(BIN)/python -m django compilemessages

docs: $(VENV)/.installed-dev ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/.installed-dev ## Build the package into dist/ and look into the wheel
	rm -rf dist
	$(BIN)/python -m build --no-isolation > /dev/null
	$(BIN)/python .ci/check_wheel.py dist/*.whl

bench: $(BENCH_VENV)/.installed-bench ## Measure speed beside peers, e.g. ARGS="--size full --json"
	$(BENCH_VENV)/bin/python benchmarks/run.py $(ARGS)

clean: ## Remove what was built, and the virtual environments
	rm -rf $(VENV) $(BENCH_VENV) build dist site .pytest_cache .mypy_cache .ruff_cache

# The environment. A stamp file tells what is installed, so that a second make installs nothing.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
		echo "$(PYTHON) is not Python 3.11 or later; name one: make PYTHON=python3.13 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "$(PYTHON) cannot make virtual environments; install them (on Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	$(PIP) --editable . '$(DJANGO)'
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[test]' '$(DJANGO)'
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]' '$(DJANGO)'
	@touch $@ $(VENV)/.installed-test $(VENV)/.installed-demo

$(BENCH_VENV)/bin/python:
	@for python in $(BENCH_PYTHONS); do \
		$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' 2> /dev/null && break; \
	done; \
	echo "$$python -m venv $(BENCH_VENV)"; \
	$$python -m venv $(BENCH_VENV)

$(BENCH_VENV)/.installed-bench: pyproject.toml benchmarks/requirements.txt | $(BENCH_VENV)/bin/python
	$(BENCH_VENV)/bin/python -m pip install --quiet --editable '.[test]' -r benchmarks/requirements.txt
	@touch $@
