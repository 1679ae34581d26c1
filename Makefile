# Everything here does its own set-up first (tools/setup_environment.py): once, resumable, in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv/bin
# make demo MODEL=DIR, make demo KERNELS=none, make demo ARGS="--requests 8"
MODEL   ?=
KERNELS ?= reference
# make hosts RELEASES="0.27.1rc1 0.30.0rc2", make hosts ARGS=--static
RELEASES ?=
ARGS    ?=

.PHONY: help demo test lint bench check-kernels evidence hosts check-hosts check-demo env-demo env-test clean

help:
	@echo "make demo            set up, then serve a real chat model on the emulated NPU, stock and with cascade"
	@echo "make demo MODEL=DIR  the same with your own model folder;  KERNELS=none leaves the kernels out"
	@echo "make test            set up, then run all tests and checks"
	@echo "make lint            ruff and mypy"
	@echo "make bench           the programs in benchmarks/"
	@echo "make check-kernels   compile the Triton kernels for an Ascend 910B2 up to CANN's part (its own .venv-kernels)"
	@echo "make evidence        run the demo again and rewrite docs/evidence/cascade/"
	@echo "make hosts           every carrier on every host release, one after another, into docs/evidence/carriers/;"
	@echo "                     RELEASES=\"0.27.1rc1 0.30.0rc2\" some of them, ARGS=--static their source files only"
	@echo "make check-hosts     the seams in the source files of all releases are what docs/evidence/carriers/ says"
	@echo "make clean           remove the environment and what the demo wrote"

env-demo:
	@$(if $(PYTHON),,$(error no python3 found: install python3.11))$(PYTHON) tools/setup_environment.py demo

env-test:
	@$(if $(PYTHON),,$(error no python3 found: install python3.11))$(PYTHON) tools/setup_environment.py test

# Before the set-up, which takes minutes.
check-demo:
	@$(if $(filter reference none,$(KERNELS)),,$(error KERNELS=$(KERNELS): accepted are reference and none))test -z "$(MODEL)" \
	|| test -f "$(MODEL)/config.json" || { echo "MODEL=$(MODEL): no model folder there (it has no config.json)"; exit 1; }

demo: check-demo env-demo
	@$(VENV)/python -m demo --kernels $(KERNELS) $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test: env-test
	$(VENV)/python -m pytest -q
	$(VENV)/ruff check .
	$(VENV)/mypy

lint: env-test
	$(VENV)/ruff check .
	$(VENV)/mypy

bench: env-test
	@mkdir -p out
	$(VENV)/python benchmarks/default_off.py --out out/default_off.json
	$(VENV)/python -m torch_npu_emulator -- $(VENV)/python benchmarks/fused_attention.py --out out/fused_attention.json
	$(VENV)/python benchmarks/carrier_overhead.py --out out/carrier_overhead.json
	$(VENV)/python -m torch_npu_emulator -- $(VENV)/python benchmarks/decode_mask_overhead.py --out out/decode_mask_overhead.json
	$(VENV)/python benchmarks/manager_cli.py --json out/manager_cli.json
	$(VENV)/python benchmarks/planner.py --out out/planner.json
	$(VENV)/python benchmarks/planner_simulation.py --out out/planner_simulation.json
	$(VENV)/python benchmarks/cascade_step_cost.py --out out/cascade_step_cost.json
	$(VENV)/python benchmarks/cascade_serve.py --out out/cascade_serve.json

check-kernels:
	@$(if $(PYTHON),,$(error no python3 found: install python3.11))$(PYTHON) -m tools.check_kernels --json out/check_kernels.json $(ARGS)

evidence: env-demo
	$(VENV)/python docs/evidence/cascade/collect.py

hosts: env-test
	@$(VENV)/python -m tools.hosts --releases "$(RELEASES)" $(ARGS)

check-hosts: env-test
	@$(VENV)/python -m tools.hosts --static --check

clean:
	rm -rf .hosts .venv .venv.log .venv.lock out
