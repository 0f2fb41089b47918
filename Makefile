# Everything starts from a machine that has Python >= 3.11 and nothing else.
PYTHON ?= python3
VENV   ?= .venv
PYTHONS ?= $(PYTHON)
BIN    := $(VENV)/bin

.PHONY: setup demo smoke test test-long mutants mutate attack benchmark docs release lint format types clean

setup: $(VENV)/.ready  ## create the environment

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[mujoco,minari,logs,behaviours,dsrl,ray,onnx,track,web,dev]'
	# without what they ask for: their pins are dead, or for an old NumPy
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps openpi-client safety-gymnasium==1.0.0 bullet-safety-gym==1.4.0
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Without a GPU, 'pip install --index-url https://download.pytorch.org/whl/cpu torch' in $(VENV) first saves 5 GB."
	test -e $(VENV)/.ready || $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[gym]'
	touch $@

demo: $(VENV)/.demo  ## data, training, evaluation and a report: a room, in two minutes
	$(BIN)/saformer demo plant --out demo

smoke: setup  ## every table and figure of the paper from tiny runs, in a minute or two
	$(BIN)/saformer experiment all --scale smoke --out results/smoke --runs results/smoke/runs

test: setup lint types  ## what CI runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long" --numprocesses auto --dist loadscope --no-loadscope-reorder

test-long: setup  ## learning results that take longer than CI should
	$(BIN)/python -m pytest -m long --ignore tests/test_mutants.py

mutants: setup  ## mistakes on purpose in what must never drift: each is caught
	$(BIN)/python -m pytest -m long tests/test_mutants.py

mutate: setup  ## every mistake that mutmut thinks of in the paper's room (hours; MUTANTS="saformer.core.rules*" for some)
	$(BIN)/python -m pip install --quiet 'mutmut>=3.3'
	$(BIN)/mutmut run $(MUTANTS)

attack: setup  ## thousands of tries to break it; CI has a small share (--seed repeats a failure)
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.attack

benchmark: setup  ## the speeds that docs/performance.md shows
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.decisions
	$(BIN)/python -m benchmarks.updates
	$(BIN)/python -m benchmarks.evaluation --cells 12 --episodes 5 --steps 100

docs: setup  ## the site, in build/site, with warnings as errors
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open build/site/index.html; its search needs a server: $(PYTHON) -m http.server --directory build/site"

release: setup  ## wheel and sdist in dist/, checked and installed afresh (PYTHONS="python3.11 python3.13")
	$(BIN)/python -m pip install --quiet build twine
	$(BIN)/python -m scripts.release --python $(PYTHONS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo results/smoke .pytest_cache .mypy_cache .ruff_cache
