# `make demo` runs the main job, `make test` the tests; both install what they need into $(VENV) first.
# Needed: Python 3.11 or newer, make, and the network.

VENV ?= .venv
# The interpreter that creates $(VENV). Default: the first on the PATH that is new enough.
PYTHON ?=
# Further arguments of the command that a target runs: make test ARGS="-k codec -x"
ARGS ?=
# Processes that tests run in: they wait for servers more than they compute.
JOBS ?= 4

BIN := $(VENV)/bin
# One that dies ends the run: xdist would wait for the tests of its file for ever.
PARALLEL := --numprocesses $(JOBS) --dist loadscope --no-loadscope-reorder --max-worker-restart 0
# Each process of a test would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE
# The pushed tag, for `tag` and `publish-site`.
TAG ?=
# What a release publishes; the chart's images are at $(REGISTRY), if it is set.
RELEASE := build/release
REGISTRY ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# Versions that may not break each other: 0.1.*, 1.*
SERIES := $(shell echo $(VERSION) | sed -E 's/^(0\.[0-9]+|[0-9]+)\..*/\1/')
# The environment of `test-oldest`.
OLDEST := build/oldest
PIP := $(BIN)/python -P -m pip --disable-pip-version-check
# The folders that hold Python: mypy refuses an empty one.
CODE := $(shell for each in sdk operator crds tests examples benchmarks; do \
  find $$each -name '*.py' 2>/dev/null | grep -q . && echo $$each; done)

.DEFAULT_GOAL := help
.PHONY: help install demo test check test-slow test-oldest chaos e2e lint style layers types format bench crd clean
.PHONY: release-check distribution chart krew site interfaces workflows tag publish-site
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-14s%s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.installed-all ## Install everything that the targets below need into $(VENV)

demo: $(VENV)/.installed-local ## Run a CollectorJob on this machine: PPO solves CartPole and draws its learning curve
	$(BIN)/rollfleet run examples/cartpole/job.yaml --learner examples/cartpole/learner.py $(ARGS) -- --until 475
	@echo "The learning curve: runs/cartpole/curve.png; the trained policy: $(BIN)/rollfleet play runs/cartpole --gif play.gif"

test: $(VENV)/.installed-all ## Run the tests (ARGS: more arguments for pytest)
	$(BIN)/pytest $(PARALLEL) -m "not slow" $(ARGS)

check: $(VENV)/.installed-all ## Run the tests that need no server, for use while writing: half a minute on two cores
	$(BIN)/pytest $(PARALLEL) -m "not slow" tests/api tests/control/pure tests/crds tests/sdk/data tests/sdk/weights tests/sdk/wire $(ARGS)

test-slow: $(VENV)/.installed-all ## Run the slow tests: long runs, random faults, a thousand jobs, the benchmarks' own
	$(BIN)/pytest $(PARALLEL) -m slow $(ARGS)

test-oldest: ## Run tests of rules, plans, wire and NATS with the oldest packages that pyproject.toml allows
	$(MAKE) VENV=$(OLDEST) $(OLDEST)/.made
	$(OLDEST)/bin/python -P -m pip --disable-pip-version-check install --quiet uv --constraint constraints.txt
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct --editable '.[local,cluster,operator]'
	grep -E '^(pytest|hypothesis|jsonschema|trustme|execnet)' constraints.txt >$(OLDEST)/tests.txt
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST) --requirement $(OLDEST)/tests.txt
	$(OLDEST)/bin/pytest $(PARALLEL) -m "not slow" $(addprefix tests/,api control/pure sdk/data sdk/nats sdk/weights sdk/wire) $(ARGS)

e2e: $(VENV)/.installed-all ## Run the tests of a whole cluster: build the images, install the chart, run jobs
	PYTHON=$(BIN)/python tests/cluster/run $(ARGS)

chaos: $(VENV)/.installed-all ## Run 200 random schedules of faults, and minutes without an operator, about an hour (ARGS: more arguments for pytest)
	ROLLFLEET_CHAOS=0-199 ROLLFLEET_AWAY_S=300 $(BIN)/pytest tests/faults/test_chaos.py \
	  tests/control/api_server/test_operator_apiserver_absence.py -o faulthandler_timeout=1800 $(ARGS)

lint: style layers types ## Check style, layers, and types

style: $(VENV)/.installed-all
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

layers: $(VENV)/.installed-all
	$(BIN)/lint-imports

types: $(VENV)/.installed-all
	$(BIN)/mypy $(CODE)

