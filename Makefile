# Every target works from a bare clone: each makes first what it needs. Needs python3 >= 3.11, make and git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
PIP := -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup test servers crash soak fuzz demo bench lint types lock clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.kernels  ## make .venv, install everything into it, compile the kernels

test: setup servers  ## run the tests; with SLOW=1 also those that take long, as CI does
	$(BIN)/python -m pytest -n auto $(if $(SLOW),,-m "not slow")

servers: setup  ## install the S3 servers that tests talk to, under .cache (a minute, once)
	@$(BIN)/python -m tools.s3 install

crash: setup  ## crash everything that changes a store, at every point (five minutes)
	$(BIN)/python -m tools.crash

soak: setup  ## savers, loaders, gc, repack and checks at work on one store at once (five minutes)
	$(BIN)/python -m tools.crash.soak

fuzz: setup  ## fuzz all that reads what a remote sent (ten minutes)
	$(BIN)/python -m tools.fuzz

demo: setup  ## train, kill, resume, branch: see what it does (under 4 minutes, after some of installing, once)
	$(BIN)/python -m tools.demo

bench: setup $(PEERS)/.ready  ## measure everything beside the peers (an hour or more)
	$(BIN)/python -m tools.bench all

lint: setup  ## check style and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports --no-cache

types: setup  ## check types
	$(BIN)/mypy

lock:  ## renew requirements/dev.lock with the newest versions that fit pyproject.toml
	tools/lock

clean:  ## remove everything that was made here
	rm -rf $(VENV) $(PEERS) .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find store moonclip tools tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A half-made environment has no .ready and is made anew.
$(VENV)/.ready: requirements/dev.lock pyproject.toml
	@echo "making $(VENV) (a few minutes, once)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python $(PIP) install --requirement requirements/dev.lock
	$(BIN)/python $(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# Compiled once, so that no first save and no test ever waits for a compiler.
$(VENV)/.kernels: $(VENV)/.ready $(wildcard store/kernels/*.py)
	@echo "compiling the kernels (half a minute, once)"
	@$(BIN)/python -c 'from store import kernels; print("kernels:", "compiled" if kernels.warm() else "NumPy twins (no numba here)")'
	@touch $@

$(PEERS)/.ready: requirements/peers.lock
	@echo "making $(PEERS) (a few minutes, once)"
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python $(PIP) install --requirement requirements/peers.lock
	@touch $@
