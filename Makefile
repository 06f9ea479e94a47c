# Needs only Python >= 3.10 and make; pip installs everything else into .venv.
# Another interpreter: make PYTHON=python3.12 demo. Additional arguments: make test ARGS="-k spans".

PYTHON ?= python3
ARGS   ?=
VENV   := .venv
BIN    := $(VENV)/bin
# pip says what it collects: torch and its like take minutes, in which nothing else would be said.
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --progress-bar off
# One process per core with one thread each; more threads would compete. ARGS="-n 0" runs in one process.
# Files in their order: sorted by number of tests, the few long cluster tests would run last, on one core.
# With bytecode kept, whatever the environment says: otherwise every process compiles the tests and the code again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Tests that compare numbers of the models, about a fourth of those of these folders.
NUMERIC := $(addprefix tests/,\
	checkpoints/test_foreign.py checkpoints/test_peft_types.py \
	checkpoints/test_adapter_bert.py checkpoints/test_placed.py training/families/test_families_forward.py \
	replay/test_families.py replay/test_strength.py \
	probe/test_ablation.py probe/test_causal_checkpoints.py probe/test_foreign_checkpoints.py probe/test_runners.py \
	probe/test_lanes.py probe/test_likelihoods.py probe/test_mixed.py probe/test_prune.py probe/test_tree.py \
	training/test_outcomes.py training/test_reference_loop.py)
# As a processor without AVX and one without AVX-512 would compute: the kernels of torch, of oneDNN and, on Intel's
# processors alone, of MKL.
PLAIN := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
AVX2  := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
# The folders whose tests put tensors on a device. The others draw, print, read tables or files, and never do.
ON_DEVICE := $(addprefix tests/,device probe replay studies training checkpoints models jobs data)

.DEFAULT_GOAL := help
ifeq ($(filter .venv-%,$(MAKECMDGOALS)),)  # environments are made side by side: what takes long is to download
.NOTPARALLEL:
endif
.PHONY: help demo test test-slow test-all test-processors test-device test-gpu test-versions test-extras lint format bench study gallery package docs types

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed-demo ## train adapters on a small generated task, ablate them, draw the heatmap
	@$(BIN)/adapter-probe demo $(ARGS)

test: $(VENV)/.installed-dev ## quick tests for the edit loop: in-process, few examples per property
	@$(PYTEST) -m "not slow and not real_data" --hypothesis-profile=quick $(ARGS)

test-slow: $(VENV)/.installed-dev ## all other tests: kills, a cluster, a browser, every style and family, real data
	@$(PYTEST) -m "slow or real_data" $(ARGS)

test-all: $(VENV)/.installed-dev ## all tests; tests on real data are skipped if the data is missing
	@$(PYTEST) $(ARGS)

test-processors: $(VENV)/.installed-dev ## the quick tests of numbers, computed as older processors would
	@$(PLAIN) $(PYTEST) $(NUMERIC) -m "not slow and not real_data" --hypothesis-profile=quick $(ARGS)
	@$(AVX2) $(PYTEST) $(NUMERIC) -m "not slow and not real_data" --hypothesis-profile=quick $(ARGS)

test-device: $(VENV)/.installed-dev ## quick tests on an accelerator that is played with true numbers; ALL=1 for slow ones of devices, too
	@PYTHONPATH=tests/fixtures/pretend $(PYTEST) $(ON_DEVICE) -m "not slow and not real_data" \
		--hypothesis-profile=quick $(ARGS)
	@$(if $(ALL),PYTHONPATH=tests/fixtures/pretend $(PYTEST) tests/device \
		tests/replay/test_families.py::test_every_span_and_random_masks_equal_the_loop \
		-m "slow and not real_data" $(ARGS))

test-gpu: ## on a GPU, within 15 minutes and without a network: quick tests and benchmarks/accelerator.py; see .ci/gpu
	@bash .ci/gpu

test-versions: ## the demo and quick tests, with the lowest and the newest versions of all packages and of Python
	@$(MAKE) --no-print-directory -j2 .venv-lowest/.installed .venv-newest/.installed
	@for name in lowest newest; do \
		echo "With the $$name versions that pyproject.toml allows:" && rm -rf build/demo-$$name && \
		.venv-$$name/bin/adapter-probe demo --tiny --out build/demo-$$name && \
		$(subst $(BIN),.venv-$$name/bin,$(PYTEST)) -m "not slow and not real_data" --hypothesis-profile=quick $(ARGS) || exit 1; \
	done

