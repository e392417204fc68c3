# Everything a maintainer runs. Users of the library need none of this: rebar3 and mix build it by themselves.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Both tools, and cargo below them, share _build; and their output is unreadable when mixed.
.NOTPARALLEL:

# A plain rustup installation is on PATH only in shells that were started after it.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
# Elixir complains on every start in the C locale, where machines without a person tend to run.
export ELIXIR_ERL_OPTIONS ?= +fnu

# In native/, where cargo finds the .cargo/config.toml that puts its output under _build.
cargo := cd native && cargo
# Every interleaving of the models in tests/loom. Apart from other builds, which would be made anew after each change of
# flags.
loom := cd native && RUSTFLAGS='--cfg loom' cargo test --locked --profile loom --target-dir ../_build/cargo-loom
# How many times as many rounds as `make test' the soak goes through, and for how many minutes it looks for leaks.
soak ?= 10
minutes ?= 60
# It stands there, and nowhere else.
version = $(shell sed -n 's/.*{vsn, "\(.*\)"}.*/\1/p' src/canal_lock.app.src)

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what this machine lacks, given that it has Rust
	@scripts/setup.sh

# The session of the README first; then half a minute of load, which fails if a promise is broken.
.PHONY: demo
demo: setup ## watch permits being taken, refused and given back, and an HTTP router that limits its back-ends
	rebar3 as examples compile
	ERL_LIBS=_build/rebar3/examples/lib escript examples/demo.escript
	@examples/router/demo.sh

.PHONY: demo-elixir
demo-elixir: setup ## kill workers that share a Redis of eight connections, which counts what it refuses
	mix compile
	elixir --erl +Bd -pa _build/dev/lib/canal_lock/ebin examples/redis_connections.exs

# In half a minute; fails if a promise is broken. Without the break handler: Ctrl-C ends it, and its nodes with it.
.PHONY: demo-cluster
demo-cluster: setup ## watch locks move between five nodes that are cut off, killed and paused, and judge it
	rebar3 as examples compile
	ERL_LIBS=_build/rebar3/examples/lib erl -noinput +Bd -run cluster_demo main

.PHONY: shell
shell: setup ## an Erlang shell with canal_lock started, and the first lines to type
	rebar3 compile
	@scripts/shell.sh

.PHONY: test
test: setup both-tools ## run all tests
	$(cargo) test --locked --package permit_table --package quorum --package vm_allocator
	$(cargo) test --locked --package quorum_check
	$(loom) --package permit_table --test loom
	$(loom) --package quorum --lib models
	scripts/eunit.sh
	mix test --warnings-as-errors
	test/packaging/downstream/run.sh
	@cat _build/eunit-skipped.txt

# That each tool builds the project on its own, and that a second build finds nothing to do and says nothing.
.PHONY: both-tools
both-tools:
	rebar3 compile
	mix compile --warnings-as-errors
	@again=$$(mix compile) && test -z "$$again" || { echo "mix compile found work to do twice: $$again" >&2; exit 1; }

.PHONY: check
check: setup check-layout check-rust check-instructions
check: check-erlang check-elixir check-promises ## formatting, lints, types, docs, instructions of a call

.PHONY: check-layout
check-layout:
	scripts/layout.sh

.PHONY: check-rust
check-rust:
	@for part in fmt clippy; do cargo $$part --version >/dev/null 2>&1 || \
	  { echo "make check needs cargo $$part; get both with: rustup component add rustfmt clippy" >&2; exit 1; }; done
	$(cargo) fmt --check
	$(cargo) clippy --all-targets --locked -- -D warnings
	$(cargo) clippy --all-targets --locked --features canal_lock_nif/faults -- -D warnings
	$(cargo) clippy --all-targets --locked --package quorum -- -D warnings
	cd native && RUSTFLAGS='--cfg loom' cargo clippy --locked --package permit_table --package quorum --profile loom \
	  --target-dir ../_build/cargo-loom --all-targets -- -D warnings
	cd native && RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --document-private-items --locked

