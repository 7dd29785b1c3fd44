# Everything a developer or a first-time user runs; `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Where it is set, Python compiles every file anew in every process, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# `python3 -m venv` needs Debian's python3-venv; where we may install it we do, elsewhere we say so.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "multiarch-extender needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { \
	  rm -rf .venv; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv && $(PYTHON) -m venv .venv; \
	  else \
	    echo "Python's venv module is missing: install your system's package for it (Debian and Ubuntu: python3-venv)" >&2; exit 1; \
	  fi; }

.venv/.installed: .venv/bin/python requirements-dev.txt pyproject.toml
	@echo "Setting up .venv (once)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: .venv/.installed ## Make .venv with everything, pinned by hash

.PHONY: demo
demo: setup ## The whole story on this machine: registry, webhook, filter, prioritize over HTTP
	@$(BIN)/python -m testbed.demo

.PHONY: test
test: setup ## The unit and integration tests, but for those marked slow, on every core
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

.PHONY: test-slow
test-slow: setup ## The unit and integration tests marked slow
	@$(BIN)/python -m pytest -m slow

WORLD_SECONDS ?= 60
.PHONY: worlds
worlds: setup ## Play simulated clusters for WORLD_SECONDS (60), from a new number or FIRST; exit 1 if a promise is broken
	@$(BIN)/python -m tests.worlds $(or $(FIRST),$(shell date +%s)000) 1000000 --seconds $(WORLD_SECONDS) --keep build/worlds

SECONDS ?= 30
.PHONY: fuzz
fuzz: setup ## Fuzz every parser of bytes from outside, SECONDS (30) each, and the decision; exit 1 on a crash or a hang
	@DECISIONS=20000 $(BIN)/python -m pytest -q tests/unit/placement/test_decision_fuzz.py \
	  tests/unit/placement/test_remembered.py
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

.PHONY: test-all
test-all: setup ## The unit and integration tests on each CPython from 3.11 on that is found (PYTHONS=path:path names more)
	@$(BIN)/python -m tools.release.pythons $(RELEASES)

.PHONY: tables
tables: setup ## Write the tables of the documentation that are made from code, or from traced calls (needs Linux)
	@$(BIN)/python -m tools.docs.tables

.PHONY: manifests
manifests: setup ## Render deploy/manifests from the chart, its README and the schema of its values, its table of rights (needs helm)
	@$(BIN)/python -m tools.chart

.PHONY: sbom
sbom: setup ## Write what the image is made of to dist/sbom.cdx.json (CycloneDX)
	@$(BIN)/python -m tools.release.bill_of_materials dist/sbom.cdx.json

.PHONY: wheels
wheels: setup ## Prove that every pin has a wheel for each architecture of the image (downloads them)
	@$(BIN)/python -m tools.release.wheels

.PHONY: format
format: setup ## Rewrite the code in the house format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

.PHONY: lint
lint: setup ## Format, lint, strict types, import contracts, names of classes
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.lint.identifiers

.PHONY: check
check: lint test ## Everything a commit must pass

# Tests of the chart, of workflows, of kind's and krew's files, and two differential ones are skipped without these.
PROGRAMS := helm kubectl actionlint kind krew pull-secrets read-manifests

# What Python a machine has first is the oldest that is supported, with which mypy and the end-to-end tests run.
.PHONY: ci
ci: export CI = true
ci: setup ## What a change must pass before it lands: lint, the tests on the image's CPython, the pages, a real control plane
	@$(BIN)/python -m testbed.binaries $(PROGRAMS) >/dev/null
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-all RELEASES=image
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory e2e

