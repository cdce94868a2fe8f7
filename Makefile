# `make help` lists what can be made. Variables: make test PYTHON=python3.13 TORCH=torch CONSTRAINTS=
PYTHON ?= python3
TORCH ?= torch==2.13.0
CONSTRAINTS ?= constraints.txt
PORT ?= 8000
ONLY ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
# Notebooks have a run of their own in `test`: with --cov, nbval waits for its kernel in vain.
# Two workers share the cores, so each computes with one thread. They take the files in the order
# given, here and in tests/conftest.py: the longest first, or one worker waits for the other.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --tb=short \
	-n 2 --dist loadfile --no-loadscope-reorder
NOTEBOOKS := $(wildcard book/*.ipynb)
LONGEST := $(filter %/training.ipynb %/sketch.ipynb %/fast_attention.ipynb,$(NOTEBOOKS))
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help book serve test notebooks lint mutants clean

help:  ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install '$(TORCH)'
	$(PIP) install $(addprefix -c ,$(CONSTRAINTS)) -e '.[dev]'
	@touch $@

book: $(INSTALLED)  ## build the site into _build/html
	@rm -rf _build/html
	$(BIN)/jupyter-book build . --all --quiet --warningiserror --keep-going
	@echo "The book is in $(CURDIR)/_build/html/index.html"
	@echo "To read it in a browser: make serve"

serve: $(INSTALLED)  ## show the site at http://localhost:8000 (PORT=8000), built if it is not yet
	@test -f _build/html/index.html || $(MAKE) book
	@echo "Open http://localhost:$(PORT), stop with Ctrl+C"
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

test: book  ## build the site and run every test
	@# the lines that no test reached: .venv/bin/coverage report
	$(PYTEST) --cov --cov-report= --doctest-modules --doctest-ignore-import-errors attnbook tests
	$(PYTEST) --nbval --nbval-current-env $(LONGEST) $(filter-out $(LONGEST),$(NOTEBOOKS))

notebooks: $(INSTALLED)  ## run the chapters and write their records (ONLY=single_head for one)
	$(BIN)/python tools/execute_notebooks.py $(ONLY)

lint: $(INSTALLED)  ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

mutants: $(INSTALLED)  ## break the code in many small ways and list what no test notices
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut results

clean:  ## remove what was built and measured, but not the environment
	rm -rf _build .pytest_cache .hypothesis .mypy_cache .ruff_cache htmlcov dist mutants .coverage .coverage.*
