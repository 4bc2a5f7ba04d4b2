# The commands a newcomer needs. Each does its own set-up on a bare Debian 12 machine (missing Debian
# packages, header packages), then configures, builds and runs. What they do by hand: CONTRIBUTING.md

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PREFIX ?= /usr/local
PYTHON ?= python3
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
# Everything that can be built here is tested here; a preset's name chooses by hand.
TEST_PRESET ?= $(shell scripts/has_nvcc.sh && echo cuda || echo cpu)
# The demo builds CUDA code only where it can show it.
DEMO_PRESET ?= $(shell scripts/has_nvcc.sh && nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)

# Where threads meet: the pool, dispatch, the C ABI, many callers on one object. The kernels themselves share
# nothing, and would take the thread sanitizer a quarter of an hour.
TSAN_TESTS := core_test dispatch_test capi_test behaviour_test
empty :=
space := $(empty) $(empty)

BUILD := cmake --build --parallel $(JOBS) --preset

.PHONY: help demo test aarch64 bench fuzz lint format docs install wheel clean

help: ## This list
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Attend the example data, compare with PyTorch's output, run a small benchmark
	@scripts/setup.sh build
	@scripts/demo.sh $(DEMO_PRESET) $(JOBS)

test: ## Build everything and run all tests, also under ASan+UBSan and TSan
	@scripts/setup.sh build test python
	cmake --preset $(TEST_PRESET) -DBATTEN_BUILD_TESTS=ON -DBATTEN_BUILD_PYTHON=ON
	$(BUILD) $(TEST_PRESET)
	cmake --preset asan
	$(BUILD) asan
	ctest --preset asan --parallel $(JOBS)
	cmake --preset tsan
	$(BUILD) tsan --target $(TSAN_TESTS)
	ctest --preset tsan --parallel $(JOBS) --tests-regex '^($(subst $(space),|,$(TSAN_TESTS)))'
	ctest --preset $(TEST_PRESET) --parallel $(JOBS)

aarch64: ## Cross-build for aarch64, and run the CPU tests under qemu
	@scripts/setup.sh build test aarch64
	cmake --preset aarch64
	$(BUILD) aarch64
	ctest --preset aarch64 --parallel $(JOBS)

bench: ## Run the benchmarks of this machine into results/
	@scripts/setup.sh build bench
	cmake --preset $(TEST_PRESET) -DBATTEN_BUILD_TESTS=OFF -DBATTEN_BUILD_BENCHMARKS=ON
	$(BUILD) $(TEST_PRESET)
	scripts/bench.sh build/$(TEST_PRESET)

fuzz: ## Fuzz each parser for FUZZ_SECONDS (60)
	@scripts/setup.sh build fuzz
	cmake --preset fuzz
	$(BUILD) fuzz --target fuzzers
	scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS)

lint: ## clang-format, clang-tidy, codespell, and the rules of the house
	@scripts/setup.sh build test lint
	cmake --preset cpu
	scripts/lint.sh build/cpu $(JOBS)

format: ## Rewrite the sources with clang-format
	@scripts/setup.sh lint
	scripts/sources.sh | xargs -0 clang-format -i

docs: ## The API reference, into build/docs
	@scripts/setup.sh docs
	@mkdir -p build/docs
	doxygen docs/Doxyfile
	@echo "build/docs/html/index.html"

install: ## Install libraries, headers and command under PREFIX (/usr/local); CMAKE_FLAGS adds options
	@scripts/setup.sh build
	cmake --preset release -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX)) $(CMAKE_FLAGS)
	$(BUILD) release
	cmake --install build/release

wheel: ## Build the Python package into build/wheel, with CUDA where nvcc is found
	@scripts/setup.sh build python
	$(PYTHON) -m pip wheel --no-deps --wheel-dir build/wheel .

clean: ## Remove what was built; the fetched header packages stay
	rm -rf build/cpu build/cuda build/asan build/tsan build/aarch64 build/fuzz build/release build/docs build/wheel