# Everything that takes too long for each change, or more programs than a change should wait for. Examples are new ones.
# Each part runs, whatever became of those before it.
.PHONY: nightly
nightly: setup ## The slow tests, half an hour of worlds, ten minutes of fuzzing, Helm 3, containerd 2.3, the differentials, mutants, the siege (hours)
	@$(BIN)/python -m testbed.binaries $(PROGRAMS) helm3 containerd kueue karpenter containers-image cosign >/dev/null
	@failed=; for part in "test EXAMPLES=1000" test-slow "worlds WORLD_SECONDS=1800" e2e-slow "fuzz SECONDS=22" mutants siege; do \
	  $(MAKE) --no-print-directory $$part || failed="$$failed $${part%% *}"; \
	done; [ -z "$$failed" ] || { echo "nightly: failed:$$failed" >&2; exit 1; }

.PHONY: release-rehearsal
release-rehearsal: setup ## Make, sign, push, verify and install a release on this machine, by the lines of release.yml (needs root on Debian)
	@$(BIN)/python -m testbed.binaries cosign helm >/dev/null
	@$(BIN)/python -m pytest tests/e2e/test_release_rehearsal.py -m slow -s

.PHONY: mutants
mutants: setup ## Mutants of what decides, a sample by SEED: the share that a test kills, and those that live
	@$(BIN)/python -m tools.mutants --number $(or $(NUMBER),300) $(if $(SEED),--seed $(SEED))

# Each has a control plane of its own. Tests wait more than they compute.
E2E_PROCESSES ?= 3
.PHONY: e2e
e2e: setup ## The end-to-end tests on real control planes, but for those marked slow (the first time needs Go and minutes)
	@$(BIN)/python -m testbed.binaries >/dev/null
	@$(BIN)/python -m pytest tests/e2e -n $(E2E_PROCESSES) --dist loadgroup -m "not slow"

.PHONY: e2e-slow
e2e-slow: setup ## The end-to-end tests marked slow: Kueue, older Helm and containerd, thousands of edits, the frozen plugin
	@$(BIN)/python -m testbed.binaries >/dev/null
	@$(BIN)/python -m pytest tests/e2e -m slow

.PHONY: cluster
cluster: setup ## A local cluster to play with: fake nodes (NODES=real: real ones), service (SERVICE=none: for helm)
	@$(BIN)/python -m testbed.binaries >/dev/null
	@$(BIN)/python -m testbed.playground --nodes $(or $(NODES),fake) --service $(or $(SERVICE),running)

.PHONY: quickstart
quickstart: setup ## The quickstart's commands with helm, with what they print (kept in build/quickstart.txt)
	@$(BIN)/python -m testbed.binaries helm kubectl >/dev/null
	@$(BIN)/python -m tools.docs.quickstart_walk

.PHONY: bench
bench: setup ## The benchmarks that need no cluster, against a Go extender (minutes; needs Go; figures go to .bench)
	@$(BIN)/python -m benchmarks

.PHONY: bench-cluster
bench-cluster: setup ## Pods a second of a real control plane with and without the extender (longer; needs Go)
	@$(BIN)/python -m testbed.binaries >/dev/null
	@$(BIN)/python -m benchmarks throughput

.PHONY: soak
soak: setup ## Whether memory stays level under hours of load
	@$(BIN)/python -m benchmarks soak

.PHONY: siege
siege: setup ## How honest tenants fare while others attack (ten minutes; needs Linux and root, or user namespaces)
	@$(BIN)/python -m benchmarks.siege

# Not with --quiet, which hides the warnings that --strict counts.
.PHONY: docs
docs: setup ## The documentation as a site in site/; a broken link or anchor fails
	@$(BIN)/mkdocs build --strict

.PHONY: docs-pictures
docs-pictures: setup ## Draw docs/pictures again: diagrams, a recording of the demo
	@$(BIN)/python -m tools.docs.pictures

.PHONY: lock
lock: ## Resolve the requirements files anew (needs uv)
	@uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o requirements.txt
	@uv pip compile -q pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-package multiarch-extender --no-header -o requirements-dev.txt

.PHONY: clean
clean: ## Remove what these targets made in the checkout
	@rm -rf .venv .venv-3.* .bench build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
