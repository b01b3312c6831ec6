# Verbs only; what they do is in sim/ and tests/. `make sim` and `make test` set up what they need.
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
BIN := .venv/bin
READY := .venv/ready

.PHONY: sim waves test regress campaign bench lint docs doctor clean
.SILENT:

sim: $(READY)
	$(BIN)/bellwire run scenarios/main-job.toml

waves: $(READY)
	$(BIN)/bellwire run scenarios/main-job.toml --waves

test: $(READY)
	$(BIN)/python -m pytest -q -n 2

campaign: $(READY)
	$(BIN)/python -m pytest -q -m campaign

regress: $(READY)
	$(BIN)/bellwire regress

bench: $(READY)
	$(BIN)/bellwire bench

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/python -m pytest -q tests/test_e2e_lint.py

docs: $(READY)
	$(BIN)/python -m sim.docs && $(BIN)/python -m sim.waves.shipped

doctor: $(READY)
	$(BIN)/python -m sim.doctor

clean:
	rm -rf build runs .venv

$(READY): pyproject.toml requirements.lock
	test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing: apt install python3" >&2; exit 3; }
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "python3-venv is missing: apt install python3-venv" >&2; exit 3; }
	echo "setting up .venv (once)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c requirements.lock -e '.[test,dev]'
	touch $@
