# One word each; every verb makes the environment that it needs by itself.
PYTHON ?= python3
VENV = .venv
VENV_VLLM = .venv-vllm
ARGS ?=

.PHONY: serve test check golden docs bench test-vllm format

serve: $(VENV)/ready
	$(VENV)/bin/antiphon serve $(ARGS)

test: $(VENV)/ready
	$(VENV)/bin/pytest -m "not vllm" $(ARGS)

check: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/ready
	$(VENV)/bin/ruff format .

golden: $(VENV)/ready
	$(VENV)/bin/pytest tests/golden --update-golden
	git diff --stat tests/golden

docs: $(VENV)/ready
	$(VENV)/bin/python docs/draw_lifecycle.py

bench: $(VENV)/ready
	$(VENV)/bin/python -m benchmarks.run $(ARGS)

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@
