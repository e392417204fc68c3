# For maintainers. Users of the library need none of this: rebar3 and mix build it by themselves.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# The targets share _build, and mixed output is unreadable.
.NOTPARALLEL:

# rustup extends PATH only for shells that start later.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
# Without it, Elixir prints a warning at each start in the C locale, which CI machines often have.
export ELIXIR_ERL_OPTIONS ?= +fnu

# In native/, where cargo reads .cargo/config.toml, which puts its output below _build.
cargo := cd native && cargo
# Runs the loom models. Uses its own target folder: in the normal one, their flags would rebuild everything each time.
loom := cd native && RUSTFLAGS='--cfg loom' cargo test --locked --profile loom --target-dir ../_build/cargo-loom
# The budget of make soak.
minutes ?= 60

# One part of a target: `$(call part,test,all quick rust)' is test-$(WHAT), or test-all without WHAT.
part = $(1)-$(if $(WHAT),$(or $(filter $(WHAT),$(2)),$(error WHAT=$(WHAT): must be one of: $(2))),$(firstword $(2)))
run = @$(MAKE) --no-print-directory $(call part,$(1),$(2))

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what this machine lacks (it must have Rust)
	@scripts/setup.sh

.PHONY: demo
demo: setup ## a live demo; fails if a promise is broken (WHAT=permits, elixir or cluster)
	$(call run,demo,permits elixir cluster)

.PHONY: test
test: setup ## all tests (WHAT=quick for a small change; rust, searches, loom, erlang, elixir, downstream, distro...)
	$(call run,test,all quick build rust searches loom erlang elixir downstream distro arm64)

.PHONY: check
check: setup ## formatting, lints, types, docs (WHAT=layout, cycles, rust, instructions, erlang, elixir, promises, dist)
	$(call run,check,all layout cycles rust instructions erlang elixir promises dist)

.PHONY: bench
bench: ## measure (WHAT=permits, waiting, cluster, permits-cluster, quorum, quick; OTHER=a build; see bench/README.md)
	@scripts/setup.sh bench
	$(call run,bench,all permits waiting cluster permits-cluster quorum quick)

.PHONY: soak
soak: ## long tests: memory checkers, mutants, leaks, faults (minutes=60, WHAT=one part; see docs/proof.md)
	@scripts/setup.sh soak
	scripts/soak.sh $(minutes) $(WHAT)

.PHONY: docs
docs: setup check-html ## HTML in doc/ (of CanalLock too, if ExDoc is installed), and the docs that h(canal_lock) shows
	@echo "docs: doc/index.html"
	@if ! command -v ex_doc >/dev/null; then \
	  echo "docs: no HTML of CanalLock, because there is no ex_doc on PATH"; \
	else \
	  mix compile && \
	  version=$$(sed -n 's/.*{vsn, "\(.*\)"}.*/\1/p' src/canal_lock.app.src) && \
	  ex_doc CanalLock "$$version" _build/dev/lib/canal_lock/ebin --main CanalLock --output doc/elixir && \
	  echo "docs: doc/elixir/index.html"; \
	fi

.PHONY: dist
dist: setup ## pack the native libraries for machines without Rust (WHAT=linux or host)
	$(call run,dist,linux host)

.PHONY: shell
shell: setup ## an Erlang shell with canal_lock started
	rebar3 compile
	@scripts/shell.sh

.PHONY: clean
clean: ## remove what was built
	rm -rf _build priv doc erl_crash.dump

# The parts of the targets above. Call them as `make TARGET WHAT=PART', which runs the setup first.

# The session of the README, then half a minute of load on an HTTP router.
.PHONY: demo-permits
demo-permits:
	rebar3 as examples compile
	ERL_LIBS=_build/rebar3/examples/lib escript examples/demo.escript
	ERL_LIBS=_build/rebar3/examples/lib erl -noinput +Bd -router port 0 -run router_demo main

# Workers share a Redis that allows eight connections, and are killed at random.
.PHONY: demo-elixir
demo-elixir:
	mix compile
	elixir --erl +Bd -pa _build/dev/lib/canal_lock/ebin examples/redis_connections.exs

# Three nodes limit one back-end together, and are killed and cut off. Then five nodes with quorum locks are
# disconnected, killed and suspended. Without the break handler (+Bd), Ctrl-C stops a demo and its nodes.
.PHONY: demo-cluster
demo-cluster:
	rebar3 as examples compile
	@for demo in cluster_permits_demo cluster_demo; do \
	  ERL_LIBS=_build/rebar3/examples/lib erl -noinput +Bd \
	    -pa _build/rebar3/examples/lib/canal_lock/test/support/harness -run "$$demo" main; \
	done

.PHONY: test-all
test-all:
	scripts/test_all.sh

.PHONY: test-quick
test-quick: export CANAL_LOCK_SOAK := 0.1
test-quick: export PROPTEST_CASES := 32
test-quick:
	scripts/test_quick.sh
	@echo "quick: left out loom, the model checker, nodes, storms, downstream projects, and 9 of 10 random cases"

