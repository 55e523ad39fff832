# Two commands: `make demo` sets everything up and runs the main job, `make test` sets everything up and tests it.
VENV ?= .venv
ifeq ($(OS),Windows_NT)
PYTHON ?= python
SCRIPTS := Scripts
else
PYTHON ?= python3
SCRIPTS := bin
endif
BIN := $(VENV)/$(SCRIPTS)
# Every client calls four of the ten digits by each other's names: what they look like is worth sharing, their names are
# not, so that training alone, one model for all and personalized models differ (docs/start.md says how it was chosen).
TASK := --data digits:renamed=4 --partition iid
# Every second round is enough for its curves, and fedavg-ft fine-tunes for an evaluation, as long as for a round.
DEMO := local fedavg fedavg-ft fedper dfedalt $(TASK) --seeds 3 --tune lr=0.02,0.05,0.1 --evaluate-every 2

.PHONY: demo demo-peers papers test test-all test-hostile lint types docs report-image reproduce lists browser bench-peers release-check lowest licenses mutants setup clean

demo: $(VENV)/.demo
	$(BIN)/coterie compare $(DEMO)

# Five real peers on this machine, each a process of its own; one is killed on the way, and comes back.
demo-peers: $(VENV)/.peers
	$(BIN)/python bench/demo_peers.py

# The nine methods of the five papers, on the same task.
papers: $(VENV)/.demo
	$(BIN)/coterie compare dfedalt dfedsalt dfedpgp fedlmt pfedlmt dfedsam dfedsam-mgs fedavg-p scaffold-p $(TASK) \
		--tune lr=0.02,0.1,0.3

# Bytecode is kept, whatever the shell says: the tests start dozens of processes, and each would compile all of Coterie.
PYTEST := PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive \
	$(BIN)/python -m pytest -n 2 --dist worksteal
test: setup lint types
	$(PYTEST)

# Everything, the long forms of tests included (mark exhaustive): hours on two cores.
test-all: setup lint types
	$(PYTEST) -m ""

# Kills, floods, fuzzed commands, damaged folders and hostile files (mark hostile), with their long forms: over an hour.
test-hostile: setup
	$(PYTEST) -m hostile

lint: setup
	$(BIN)/ruff check src tests bench notebooks docs
	$(BIN)/ruff format --check src tests bench notebooks docs/generate

types: setup
	$(BIN)/mypy

# The documentation as a site, into site/: open site/index.html. Nothing is fetched but the packages of the extra docs.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The picture of the demo's report, docs/report.png, in the README and on the site.
report-image: setup
	rm -rf .venvs/demo
	$(BIN)/coterie compare $(DEMO) --out .venvs/demo
	$(BIN)/python docs/generate/report_image.py .venvs/demo/report.html

# After new runs were gathered for the evidence: which tables of the papers were run.
reproduce: setup
	$(BIN)/python docs/generate/reproduce.py

# After a name or a room was added: the lists in README.md, docs/{architecture,metrics,own-topology}.md and `coterie list`.
lists: setup
	$(BIN)/python docs/generate/lists.py

# Chromium for the tests of the report, where the system has none; without it they are skipped.
browser: setup
	$(BIN)/playwright install --with-deps chromium

# Beside other frameworks, each in an environment of its own under .venvs: make bench-peers PEERS=flower REPEATS=5
PEERS ?= flower pfl fedjax
WORKLOADS ?= W1 W2
REPEATS ?= 3
bench-peers: setup
	$(BIN)/python bench/peers.py --peers $(PEERS) --workloads $(WORKLOADS) --repeats $(REPEATS)

# What is about to be released: built into dist/, the wheel from the sdist, installed without extras where nothing else is.
EMPTY := .venvs/release
release-check: setup
	rm -rf dist build $(EMPTY)
	$(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv $(EMPTY)
	$(EMPTY)/$(SCRIPTS)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(EMPTY)/$(SCRIPTS)/python -m pip check --disable-pip-version-check
	$(EMPTY)/$(SCRIPTS)/coterie --version
	$(EMPTY)/$(SCRIPTS)/coterie run dfedsalt --clients 6 --rounds 2 --out $(EMPTY)/run

# The lowest versions that pyproject.toml allows, in an environment of their own: make lowest, or make lowest ONLY=report
lowest: setup
	rm -rf .venvs/lowest
	$(BIN)/python tests/support/lower_bounds.py .venvs/lowest $(ONLY)

# The licenses of all that is installed with Coterie and its extras; others than those known to be free end it.
licenses: setup
	$(BIN)/python tests/support/licenses.py

# One changed line at a time, for each of which a test must fail: make mutants MUTANTS="--room data --count 20 --seed 1". A run
# that was interrupted goes on from .mutants.json.
MUTANTS ?=
mutants: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/support/mutants.py $(MUTANTS)

setup: $(VENV)/.ready

# The stamps are written last, so an interrupted installation is taken up again by the next call. The demo and the site
# need far less than the tests do.
$(VENV)/.demo: EXTRAS := report
$(VENV)/.peers: EXTRAS := report,peers
$(VENV)/.docs: EXTRAS := docs
$(VENV)/.ready: EXTRAS := all
$(VENV)/.demo $(VENV)/.peers $(VENV)/.docs $(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Coterie needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) .venvs site .mypy_cache .ruff_cache .pytest_cache .hypothesis
