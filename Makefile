# Two commands on a bare machine: `make run` and `make test`. OP=softmax narrows check and bench.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OP     ?=

.PHONY: run test test-all lint check bench report test-triton39 clean

run: $(STAMP)
	@$(BIN)/rooftop climb sgemm_cuda softmax_cuda

# What has changed since it was checked on a GPU, and a sample of the rest; test-all: everything.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal --all

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

check: $(STAMP)
	$(BIN)/rooftop check $(OP)

bench: $(STAMP)
	$(BIN)/rooftop bench $(OP)

report: $(STAMP)
	$(BIN)/rooftop report

# Triton 3.9 in an environment of its own: every Triton kernel is compiled with it for every target.
test-triton39:
	$(PYTHON) scripts/environment.py .venv-triton39 --triton 3.9.0
	.venv-triton39/bin/python -m pytest tests/contracts/test_kernels.py -k "triton and compiles or installed"

$(STAMP): pyproject.toml constraints.txt scripts/environment.py
	$(PYTHON) scripts/environment.py $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .venv-triton39 report