# Both tools build the project, and a second build has nothing to do.
.PHONY: test-build
test-build:
	rebar3 compile
	mix compile --warnings-as-errors
	@again=$$(mix compile) && test -z "$$again" || { echo "a second mix compile was not silent: $$again" >&2; exit 1; }

# With cargo_test=--no-run, these only build the tests. The controls need the feature.
.PHONY: test-rust
test-rust:
	$(cargo) test --locked $(cargo_test) --package permit_table --package quorum --package vm_allocator \
	  --features quorum/model

# The model checker, the simulation and the progress properties of the quorum locks.
.PHONY: test-searches
test-searches:
	$(cargo) test --locked $(cargo_test) --package quorum_check

.PHONY: test-loom
test-loom:
	$(loom) --package permit_table --test loom
	$(loom) --package quorum --lib models

.PHONY: test-erlang
test-erlang:
	scripts/eunit.sh

.PHONY: test-elixir
test-elixir:
	mix test --warnings-as-errors

# Projects that depend on the library: by both tools, in releases, on machines that lack something.
.PHONY: test-downstream
test-downstream:
	test/packaging/downstream/run.sh

# In another Debian: with SUITE=trixie or sid. And the steps of examples/Dockerfile.
.PHONY: test-distro
test-distro:
	scripts/distro.sh $(or $(SUITE),$(error test WHAT=distro needs SUITE=trixie or SUITE=sid))
	scripts/dockerfile.sh

# Permits on ARM64, under QEMU.
.PHONY: test-arm64
test-arm64:
	scripts/arm64.sh

.PHONY: check-all
check-all: check-layout check-cycles check-rust check-instructions check-erlang check-elixir check-promises

.PHONY: check-layout
check-layout:
	scripts/layout.sh

.PHONY: check-cycles
check-cycles:
	escript scripts/cycles.escript

.PHONY: check-rust
check-rust:
	@for part in fmt clippy; do cargo $$part --version >/dev/null 2>&1 || \
	  { echo "make check needs cargo $$part: run rustup component add rustfmt clippy" >&2; exit 1; }; done
	scripts/rust_version.sh
	$(cargo) fmt --check
	$(cargo) clippy --all-targets --locked -- -D warnings
	$(cargo) clippy --all-targets --locked --features canal_lock_nif/faults -- -D warnings
	$(cargo) clippy --all-targets --locked --package quorum -- -D warnings
	cd native && RUSTFLAGS='--cfg loom' cargo clippy --locked --package permit_table --package quorum --profile loom \
	  --target-dir ../_build/cargo-loom --all-targets -- -D warnings
	cd native && RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --document-private-items --locked

# Counts instructions instead of time, which varies too much on shared machines.
.PHONY: check-instructions
check-instructions:
	scripts/instructions.sh

.PHONY: check-erlang
check-erlang: check-html
	rebar3 as check do compile, xref, dialyzer

# Searches the log for warnings: --warnings-as-errors ignores Erlang files, and files that are up to date.
.PHONY: check-elixir
check-elixir:
	mix format --check-formatted
	@mkdir -p _build
	mix compile --force --warnings-as-errors 2>&1 | tee _build/mix.log
	@! grep -iq 'warning' _build/mix.log || { echo "mix has warnings, see above" >&2; exit 1; }

.PHONY: check-promises
check-promises:
	scripts/promises.sh
	scripts/stale.sh

# The archives of `make dist'.
.PHONY: check-dist
check-dist:
	scripts/check_dist.sh

# Searches the log for warnings: EDoc exits with 0 after a warning. The compile hook makes the docs for shells.
.PHONY: check-html
check-html:
	@mkdir -p _build && rm -rf doc
	rebar3 edoc 2>&1 | tee _build/edoc.log
	@! grep -q 'warning:' _build/edoc.log || { echo "edoc has warnings, see above" >&2; exit 1; }

# Both from the same Debian, so that every machine makes the same archives.
.PHONY: dist-linux
dist-linux:
	scripts/distro.sh trixie sh -c 'scripts/setup.sh dist && \
	  scripts/dist.sh x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu'
	rm -rf _build/dist
	cp -R "_build/distro/trixie-$$(dpkg --print-architecture)/canal_lock/_build/dist" _build/

# For this machine, linked with its own C library.
.PHONY: dist-host
dist-host:
	scripts/dist.sh

# OTHER is the library of another build, which is measured beside this one.
.PHONY: bench-all bench-permits bench-waiting bench-cluster bench-permits-cluster bench-quick
bench-all bench-permits bench-waiting bench-cluster bench-permits-cluster: bench-%:
	bench/run.sh $* full $(OTHER)
bench-quick:
	bench/run.sh all quick $(OTHER)

# The state machines of the quorum locks, in memory.
.PHONY: bench-quorum
bench-quorum:
	$(cargo) bench --locked --package quorum --bench machines
