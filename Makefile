# Every target sets up what it needs from nothing: a virtual environment, the pinned tools, the native build.
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
NATIVE := $(wildcard src/sparsewire/kernels/native/*.cpp src/sparsewire/kernels/native/*.hpp)

OLD       := .venv-old-torch
OLD_TORCH := 2.4.0
HOSTS     := .venv-hosts

.PHONY: demo test test-old-torch test-hosts check lint docs bench lab sanitize fuzz clean

demo: $(READY)
	$(PY) -m sparsewire demo

test: $(READY)
	$(PY) -m pytest

# The torch tests with the oldest torch that is supported, in an environment of its own (docs/guides/ddp.md). PyPI has it
# with CUDA only, 3 GB.
test-old-torch:
	test -x $(OLD)/bin/python || python3 -m venv $(OLD)
	$(OLD)/bin/python -m pip install -q 'torch==$(OLD_TORCH)' 'numpy<2.1'
	$(OLD)/bin/python -m pip install -q '.[zstd]' pytest pytest-timeout hypothesis ml_dtypes
	$(OLD)/bin/python -m pytest tests/torch tests/comm tests/training/test_local*.py tests/training/test_nodes*.py

# The tests of TensorFlow, Keras and JAX, and of what else trains on torch (Hugging Face's Trainer, torchft, Triton), in an
# environment of their own.
test-hosts:
	test -x $(HOSTS)/bin/python || python3 -m venv $(HOSTS)
	PIP_CONSTRAINT=constraints-hosts.txt $(HOSTS)/bin/python -m pip install -q tensorflow-cpu keras jax optax flax \
	  orbax-checkpoint numpy torch zstandard ml_dtypes pytest pytest-timeout hypothesis scikit-build-core nanobind \
	  torchft transformers accelerate scikit-learn triton
	$(HOSTS)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	$(HOSTS)/bin/python -m pytest $(wildcard tests/keras tests/jax) tests/comm/test_comm_hosts.py \
	  tests/kernels/test_triton.py tests/torch/test_hf.py tests/torch/torchft
	$(HOSTS)/bin/python -m pytest tests/package/test_examples.py -k "hf or torchft or keras"

lint: $(READY)
	$(VENV)/bin/ruff check src tests benchmarks examples docs/*.py
	$(VENV)/bin/ruff format --check src tests benchmarks examples docs/*.py
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

check: lint test

# The site, in docs/_build/html: a warning, such as a link to a page that is not there, is an error.
docs: $(VENV)/.ready-docs
	$(PY) -m sphinx -b html -W --keep-going -q docs docs/_build/html

$(VENV)/.ready-docs: $(READY)
	PIP_CONSTRAINT=constraints.txt $(PY) -m pip install -q 'sparsewire[docs]'
	touch $@

bench: $(READY)
	$(PY) -m sparsewire bench kernels
	$(PY) -m sparsewire bench codecs

# The headline table on links of 100 Mbit/s and 1 Gbit/s, as root: results as JSON lines, and a page (docs/guides/lab.md).
# What has finished before is not run again: remove out/lab.jsonl to start anew. A cell that failed fails this, too.
lab: $(READY)
	mkdir -p out
	$(PY) -m sparsewire bench rates --json out/rates.json
	$(PY) -m sparsewire lab train benchmarks/lab.toml -o out/lab.jsonl; status=$$?; \
	$(PY) -m sparsewire lab report out/lab.jsonl out/rates.json -o out/lab.html && exit $$status

# The native decoders against mutated frames, built with AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize: $(READY)
	benchmarks/sanitize.sh $(PY)

# The same against the build as it is, in an address space that may grow by 256 MB and no more.
fuzz: $(READY)
	$(PY) benchmarks/fuzz.py --count 100000 --claims --memory 256

$(READY): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	test -x $(PY) || python3 -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(PY) -m pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(OLD) $(HOSTS) build dist out docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f src/sparsewire/kernels/_native*.so
