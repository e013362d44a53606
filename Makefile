# make help                  these lines
# make setup                 make .venv with the pinned libraries and this package (editable); other targets do it when they need it
# make repro                 the whole pipeline on params.yaml, from nothing
# make repro PROFILE=NAME    the same with a named set of settings (stages/profiles)
# make repro WORKERS=1       one stage after another; WORKERS works with all pipelines below, too
# make study                 the single-task study: localizers, read-outs, baselines, sweeps; runs make repro first
# make multitask             one model for all tasks: regions, relative gains, overlap; runs make repro first
# make continual             one task after another: naive, grafting, replay, EWC; runs make repro first
# make merge                 several grafts as one model, beside averaging, task arithmetic, TIES, DARE; runs make repro first
# make talos                 TaLoS: sparse fine-tuning and task arithmetic; runs make repro first
# make surgical              fine-tuning of single layers by Fisher score; runs make repro first
# make plan PIPELINE=study   what would run and why, and how long it took the last time (no PIPELINE: the main one)
# make verify PIPELINE=study hash every file anew and name those that are not as recorded (no PIPELINE: the main one)
# make report                everything that has run, as one web page
# make test                  the tests
# make walkthroughs          README.md, docs/OWN.md and docs/notebooks as they are printed, with the real DVC
# make test-all              both, and the slow tests: all pipelines from nothing, every kind of model
# make docs                  README.md and docs as a site, with the API from its docstrings, in the folder site
# make bench                 measure masks, merging, patches and fine-tuning beside their peers, as JSON, in two minutes (DEVICE=cuda)
# make lint                  ruff
# make chaos                 kill a small run at random moments and check that it still ends in the same bytes (KILLS=30)
# make release               build wheel and sdist in dist, check them, install them into a fresh environment, and say how they are uploaded
# make clean                 remove every generated artefact, but not the cache

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
PIP_NOTEBOOKS = $(PIP) --no-build-isolation --editable '.[notebooks]'
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# a file's tests stay together, as they share what they make; in the files' order, or the longest would come last
XDIST := --numprocesses 2 --dist loadfile --no-loadscope-reorder
# as many stages at once as there are cores for, unless a number is given
REPRO = python -m stages.workflow.run $(addprefix --workers ,$(WORKERS))
export PATH := $(abspath $(VENV))/bin:$(PATH)
# container images often set it, and every stage would compile torch and transformers anew, which takes longer than the stage
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup help repro study multitask continual merge talos surgical plan verify report test walkthroughs test-all docs bench chaos lint release clean

setup: $(READY)

help:
	@sed -n 's/^# \(make .*\)/\1/p' $(firstword $(MAKEFILE_LIST))

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -r requirements.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

repro: $(READY)
	@if [ -n "$(PROFILE)" ]; then python -m stages.commands.profile "$(PROFILE)"; fi
	$(REPRO)

study multitask continual merge talos surgical: repro
	$(REPRO) stages/$@/dvc.yaml

plan: $(READY)
	@python -m stages.workflow.plan $(PIPELINE)

verify: $(READY)
	@DVC_SITE_CACHE_DIR=$$(mktemp -d) dvc status $(PIPELINE:%=stages/%/)dvc.yaml

report: $(READY)
	python -m stages.workflow.page

test: $(READY)
	python -m pytest $(XDIST)

walkthroughs: $(READY)
	$(PIP_NOTEBOOKS)
	python -m pytest $(XDIST) tests/walkthroughs

test-all: $(READY)
	$(PIP_NOTEBOOKS)
	$(PIP) mypy==2.4.1
	python -m pytest $(XDIST) -m "" tests tests/walkthroughs

docs: $(READY)
	$(PIP) mkdocs-material==9.8.2 'mkdocstrings[python]==1.0.8' mkdocstrings-python==2.0.11
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict --quiet

bench: $(READY)
	@python -m tests.bench $(DEVICE)

chaos: $(READY)
	python -m tests.chaos $(KILLS)

lint: $(READY)
	$(PIP) ruff==0.17.6
	ruff check stages tests

# one fresh environment: what the package needs is installed once
release: $(READY)
	rm -rf dist
	$(PIP) build==1.6.1 twine==7.0.0
	python -m build --outdir dist
	python -m twine check --strict dist/*
	fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(PYTHON) -m venv "$$fresh" && for file in dist/*.whl dist/*.tar.gz; do \
	  "$$fresh"/bin/python -m pip install --quiet --disable-pip-version-check $$file && \
	  awk '/^```python$$/ {inside = 1; next} /^```$$/ && inside {exit} inside' README.md > "$$fresh"/first.py && \
	  (cd "$$fresh" && bin/graft --help > /dev/null && bin/python first.py) || exit 1; \
	  "$$fresh"/bin/python -m pip uninstall --quiet --yes skill-grafting; done
	@echo "dist: $$(cd dist && ls | tr '\n' ' ')built, checked and installed, and README's first lines run; nothing was uploaded"
	@echo "whoever owns the address goes on with:"
	@echo "  git tag v$(VERSION) && git push origin v$(VERSION)"
	@echo "  $(VENV)/bin/python -m twine upload dist/*"

clean:
	git clean -fdXq data/tables data/sample models/pretrained models/finetuned models/joint masks metrics plots
	rm -rf data/*.partial models/*.partial