# Of each call of the table, and of a native acquire and release with each shape of key. Times vary too much to fail on.
.PHONY: check-instructions
check-instructions:
	scripts/instructions.sh

.PHONY: check-erlang
check-erlang: html
	rebar3 as check do compile, xref, dialyzer

# By the words: mix knows of warnings of Elixir alone, and repeats none of a file that it does not compile again.
.PHONY: check-elixir
check-elixir:
	mix format --check-formatted
	@mkdir -p _build
	mix compile --force --warnings-as-errors 2>&1 | tee _build/mix.log
	@! grep -iq 'warning' _build/mix.log || { echo "mix has warnings, see above" >&2; exit 1; }

.PHONY: check-promises
check-promises:
	scripts/promises.sh

.PHONY: docs
docs: setup html ## HTML in doc/ (of CanalLock too, where ExDoc is installed), and what h(canal_lock) shows in a shell
	@echo "docs: doc/index.html"
	@if ! command -v ex_doc >/dev/null; then \
	  echo "docs: without ExDoc (an ex_doc on PATH) there is no HTML of CanalLock"; \
	else \
	  mix compile && \
	  ex_doc CanalLock $(version) _build/dev/lib/canal_lock/ebin --main CanalLock --output doc/elixir && \
	  echo "docs: doc/elixir/index.html"; \
	fi

# EDoc exits with 0 after a warning, so its words decide. What shells show is made by the build that comes first.
.PHONY: html
html:
	@mkdir -p _build && rm -rf doc
	rebar3 edoc 2>&1 | tee _build/edoc.log
	@! grep -q 'warning:' _build/edoc.log || { echo "edoc has warnings, see above" >&2; exit 1; }

.PHONY: bench
bench: ## measure, as bench/README.md tells, in less than ten minutes
	@scripts/setup.sh bench
	bench/run.sh full

.PHONY: bench-quick
bench-quick: ## the same in less than one, to see that nothing has broken
	@scripts/setup.sh bench
	bench/run.sh quick

.PHONY: bench-table
bench-table: setup ## measure the table alone, by as many threads as there are cores; to be taken to other machines
	scripts/bench_table.sh

.PHONY: bench-quorum
bench-quorum: setup ## measure the quorum locks' machines in memory, in two minutes
	$(cargo) bench --locked --package quorum --bench machines

.PHONY: bench-cluster
bench-cluster: setup ## measure the quorum locks beside OTP's global, on 4, 8 and 16 nodes, in a quarter of an hour
	bench/cluster/run.sh $(or $(mode),full)

.PHONY: conformance
conformance: setup ## what lock managers get wrong: shown in the design of the original, and tried here
	rebar3 as test compile
	CANAL_LOCK_SOAK=4 erl -noinput -pa _build/rebar3/test/lib/canal_lock/{ebin,test} -s canal_lock_conformance_tests main

# The quick ones first. Each can be run by itself; docs/proof.md says what they look for, and what they found last.
.PHONY: soak
soak: ## what takes hours: memory checkers, faults, more rounds, mutants, a hunt for leaks (soak=10 minutes=60)
	@scripts/setup.sh soak
	scripts/memory_checks.sh
	scripts/valgrind_nif.sh
	cd native && CANAL_LOCK_SOAK=$(soak) PROPTEST_CASES=$$((256 * $(soak))) \
	  cargo test --release --locked --package permit_table --package quorum --package quorum_check
	scripts/quorum_soak.sh $$(($(minutes) / 4))
	scripts/quorum_faults.sh 1
	CANAL_LOCK_SOAK=$(soak) rebar3 eunit
	scripts/mutants.sh
	scripts/churn.sh $(minutes)

.PHONY: downstream
downstream: setup ## build the library the ways its users will: as a dependency, in releases, without cargo...
	test/packaging/downstream/run.sh

.PHONY: dist
dist: setup ## pack the native libraries with their checksum, for machines without Rust
	scripts/dist.sh

.PHONY: clean
clean: ## remove what was built
	rm -rf _build priv doc erl_crash.dump
