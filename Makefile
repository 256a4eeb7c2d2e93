# The house's commands. `make serve` and `make test` are the two to begin with.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SEEDS ?= 500
WORLD ?= plain
TRACES ?= tests/conformance/traces

.PHONY: help setup runtime serve check test test-all sim conformance e2e chaos compose-test bench protos docs lock clean model

help:  ## list these commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup:  ## create .venv with all that serving, checks and tests need (GPU=1: torch with CUDA)
	@$(PYTHON) scripts/setup.py --dev

runtime:  ## create .venv with what serving needs, and no more
	@$(PYTHON) scripts/setup.py

serve: runtime  ## serve the demo model; ARGS='--port 9000 --model DIR' as for `segue serve`
	@exec $(BIN)/segue serve $(ARGS)

model: setup  ## fetch the demo model and compile the CPU kernels, once, so that no test waits
	@$(BIN)/segue model fetch smollm2-135m >/dev/null
	@$(BIN)/python -m kernels.native

check: setup  ## style, types, who may import whom, generated stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --threads 2
	$(PYTEST) -q tests/conformance/test_house.py tests/conformance/test_protos_current.py

# Hundreds of processes start in a run: each would compile our sources, where a machine forbids to keep
# what was compiled.
test test-all e2e chaos compose-test: export PYTHONDONTWRITEBYTECODE =

test: model  ## the suite: unit, sim, conformance, kernels, integration
	SEEDS=$(SEEDS) $(PYTEST) -q -n 2 --dist worksteal tests/unit tests/sim tests/conformance tests/kernels tests/integration

test-all: model  ## what `make test` leaves out: all processes, faults, packaging, containers
	$(PYTEST) -q -n 2 --dist loadfile tests/e2e tests/chaos
	$(PYTEST) -q tests/compose

sim: setup  ## simulate SEEDS=100000 histories with faults (WORLD=priority|displacing|drafts|three_queue)
	@$(BIN)/python -m tests.sim.run --seeds $(SEEDS) --world $(WORLD)

conformance: setup  ## replay the decisions recorded under TRACES=DIR
	@$(BIN)/python -m tests.conformance.replay $(TRACES)

e2e: setup  ## all processes and the OpenAI client
	$(PYTEST) -q tests/e2e

chaos: setup  ## all processes, killed and paused
	$(PYTEST) -q tests/chaos

compose-test: setup  ## docker-compose.yml built, brought up, killed and restarted piece by piece
	$(PYTEST) -q --durations=5 tests/compose

bench: model  ## throughput, latency, idle share, the scheduler's time per step
	@set -e; for file in tests/bench/bench_*.py; do \
	  $(BIN)/python -m tests.bench.$$(basename $$file .py); done

protos: setup  ## generate segue/v1 from protos/
	scripts/generate_protos.sh

docs: setup  ## write what is generated: docs/metrics.md, docs/configuration.md, known variables, the cluster's alerts
	$(BIN)/python -m scripts.write_metrics_page
	$(BIN)/python -m scripts.write_configuration_page
	$(BIN)/python -m scripts.write_known_variables
	$(BIN)/python -m scripts.write_kubernetes_alerts

lock:  ## pin requirements*.in anew (uses the network)
	PYTHON=$(PYTHON) scripts/lock.sh

clean:  ## remove .venv and what tools left
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
