# The verbs of this project. `make demo` and `make test` work as the first command typed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup check test sim bench demo models lab docs clean

setup: $(READY)

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed: make PYTHON=python3.11 $(MAKECMDGOALS)'; exit 1; }
	@echo 'installing into .venv ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright --warnings
	$(BIN)/lint-imports
	$(BIN)/python tools/lint_lua.py

test: setup
	$(BIN)/python -m pytest

demo: setup
	@$(BIN)/python -m holdfast demo

bench: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
	@$(BIN)/python bench/_apart.py
	$(BIN)/python bench/lock.py
	$(BIN)/python bench/redlock.py

sim models lab:
	@echo '`make $@` comes with the simulator and the fault lab; see CHANGELOG.md, "Not yet".'; exit 2

docs: setup
	$(BIN)/python -m pytest -q tests/tidy

clean:
	rm -rf .venv .mypy_cache .ruff_cache dist build
