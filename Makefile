# Each target sets up what it needs; nothing is redone when nothing changed.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
UP_ARGS ?= --nodes 3
EVENTS ?= 1000000
MINUTES ?= 60

.PHONY: help setup up test check format coverage test-wheel image image-root image-lock release release-version assets test-real test-containerd17 test-crio test-charts test-install test-guest test-gpu test-e2e test-yarn soak bench bench-colocation gen chart monitoring diagrams lock clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# uv is used when it is there because it is quicker; plain pip gives the same versions and checks the same hashes. The lock is complete, so nothing is
# resolved again: pip would look at the newest release of what a package wants with an extra, and refuse it because the lock has no hash of it.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "koord needs Python 3.11 or newer, this is %d.%d; set PYTHON=" % v[:2] or 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install -q --python $(BIN)/python --no-deps --require-hashes -r constraints.txt && \
	  uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e . ; \
	else \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r constraints.txt && \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . ; \
	fi
	@touch $(READY)

setup: $(READY) ## create .venv with every extra and the development tools

up: $(READY) ## run a whole cluster in one process (UP_ARGS="--nodes 20 ...")
	@$(BIN)/koord up $(UP_ARGS)

test: $(READY) ## every test that needs only Python
	@$(BIN)/python -m pytest tests --ignore=tests/real --ignore=tests/charts --ignore=tests/install --ignore=tests/guest -n $(JOBS) --dist loadgroup --durations=20 --durations-min=5

check: $(READY) ## format, lint, types, import rules
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache >/tmp/koord-lint-imports.$$$$ 2>&1 || { cat /tmp/koord-lint-imports.$$$$; rm -f /tmp/koord-lint-imports.$$$$; exit 1; }; rm -f /tmp/koord-lint-imports.$$$$
	@echo "check: format, lint, types and imports are clean"

format: $(READY) ## rewrite the sources in the one format
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

coverage: $(READY) ## which lines and branches `make test` reaches: a table here, pages in htmlcov/; nothing is refused for a number
	@rm -f .coverage .coverage.*
	@$(BIN)/python -m pytest tests --ignore=tests/real --ignore=tests/charts --ignore=tests/install --ignore=tests/guest -n $(JOBS) --dist loadgroup --cov --cov-report=term --cov-report=html

test-wheel: $(READY) ## build the wheel, install it into empty environments and start its programs there
	@$(BIN)/python -m tools.wheel

image: $(READY) ## OCI images of all programs and of the node agent into dist/, without Docker (FLAVOUR=agent: one alone)
	@$(BIN)/python -m tools.oci_image $(if $(FLAVOUR),--flavour $(FLAVOUR))

image-root: $(READY) ## the files of one image in a new folder: FLAVOUR=all ROOT=build/image
	@$(BIN)/python -m tools.oci_image --flavour $(or $(FLAVOUR),all) --root $(or $(ROOT),build/image)

image-lock: $(READY) ## lock the image's Debian packages at the newest versions that apt knows
	@$(BIN)/python -m tools.oci_image --lock

release: $(READY) ## wheel, images, chart, bills of materials and checksums of a committed version into dist/
	@$(BIN)/python -m tools.release

release-version: $(READY) ## move the project to a version: files, generated files, section of the changelog (VERSION=0.2.0)
	@$(BIN)/python -m tools.release --set-version "$(VERSION)"

assets: $(READY) ## build the real control plane and node from Go modules into a cache outside the repo
	@$(BIN)/python -m tools.assets
	@$(BIN)/python -m tools.assets node
	@$(BIN)/python -m tools.assets axe || echo "assets: without axe-core its tests of the dashboard are going to be skipped" >&2

# Tests of clusters mostly wait for programs to come to rest, each file beside a control plane or in namespaces of its own: files run at once, the longest
# first (tests/real/conftest.py). What is marked `machine` writes to cgroups, network devices or containerd, of which there is one: one test after another.
test-real: $(READY) assets ## tests against real kube-apiserver, etcd, kubectl, kubelet, containerd and cgroups
	@$(BIN)/python -m pytest tests/real --ignore=tests/real/yarn -m "not machine" -n 3 --dist loadfile --no-loadscope-reorder --durations=25
	@$(BIN)/python -m pytest tests/real --ignore=tests/real/yarn -m machine --durations=25

