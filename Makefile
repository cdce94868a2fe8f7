# `make help` lists what can be made. Variables: make test PYTHON=python3.13 TORCH=torch CONSTRAINTS=
PYTHON ?= python3
TORCH ?= torch==2.13.0
CONSTRAINTS ?= constraints.txt
PORT ?= 8000
ONLY ?=
LIVE ?=
WEEKLY ?=
SINCE ?= main
COVER ?=

export ATTNBOOK_LIVE := $(LIVE)
export ATTNBOOK_WEEKLY := $(WEEKLY)
# Dozens of processes import the same packages: the first compiles them and keeps the bytecode.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
SITE := _build/html/index.html
SOURCES := _config.yml _toc.yml $(shell find attnbook book course/installing.py -type f -not -path '*/__pycache__/*')
NOTEBOOKS := $(wildcard book/*.ipynb)
LONGEST := $(filter %/backpropagation.ipynb %/training.ipynb %/sketch.ipynb %/estimators.ipynb,$(NOTEBOOKS))
# Workers share the cores, so each computes with one thread; one more waits for what it started.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -p no:logging --tb=short -n 3
DOCTESTS := --doctest-modules --doctest-ignore-import-errors attnbook course

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WHAT := $(addprefix -c ,$(CONSTRAINTS)) -e
# uv installs in seconds what takes pip half a minute; pip knows mirrors that uv does not.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python $(WHAT) $(1) || $(PIP) install $(WHAT) $(1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book serve learner course exam pdf environment models test chapters changed elsewhere cells notebooks lint \
	mutants clean

help:  ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

# What each target needs is installed before it runs for the first time: the site wants no PyTorch.
.venv/.made:
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install uv || true
	@touch $@

.venv/.book: .venv/.made pyproject.toml $(CONSTRAINTS)
	@echo "Installing what the site needs into .venv"
	@$(call install,'.[book]')
	@touch $@

# PyTorch comes first and by pip, which knows where a build for the CPU alone may lie.
.venv/.test: .venv/.book
	@echo "Installing PyTorch and what the chapters and the tests need into .venv"
	@$(PIP) install '$(TORCH)'
	@$(call install,'.[test]')
	@touch $@

.venv/.pdf: .venv/.book
	@$(call install,'.[pdf]')
	@touch $@

.venv/.lint .venv/.mutants: .venv/.%: .venv/.test
	@$(call install,'.[$*]')
	@touch $@

book: $(SITE)  ## build the site into _build/html (LIVE=folder: with Pyodide's files)
	@echo "The book is in $(CURDIR)/$(SITE)"
	@echo "To read it in a browser: make serve"

$(SITE): $(SOURCES) | .venv/.book
	@rm -rf _build/html
	$(BIN)/jupyter-book build . --all --quiet --warningiserror --keep-going

serve: $(SITE)  ## show the site at http://localhost:8000 (PORT=8000)
	@echo "Open http://localhost:$(PORT), stop with Ctrl+C"
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

learner: $(SITE)  ## the chapters as notebooks for plain Jupyter, VS Code, Colab and Kaggle, and the package
	@echo "The notebooks are in $(CURDIR)/$(dir $(SITE))notebooks"

course: .venv/.test $(SITE)  ## assignments of all chapters, for students and for teachers
	$(BIN)/python -m attnbook course

exam: .venv/.made  ## print an exam without its answers (ONLY='1 11 19', ONLY=mid-term, ONLY='final --answers')
	@$(BIN)/python tools/exam_paper.py $(ONLY)

pdf: $(SITE) | .venv/.pdf  ## print the book into _build/attnbook.pdf (wants Chromium)
	$(BIN)/python tools/print_book.py $(dir $(SITE)) _build/attnbook.pdf

environment: .venv/.test  ## install into .venv what the chapters and the tests need

models: .venv/.made  ## fetch the weights of the sentence encoder, 91 MB, into the cache folder
	@$(call install,.)
	$(BIN)/python -m attnbook models get sentence-encoder

test: .venv/.test  ## build the site and run the tests (WEEKLY=1: the long ones too; COVER=--cov)
	@# the site is built on one core: the chapters run beside it
	@$(MAKE) --no-print-directory --jobs=2 $(SITE) chapters
	@# without these weights the tests that need them skip and say so
	-@$(BIN)/python -m attnbook models get sentence-encoder
	$(PYTEST) -p no:nbval --dist worksteal $(COVER) $(DOCTESTS) tests

chapters: .venv/.test  ## run the chapters and compare with their records
	@# a notebook runs in one kernel, so its cells go to one worker; the longest begin
	$(PYTEST) --dist loadfile --no-loadscope-reorder \
		--nbval --nbval-current-env $(LONGEST) $(filter-out $(LONGEST),$(NOTEBOOKS))

changed: .venv/.test  ## test in a minute what you changed (SINCE=main)
	$(BIN)/python tools/changed.py --since $(SINCE)

elsewhere: .venv/.test  ## run the tests as on other processors (ONLY=oldest, ONLY='--fast oldest')
	$(BIN)/python tools/elsewhere.py $(ONLY)

cells: .venv/.test $(SITE)  ## run every live cell of every chapter in Chromium (ONLY=single_head)
	ATTNBOOK_REQUIRE_SITE=1 ATTNBOOK_WEEKLY=1 $(PYTEST) --dist worksteal $(addprefix -k ,$(ONLY)) tests/live

notebooks: .venv/.test  ## run the notebooks and write their records (ONLY=single_head for one)
	$(BIN)/python tools/execute_notebooks.py $(ONLY)

lint: .venv/.lint  ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

mutants: .venv/.mutants  ## break the code in many small ways and list what no test notices
	ATTNBOOK_WEEKLY=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut results

clean:  ## remove what was built and measured, but not the environment nor the secret of the course
	@# without the secret nobody's variants can be graded any more
	@test ! -d _build || find _build -mindepth 1 -maxdepth 1 ! -name course-secret.txt -exec rm -rf {} +
	@rmdir _build 2>/dev/null || true
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache htmlcov dist mutants .coverage .coverage.*