format: $(VENV)/.installed-all ## Fix what ruff can fix by itself
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(VENV)/.installed-bench ## Run the benchmarks, Rollfleet beside its peers (ARGS=--quick: a few minutes)
	$(BIN)/python -P benchmarks/peers.py --json build/bench.json $(ARGS)
	$(if $(ARGS),,$(BIN)/python -P benchmarks/report build/bench.json docs)
	@for script in $(filter-out %/peers.py %/torchrl_suite.py %/torchrl_programs.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python -P "$$script" $(filter --quick,$(ARGS)) || exit 1; \
	done

crd: $(VENV)/.installed-all ## Generate the CRD (crds/ and the chart's copy) and docs/fields.md from rollfleet_api
	$(BIN)/python -P crds/crd.py
	$(BIN)/python -P crds/fields_page.py

release-check: distribution chart krew site interfaces workflows ## Build what a release publishes into build/release, and check it

distribution: $(VENV)/.installed-release
	mkdir -p $(RELEASE)
	rm -f $(RELEASE)/rollfleet-*.whl $(RELEASE)/rollfleet-*.tar.gz
	$(BIN)/python -P -m hatchling build -d $(RELEASE)
	$(BIN)/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible --output-file $(RELEASE)/rollfleet.cdx.json

chart:
	@PATH="$$PATH:$$KUBEBUILDER_ASSETS" REGISTRY=$(REGISTRY) charts/package $(RELEASE)

krew:
	krew/package $(VERSION) $(RELEASE)

site: $(VENV)/.installed-release
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

interfaces: $(VENV)/.installed-release
	@release=$$(git describe --tags --abbrev=0 --match 'v$(SERIES).*' HEAD^ 2>/dev/null) || { \
	  echo "There is no release $(SERIES).* to compare the public names with."; exit 0; }; \
	$(BIN)/griffe check rollfleet --search sdk --extensions docs/public_modules.py --against $$release

workflows:
	@PATH="$(CURDIR)/build/bin:$$PATH"; \
	command -v actionlint >/dev/null || \
	  GOBIN=$(CURDIR)/build/bin go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 || { \
	  echo "Without actionlint, or Go to build it, the workflows are not checked." >&2; exit 0; }; \
	actionlint

# What the workflows call, besides the targets above.
tag:
	@[ "$(TAG)" = "v$(VERSION)" ] || { echo "the tag is $(TAG), pyproject.toml has $(VERSION)" >&2; exit 1; }
	@echo "version=$(VERSION)"

# The branch gh-pages: without a tag as `dev`. The packages of the extra alone: mkdocstrings reads source code.
publish-site: $(VENV)/.made
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' >$(VENV)/docs.txt
	$(PIP) install --quiet --constraint constraints.txt --requirement $(VENV)/docs.txt
	PATH="$(abspath $(BIN)):$$PATH" mike deploy --push $(if $(TAG),--update-aliases $(basename $(TAG:v%=%)) latest,dev)
	$(if $(TAG),PATH="$(abspath $(BIN)):$$PATH" mike set-default --push latest)

clean: ## Remove caches, build outputs, and .venv
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: what `make demo` installs is a part of what `make test` does, in the same place,
# so that the demo does not wait for linters and a simulator.
$(VENV)/.made:
	@python="$(PYTHON)"; \
	new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
	if [ -z "$$python" ]; then \
	  for each in python3 python3.13 python3.12 python3.11 python; do \
	    if new_enough "$$each"; then python=$$each; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ] || ! new_enough "$$python"; then \
	  echo "Rollfleet needs Python 3.11 or newer: $${python:-nothing on the PATH} is not. Install it, or name it: PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "$(VENV): $$("$$python" --version)"; \
	"$$python" -P -m venv "$(VENV)" || { \
	  echo "No virtual environment could be made in $(VENV): see above (Debian and Ubuntu: apt-get install python3-venv)" >&2; \
	  exit 1; \
	}
	@touch $@

$(VENV)/.installed-local: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing into $(VENV): some minutes the first time, torch is large"
	$(PIP) install --quiet --editable '.[local]' --constraint constraints.txt
	@touch $@

$(VENV)/.installed-all: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing into $(VENV): some minutes the first time, torch is large"
	$(PIP) install --quiet --editable '.[local,mujoco,envpool,operator,dev]' --constraint constraints.txt
	@touch $(VENV)/.installed-local $@

$(VENV)/.installed-release: $(VENV)/.installed-all
	$(PIP) install --quiet --editable '.[release]' --constraint constraints.txt
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-all
	$(PIP) install --quiet --editable '.[bench]' --constraint constraints.txt
	@touch $@