test-extras: $(VENV)/.installed-dev ## the tests that need the larger optional packages, which it installs into .venv
	@$(PIP) -c constraints.txt -e ".[hub,parquet,lm-eval,rouge,quantised]" "trl>=1.16"
	@$(PYTEST) -m "not real_data" $$(grep -rlE --include='*.py' 'importorskip\("(lm_eval|trl|datasets|pyarrow|rouge_score|bitsandbytes)' tests) $(ARGS)
	@PYTHONPATH=tests/fixtures/pretend $(PYTEST) tests/device/test_half.py tests/checkpoints/test_peft_quantised.py $(ARGS)

lint: $(VENV)/.installed-dev ## check rules and layout with ruff, and the types of the public API with mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory types
	@cd build/types && ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml

types:
	@mkdir -p build/types/adapter_probe
	@cd build/types && ln -sfn $(foreach part,$(wildcard adapter_probe/*) cli figures,../../../$(part)) adapter_probe/

format: $(VENV)/.installed-dev ## format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-dev ## compare with other tools, about 20 minutes; ARGS=--all for every case
	@$(BIN)/python benchmarks/run.py $(ARGS)

study: $(VENV)/.installed-dev ## repeat a study of the documentation: NAME=heatmap DATA=... GTE_SMALL=... MPNET=...
	@$(BIN)/python docs/studies/study.py $(NAME)

gallery: $(VENV)/.installed-dev ## draw every kind of figure on one page; BEFORE=main beside how a commit draws it
	@$(BIN)/python docs/gallery.py build/gallery $(if $(BEFORE),--before $(BEFORE)) $(ARGS)

docs: $(VENV)/.installed-docs types ## execute the notebooks and build the documentation; ARGS=--tiny for a fast demo
	@$(BIN)/python docs/execute.py build/notebooks $(ARGS)
	@$(BIN)/python docs/gallery.py build/gallery $(if $(filter --tiny,$(ARGS)),--only ablation init-sweep) >/dev/null
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# The environment takes its dependencies from $(VENV), which saves minutes of installing torch, but not this package: an
# editable install works by a .pth file, which a folder that is merely on the path does not get executed.
package: $(VENV)/.installed-dev ## build sdist and wheel, and run the wheel's demo in a new environment
	@rm -rf build/package && mkdir -p build
	@$(BIN)/python -m build --no-isolation --outdir build/package . >build/package.log || { cat build/package.log; exit 1; }
	@$(BIN)/python -m venv build/package/venv
	@build/package/venv/bin/python -m pip --disable-pip-version-check --quiet install --no-deps build/package/*.whl
	@$(BIN)/python -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")' \
		>build/package/dependencies.txt
	@cp build/package/dependencies.txt "$$(build/package/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/dependencies.pth"
	@! build/package/venv/bin/python -m pip --disable-pip-version-check check | grep ^adapter-probe
	@cd build/package && venv/bin/python -c 'import sys, adapter_probe as ap; assert ap.__file__.startswith(sys.prefix), ap.__file__'
	@cd build/package && venv/bin/adapter-probe demo --tiny --out demo
	@ls -l build/package/*.whl build/package/*.tar.gz

# Stamps, touched only after success: set-up runs once, and again when one of these files changes.
# An environment that is already there and has pip is kept.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "adapter-probe needs Python 3.10 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 ...")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "Making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing adapter-probe into $(VENV) (minutes the first time)"
	@$(PIP) -c constraints.txt -e ".[demo]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	@echo "Installing the tools that build the documentation into $(VENV)"
	@$(PIP) -c constraints.txt -e ".[docs]"
	@touch $@

.venv-%/.installed: pyproject.toml .ci/environment.sh
	@echo "Installing the $* versions that pyproject.toml allows into .venv-$* (minutes the first time)"
	@bash .ci/environment.sh $*
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing adapter-probe and its test tools into $(VENV) (minutes the first time)"
	@$(PIP) -c constraints.txt -e ".[dev,demo]"
	@touch $(VENV)/.installed-demo $@
