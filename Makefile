# make demo    set up .venv and run the main example: a sentence encoder and a search
# make test    style, types and the test suite (alone: make lint, make types, make pytest)
# make bench   the benchmark table
# make docs    the docs site, into build/site
# make dist    the wheels of fusec and fusec-runtime and the source distribution, into dist/
#
# make test-gpu, make bench-gpu   the same on a machine with a CUDA card (RUN=python3: by an installed Python that has PyTorch and Triton)
# make sanitize                   CUDA C++ kernels under compute-sanitizer, there
#
# Everything is installed into .venv, again only when pyproject.toml or constraints.txt changed.
# TORCH_INDEX=<url>  one more index to take torch from     WORKERS=<n>  test processes     ARGS=<...>  more arguments

PYTHON ?= python3
WORKERS ?= 2
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check -qq --no-input

# What test-gpu and bench-gpu wait for: nothing where RUN was given.
INSTALLED := $(if $(filter command,$(firstword $(origin RUN))),,$(STAMP))

.PHONY: demo test pytest lint tree types docs bench test-gpu bench-gpu sanitize dist setup clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	@$(RUN) examples/minilm.py $(ARGS)

test: lint types pytest

# With byte code written, so that tests' own processes need not compile the sources again.
pytest: $(STAMP)
	@PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(STAMP) tree
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@cd build/types && ../../$(VENV)/bin/lint-imports --config ../../pyproject.toml --no-logo --no-cache

# A package is known by its folder, and passes/ and codegen/ stand beside fusec/: one tree of links for tools that ask.
tree:
	@rm -rf build/types && mkdir -p build/types/fusec
	@cd build/types/fusec && ln -s ../../../fusec/* ../../../passes ../../../codegen .

types: $(STAMP) tree
	@cd build/types && ../../$(RUN) -m mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p fusec

# The variable silences what Material says of its successor.
docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict $(ARGS)

test-gpu: $(INSTALLED)
	@PYTHONPATH=. $(RUN) -m pytest tests/gpu $(ARGS)

bench-gpu: $(INSTALLED)
	@PYTHONPATH=. $(RUN) -m benchmarks.gpu $(ARGS)

sanitize: $(INSTALLED)
	@PYTHONPATH=. $(RUN) tests/gpu/sanitize.py $(ARGS)

bench: $(STAMP)
	@$(RUN) -c 'import jax, numexpr' 2>/dev/null || $(PIP) install -c constraints.txt jax numexpr
	@$(RUN) -m benchmarks.cpu $(ARGS)

# What a release publishes, into dist/.
dist: $(STAMP)
	@$(RUN) release/distributions.py

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV) (minutes the first time) ..."
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt torch
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
