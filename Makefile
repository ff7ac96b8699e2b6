# The verbs of this repository. Each sets up .venv by itself, once; all it needs is Python 3.11+.
#
#   make demo       the refund story: a worker dies after the API acted, and nothing happens twice
#   make run        start the proxy            (make run ARGS="--config my.yaml")
#   make example    kill and resume an agent; examples/README.md   (make example ARGS=plain-loop)
#   make test       the test suite without the slow tests
#   make test-all   everything; writes docs/reliability.md
#   make clients    the SDKs, for Python and Node, that the tests put behind the proxy (without: skipped)
#   make check      ruff, mypy, the examples inside the rule files
#   make bench      throughput and cost beside a plain proxy   (make bench ARGS=--quick)
#   make services   write docs/services.md from the rule files
#   make sbom       write dist/sbom.json (CycloneDX) from the locked requirements
#   make audit      bandit over the code, pip-audit over the locked requirements (needs a network)
#   make lock       write requirements/*.txt anew from requirements/*.in

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: help demo run example test test-all clients check bench services sbom audit lock clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.ready-run
	@$(BIN)/onceproxy demo $(ARGS)

run: $(VENV)/.ready-run
	@$(BIN)/onceproxy serve $(ARGS)

# Its packages only, at the versions that the tests use.
EXAMPLE := $(firstword $(ARGS))
EXAMPLE_NEEDS := examples/$(patsubst langgraph-%,langgraph,$(EXAMPLE))/requirements.txt
example: $(VENV)/.ready-run
	@test ! -f $(EXAMPLE_NEEDS) || $(PIP_INSTALL) -r $(EXAMPLE_NEEDS)
	@$(BIN)/python -m examples.crash $(ARGS)

test: $(VENV)/.ready-dev
	@$(BIN)/python -m pytest -n auto -m "not slow" $(ARGS)

# With ARGS only a part may have run, and docs/reliability.md is left as it is.
FIGURES := $(CURDIR)/$(VENV)/reliability.figures
test-all: $(VENV)/.ready-dev
	@$(PIP_INSTALL) --require-hashes -r requirements/fuzz.txt 2>$(VENV)/fuzz.log || echo \
	  "onceproxy: atheris cannot be installed here ($(VENV)/fuzz.log), its tests are skipped"
	@rm -f $(FIGURES)
	@RELIABILITY_FIGURES=$(FIGURES) $(BIN)/python -m pytest -n auto $(ARGS)
	@test -n "$(ARGS)" || $(BIN)/python -m tests.reliability $(FIGURES)

clients: $(VENV)/.ready-clients

check: $(VENV)/.ready-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/onceproxy rules test

bench: $(VENV)/.ready-dev
	@$(BIN)/python -m bench.run $(ARGS)

services: $(VENV)/.ready-run
	@$(BIN)/python tools/services.py

sbom:
	@mkdir -p dist
	@$(PYTHON) tools/sbom.py > dist/sbom.json && echo dist/sbom.json

audit: $(VENV)/.ready-run
	@test -x $(VENV)/audit/bin/bandit || { $(BIN)/python -m venv $(VENV)/audit \
	  && $(VENV)/audit/bin/python -m pip install --disable-pip-version-check --quiet \
	  --require-hashes -r requirements/audit.txt; }
	@$(VENV)/audit/bin/bandit --quiet -ll -c pyproject.toml -r proxy
	@$(VENV)/audit/bin/pip-audit --disable-pip --require-hashes -r requirements/runtime.txt

# The environment. Two stamps, so that the demo need not wait for the tools of the developers; the
# second follows the first, so that `make -j` never runs two installs at once.

$(VENV)/.ready-run: requirements/runtime.txt requirements/build.txt pyproject.toml
	@sh tools/venv.sh $(VENV) $(PYTHON)
	@echo "onceproxy: installing what it needs into $(VENV) (once)"
	@$(PIP_INSTALL) --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-dev: requirements/dev.txt $(VENV)/.ready-run
	@echo "onceproxy: installing what the tests need into $(VENV) (once)"
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

NODE_CLIENTS := tests/clients/node
$(VENV)/.ready-clients: requirements/clients.txt $(NODE_CLIENTS)/package-lock.json $(VENV)/.ready-dev
	@echo "onceproxy: installing the SDKs that the tests put behind the proxy (once)"
	@$(PIP_INSTALL) --no-compile --require-hashes -r requirements/clients.txt
	@if command -v npm >/dev/null; then cd $(NODE_CLIENTS) && npm ci --silent; \
	  else echo "onceproxy: no npm here: the tests of Node's SDKs are skipped" >&2; fi
	@touch $@

# Hashes for every platform's files; no index address, so that any mirror will do.
LOCK := CUSTOM_COMPILE_COMMAND="make lock" $(VENV)/lock/bin/pip-compile --quiet --generate-hashes \
  --allow-unsafe --strip-extras --no-emit-options

lock: $(VENV)/.ready-run
	@test -x $(VENV)/lock/bin/pip-compile || { $(BIN)/python -m venv $(VENV)/lock \
	  && $(VENV)/lock/bin/python -m pip install --disable-pip-version-check --quiet pip-tools; }
	@cd requirements && for name in runtime build dev clients fuzz audit; do \
	  echo "requirements/$$name.txt"; $(subst $(VENV)/,../$(VENV)/,$(LOCK)) -o $$name.txt $$name.in \
	  || exit 1; done

clean:
	@rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
