# `make demo` and `make test` need Linux, make and Python 3.11 or newer; everything else goes into .venv.
#   PYTHON=/path/to/python3.12   the interpreter to make .venv with
#   V=1                          show what pip does
#   HASHES=1                     install nothing but the files whose hashes requirements-all.txt holds
#   WORKERS=1                    processes that run the tests (default: one for each core, four at most)

VENV   := .venv
BIN    := $(VENV)/bin
# Written before the first package and removed after the last: a .venv that holds it was interrupted and is made anew.
UNDONE := $(VENV)/.installing
# The light set replaces faces; the whole one trains, measures and tests, too.
LIGHT  := $(VENV)/.installed-light
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt $(if $(V),,--quiet)

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python, \
  $(shell command -v $(name) >/dev/null 2>&1 && $(name) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(name))))

unexport PYTHONPATH PYTHONHOME

# Cores this process may use. A file's tests stay in one process, since they share trained networks and rendered films.
WORKERS ?= $(shell $(BIN)/python -c "import os; print(min(4, len(os.sched_getaffinity(0))))")
PYTEST = $(BIN)/python -m pytest -q $(if $(filter-out 0 1,$(WORKERS)),--numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder)

.PHONY: help install light demo test test-all lint docs clean

help:
	@echo "make demo      replace the faces in two photos, results in demo-output/"
	@echo "make test      the test suite without its slow tests"
	@echo "make test-all  the whole test suite"
	@echo "make lint      ruff and mypy"
	@echo "make docs      the documents with the API reference, in build/docs/"
	@echo "make clean     remove what the above made, except .venv"

install: $(STAMP)

light: $(LIGHT)

demo: $(LIGHT)
	@$(BIN)/python tools/demo.py

test: $(STAMP)
	@$(PYTEST) -m "not slow"

test-all: $(STAMP)
	@$(PYTEST) --hypothesis-profile many

# mypy does not follow the mapping of ops/, configs/ and pretrained/ in setup.py, so it reads a tree of links that looks as installed.
lint: $(STAMP)
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/ruff format --check --quiet .
	@rm -rf build/typing && mkdir -p build/typing/ficgan
	@ln -s "$(CURDIR)"/ficgan/* "$(CURDIR)/ops" "$(CURDIR)/configs" "$(CURDIR)/pretrained" build/typing/ficgan/
	@cd build/typing && "$(CURDIR)/$(BIN)/mypy" --config-file ../../pyproject.toml --cache-dir ../mypy -p ficgan

docs: $(STAMP)
	@$(BIN)/python -c "import mkdocs, mkdocstrings" 2>/dev/null || $(PIP) --no-build-isolation --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "Open build/docs/api.html"

clean:
	@rm -rf build demo-output .pytest_cache .mypy_cache .ruff_cache

# $(1): extras, $(2): what is installed, as the user is told.
define INSTALL
	@set -e; \
	if [ -e $(UNDONE) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python="$(PYTHON)"; \
	  if [ -z "$$python" ]; then \
	    echo "ficgan needs Python 3.11 or newer and found none: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	  if ! "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
	    echo "ficgan needs Python 3.11 or newer, and $$python is not: name another: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	  echo "Making $(VENV) with $$("$$python" --version)."; \
	  if ! "$$python" -m venv --clear $(VENV) >/dev/null 2>&1; then rm -rf $(VENV); \
	    echo "$$python cannot make a virtual environment: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; fi; \
	fi; \
	rm -f $@; touch $(UNDONE); \
	trap '[ ! -e $(UNDONE) ] || echo "The installation did not finish: see above, then run make again." >&2' EXIT; \
	echo "Installing ficgan and $(2) into $(VENV)."; \
	$(if $(HASHES),$(BIN)/python tools/lock.py setuptools $(subst ],,$(subst [,,$(1))) > $(VENV)/wanted.txt; \
	$(PIP) --require-hashes --requirement $(VENV)/wanted.txt,$(PIP) setuptools); \
	$(PIP) --no-build-isolation --editable '.$(1)'; \
	rm -f $(UNDONE); touch $@; \
	echo "Installed."
endef

$(LIGHT): setup.py pyproject.toml constraints.txt
	$(call INSTALL,,what replacing faces needs (the first time some 100 MB))

$(STAMP): setup.py pyproject.toml constraints.txt
	$(call INSTALL,[dev],everything that training and tests need (the first time some 3 GB and minutes))
	@touch $(LIGHT)