test-containerd17: $(READY) assets ## tests of NRI with containerd 1.7, which is built from its Go module
	@$(BIN)/python -m tools.assets containerd17
	@KOORD_RUNTIME="containerd 1.7" $(BIN)/python -m pytest tests/real/test_nri_containerd.py

test-crio: $(READY) assets ## tests of NRI with CRI-O, which is built from its Go module with gcc (Debian's package conmon)
	@$(BIN)/python -m tools.assets crio
	@KOORD_RUNTIME=cri-o $(BIN)/python -m pytest tests/real/test_nri_containerd.py

test-charts: $(READY) assets ## tests of the chart with a real Helm and promtool, built from their Go modules, and Debian's Prometheus
	@$(BIN)/python -m tools.assets helm
	@$(BIN)/python -m tools.assets promtool
	@$(BIN)/python -m tools.assets prometheus
	@$(BIN)/python -m pytest tests/charts

test-install: $(READY) assets ## install, upgrade, roll back and uninstall the chart and the image on a real cluster (root, Debian 12)
	@$(BIN)/python -m tools.assets cluster
	@$(BIN)/python -m tools.assets helm
	@$(BIN)/python -m pytest tests/install

test-guest: $(READY) ## koordlet on cgroup v2 in QEMU guests with Debian's kernel; with core scheduling where its kernel is built
	@$(BIN)/python -m tools.guest
	@$(BIN)/python -m pytest tests/guest

test-yarn: $(READY) ## koord-yarn-operator, koord-yarn-copilot and koordlet with Hadoop's ResourceManager and NodeManager (Java 17; Maven once, to fetch them)
	@$(BIN)/python -m tools.assets yarn
	@$(BIN)/python -m pytest tests/real/yarn

test-e2e: $(READY) ## Kubernetes' own end-to-end suite against koord up (needs Go 1.26 once and kubectl; most of an hour)
	@$(BIN)/python -m tools.assets e2e
	@$(BIN)/python -m tools.kubernetes_e2e $(E2E_ARGS)

# No $(READY): a machine with a card may have no package registry. GPU_PYTHON has pytest and koord's dependencies.
GPU_PYTHON ?= $(BIN)/python
test-gpu: ## shares of a GPU measured on a real card (MPS; HAMi-core with KOORD_HAMI_CORE), figures in bench/results/gpu-*.json
	@PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(GPU_PYTHON) -m pytest -c pyproject.toml --confcutdir=tests/gpu -p no:cacheprovider -W ignore tests/gpu/test_card_shares.py tests/gpu/test_card_end_to_end.py tests/gpu/test_card_container.py; \
	  tested=$$?; PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(GPU_PYTHON) -m bench gpu && exit $$tested

soak: $(READY) assets ## random events and chaos for long: EVENTS=1000000 of each machine takes hours, MINUTES=60 of chaos
	@PYTHONHASHSEED=0 KOORD_SOAK=$(EVENTS) $(BIN)/python -m pytest $$(grep -rl --include='test_*.py' 'from tests.soak_budget import' tests) -n $(JOBS) --dist worksteal
	@KOORD_CHAOS_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/real/chaos tests/real/test_kill_rounds.py

bench: $(READY) assets ## ratios against the real control plane, kept in bench/results
	@$(BIN)/python -m bench

bench-colocation: $(READY) ## what koordlet keeps for a service beside batch work: CPU, memory, disk, network; a table, JSON and SVG (root)
	@$(BIN)/python -m bench.isolation

gen: $(READY) assets ## regenerate CRDs and the field tables of built-in kinds
	@$(BIN)/python -m tools.gen

chart: $(READY) ## write the generated parts of charts/koord and the table of its values
	@$(BIN)/python -m tools.chart

monitoring: $(READY) ## write docs/reference, the alert rules and the dashboards from what programs declare
	@$(BIN)/python -m tools.monitoring

diagrams: $(READY) ## draw docs/diagrams/*.svg from docs/diagrams/*.toml and the imports
	@$(BIN)/python -m tools.diagrams

lock: $(READY) ## refresh constraints.txt (needs uv)
	@uv pip compile pyproject.toml --all-extras --group dev --generate-hashes --universal --python-version 3.11 \
	  --no-emit-index-url --no-header --no-annotate -q --upgrade -o constraints.txt

clean: ## remove what the other targets made inside the repo
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* htmlcov
