# One word each; every verb makes the environment it needs by itself.
PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin

.PHONY: serve test check golden test-vllm bench docs format

serve: $(VENV)/ready
	$(BIN)/antiphon serve $(ARGS)

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

test: $(VENV)/ready
	$(BIN)/pytest $(ARGS)

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
