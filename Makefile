# `make bench` and `make test` are all the set-up a fresh machine needs: Python >= 3.11 and make.

PYTHON ?= python3
BENCH ?= all_reduce
BENCH_RANKS ?= 4
BENCH_ARGS ?= -b 8 -e 64M -f 2
MPI_TEST_RANKS ?= 2 3 4
MPI_TEST_SECONDS ?= 600

SHELL := /bin/bash
STAMP := .venv/.installed
REPORTS := build/reports

export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Open MPI refuses root, and more ranks than cores, unless told that they are meant.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe

.PHONY: help setup bench test lint test-plain test-mpi clean
.NOTPARALLEL:

help:
	@echo "make bench   all_reduce over 4 ranks of this machine (BENCH=all_to_all BENCH_RANKS=2 BENCH_ARGS='-b 1M -e 1M' change it)"
	@echo "make test    every check: lint, types, import contracts, tests, tests under mpirun"
	@echo "make lint    only the static checks; make test-plain, make test-mpi: only those tests"
	@echo "make clean   remove what the others made"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"topoccl needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]} (make PYTHON=python3.x)")'
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mpi,plot,dev]'
	@touch $@

bench: $(STAMP)
	mpirun -n $(BENCH_RANKS) python bench/$(BENCH).py $(BENCH_ARGS)

test: lint test-plain test-mpi
	@python tests/closing_line.py $(REPORTS)/*.xml

lint: $(STAMP)
	ruff check .
	ruff format --check .
	mypy
	lint-imports --no-logo

test-plain: $(STAMP)
	@rm -f $(REPORTS)/plain.xml
	python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --junitxml=$(REPORTS)/plain.xml

# Of these, rank 0 reports; another rank does when it fails. The first failure ends all ranks.
test-mpi: $(STAMP)
	@rm -f $(REPORTS)/mpi-*.xml
	@for n in $(MPI_TEST_RANKS); do \
		echo "mpirun -n $$n python -m pytest --with-mpi tests/mpi"; \
		timeout --foreground --kill-after=10 $(MPI_TEST_SECONDS) mpirun -n $$n \
			python -m pytest --with-mpi tests/mpi -x -p no:xdist -p no:cacheprovider -o faulthandler_timeout=120 \
				--junitxml=$(REPORTS)/mpi-$$n.xml || exit 1; \
	done

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
