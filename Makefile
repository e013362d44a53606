# make repro                 the whole pipeline on params.yaml, from nothing
# make repro PROFILE=NAME    the same with a named set of settings (stages/profiles)
# make study                 the single-task study: localizers, read-outs, baselines, sweeps; after make repro
# make test                  the tests
# make bench                 what mask learning costs beside its bare passes
# make clean                 remove every generated artefact, but not the cache

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: setup repro study test bench lint clean

setup: $(READY)

$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -r requirements.txt
	@touch $@

repro: $(READY)
	@if [ -n "$(PROFILE)" ]; then python -m stages.profile "$(PROFILE)"; fi
	@echo "The default run takes 12 minutes or more on 2 cores, 2 GB of memory and 2 GB of disk; 'dvc status' says what is due."
	dvc repro

study: repro
	@echo "The default study takes 20 minutes or more on 2 cores; 'dvc status stages/study/dvc.yaml' says what is due."
	dvc repro stages/study/dvc.yaml

test: $(READY)
	python -m pytest

bench: $(READY)
	python -m tests.bench_mask_learning

lint: $(READY)
	python -m pip install --quiet --disable-pip-version-check ruff==0.17.6
	ruff check stages tests

clean:
	git clean -fdXq data models masks metrics plots
