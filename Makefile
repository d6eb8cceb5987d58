# Two commands on a bare machine: `make run` and `make test`. OP=softmax narrows check and bench.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OP     ?=
NPU_PYTHON ?= python3.11

.PHONY: run test test-all lint check bench report test-triton39 npu-env ascend-env npu clean

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

# Toolchains of NPUs, each in an environment of its own (docs/npu.md). Both need Python 3.11.
npu-env:
	$(NPU_PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/python -m pip install -q --disable-pip-version-check 'jax[tpu]==0.10.2'

ascend-env:
	$(NPU_PYTHON) -m venv .venv-ascend
	.venv-ascend/bin/python -m pip install -q --disable-pip-version-check triton-ascend==3.2.0 ascendnpu-ir==1.2.0 pybind11==3.1.0 numpy

# What changed of NPU kernels: checked, compiled, results/npu and its pages written.
npu: $(STAMP)
	$(BIN)/rooftop npu

$(STAMP): pyproject.toml constraints.txt scripts/environment.py
	$(PYTHON) scripts/environment.py $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .venv-triton39 .venv-tpu .venv-ascend report
