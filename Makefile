# `make` or `make help` lists what there is. Every target is a line or two; what takes more lives in scripts/.
#
#   PORT=6380       the port of `make run`
#   SERVER=...      another server than the redis-server (or valkey-server) on PATH: a name or a path
#   SERVERS="..."   the servers of `make test-servers`, instead of all of them
#   STARTS=n        how often `make instructions` starts the server: more starts, steadier figures
#   FULL=1          `make bench` up to five million buckets of each kind (6 GB); with SERVERS="..." on each of these
#   COUNTS=1        `make bench` of instructions and bytes alone, which hardly depend on the machine
#   CELL=/path      `make bench` measures redis-cell too: its libredis_cell.so
#   PLOTS=folder    `make bench` draws its plots there

.DEFAULT_GOAL := help
.PHONY: help run build release test test-servers trust-long fuzz load fuzz-core deny lint fmt doc bench instructions deps test-deps clean

# One place for what is built, whatever the environment says: redis.conf names it.
export CARGO_TARGET_DIR := $(CURDIR)/target
MODULE := $(CARGO_TARGET_DIR)/release/libredis_token_bucket.so

PORT ?= 6379
SHELL_FILES := .ci/run $(wildcard scripts/*)

# The tests and scripts/ read TB_SERVER. They do not all run in this folder, so a path is made absolute; a bare name is left to PATH.
ifdef SERVER
export TB_SERVER := $(if $(findstring /,$(SERVER)),$(abspath $(SERVER)),$(SERVER))
endif

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The port is looked at before the build, which takes minutes the first time.
run: ## a server with the module in the foreground, as redis.conf says (PORT=6380, SERVER=valkey-server)
	@scripts/run --check $(PORT)
	@$(MAKE) --no-print-directory release
	@scripts/run $(PORT)

build: deps ## the module for development, in target/debug
	cargo build --workspace

release: deps ## the module to ship: target/release/libredis_token_bucket.so
	cargo build --release
	@[ -e $(MODULE) ] || ln -s libredis_token_bucket.dylib $(MODULE) # macOS names it so; redis.conf does not

test: test-deps release ## every test; those of the server once more against the release build
	cargo test --workspace --no-fail-fast
	TB_MODULE=$(MODULE) scripts/server-tests

test-servers: test-deps release ## the server tests on every supported Redis and Valkey, brought into target/servers
	TB_MODULE=$(MODULE) scripts/test-servers $(SERVERS)

trust-long: release ## the crash, failover and memory tests in their long form (many minutes)
	TB_TRUST=long TB_MODULE=$(MODULE) cargo test --test trust -- --nocapture

fuzz: release ## any bytes among any commands against a model, for SECONDS=3600, repeatable with SEED=...
	TB_SECONDS=$(or $(SECONDS),3600) TB_SEED=$(SEED) TB_MODULE=$(MODULE) cargo test --test trust fuzz -- --nocapture

load: release ## a thousand connections and ten thousand tenants for SECONDS=120
	TB_SECONDS=$(or $(SECONDS),120) TB_MODULE=$(MODULE) cargo test --test trust a_thousand -- --nocapture

fuzz-core: ## coverage-guided fuzzing of the parsers, the stored form and the fast path, SECONDS=60 each (needs a C++ compiler)
	@scripts/fuzz-core $(or $(SECONDS),60)

deny: ## the dependencies: known faults, licences, sources
	@scripts/deny

lint: deps ## formatting, clippy, documentation and shell scripts, warnings forbidden
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --all-features
	for file in $(SHELL_FILES); do bash -n "$$file" || exit 1; done
	if command -v shellcheck >/dev/null; then shellcheck $(SHELL_FILES); fi

fmt: ## format the code
	cargo fmt --all

doc: deps ## the documentation, in target/doc
	cargo doc --workspace --no-deps --all-features

bench: deps ## peers on the same work in one run, the tables of docs/figures.md (needs valgrind; minutes; FULL=1, SERVERS, CELL, PLOTS)
	$(if $(SERVERS),scripts/get-servers target/servers $(SERVERS))
	cargo build --release --example noop
	cargo bench --bench server

instructions: deps ## instructions per call, next to SET ... PX in the same run (needs valgrind; STARTS=n)
	cargo bench --bench instructions

deps: ## install what building needs, or say what is missing (`make test` sees to its own)
	@scripts/install-deps

test-deps:
	@scripts/install-deps tests

clean: ## remove what was built; the data of `make run` stays in run/
	cargo clean
