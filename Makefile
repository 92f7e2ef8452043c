# SPDX-License-Identifier: Apache-2.0
# Everything is installed into .venv, and again only when pyproject.toml or constraints.txt changed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first of these that runs and is new enough; `make PYTHON=/path/to/python ...` overrides it.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	"$$python" -c '$(NEW_ENOUGH)' 2> /dev/null && { echo "$$python"; break; }; done)

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
# What pip does in one process, in as many as there are CPUs; some packages ship files of other Pythons.
COMPILE := $(BIN)/python -m compileall -qq -j 0 .venv/lib || true
ARGS ?=

# Tests start hundreds of processes: each would compile our modules anew where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

# A process for each CPU that we may use; numbers in numpy need no threads beside them.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 8 --dist worksteal

.PHONY: help demo test test-all gpu lint style layers type check docs dist report-bundle clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' Makefile | expand -t 10

demo: .venv/.stamp-package ## run two networks here beside other runtimes, tuned, and on two devices
	$(BIN)/intarsia demo

test: .venv/.stamp-test ## run the tests; ARGS="-k placement" selects some
	$(PYTEST) -m "not exhaustive" $(ARGS)

test-all: .venv/.stamp-test ## run the tests that `make test` leaves out; ARGS as there
	$(PYTEST) -m exhaustive $(ARGS)

gpu: .venv/.stamp-test ## try NVIDIA's GPU of this machine: tests, the conformance kit, figures
	$(INSTALL) --editable '.[cublas,cuda,cudnn,cutlass]'
	$(BIN)/intarsia doctor
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest tests/backends/cuda -q
	$(BIN)/python benchmarks/gpu.py

lint: style layers ## check format, style and layers

style: .venv/.stamp-lint ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

layers: .venv/.stamp-lint ## check that imports point down only
	$(BIN)/lint-imports

type: .venv/.stamp-type ## check the types
	$(BIN)/mypy

check: lint type test ## all of the above but the demo

docs: .venv/.stamp-docs ## build the documentation site into build/site; a warning is an error
	$(BIN)/python scripts/make_site.py build/site

dist: .venv/.stamp-wheel ## build the wheel into dist/, and check that an index would take it
	$(MAKE) report-bundle || echo "no program that draws: reports of this wheel are tables alone"
	rm -rf dist
	PIP_CONSTRAINT="$(CURDIR)/constraints.txt" $(BIN)/python -m build --wheel --outdir dist .
	$(BIN)/twine check --strict dist/*.whl
	$(BIN)/check-wheel-contents dist/*.whl

# npm records where packages came from in a lock file: package.json has exact versions instead.
report-bundle: ## build the program that draws HTML reports; needs node and npm
	@command -v npm > /dev/null || { echo "npm is not here" >&2; exit 1; }
	cd web && npm install --silent && node build.mjs

clean: ## remove all that was made here, .venv included
	rm -rf .venv .zoo web/node_modules src/intarsia/report/page/report.js.gz build dist .hypothesis .*_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The pip that comes with Python may be too old to know dependency groups.
.venv/.stamp-pip: constraints.txt
	@[[ -n "$(PYTHON)" ]] || { echo "no Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(INSTALL) pip
	touch $@

.venv/.stamp-package: .venv/.stamp-pip pyproject.toml
	$(INSTALL) --build-constraint constraints.txt --editable '.[all]'
	$(COMPILE)
	touch $@

.venv/.stamp-%: .venv/.stamp-package
	$(INSTALL) --group $*
	$(COMPILE)
	touch $@
