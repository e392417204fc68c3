# Builds with cargo: of a package, by both tools, again, and after an edit; and without a network. Sourced by run.sh.

with_rebar3=priv
with_mix=_build/dev/lib/canal_lock/priv
both="canal_lock_nif canal_lock_quorum_nif"

inodes() { if has_elixir; then ls -i $with_rebar3/* $with_mix/*; else ls -i $with_rebar3/*; fi; }

are_the_same() {
  local library
  for library in $both; do cmp $with_rebar3/$library.so $with_mix/$library.so; done
}

builds_from_nothing() {
  make_package "$place/canal_lock" "$place/package"
  cd "$place/package"
  local rebar3 mix=
  (rebar3 compile) & rebar3=$!
  if has_elixir; then (mix compile) & mix=$!; fi
  wait $rebar3
  if [ -n "$mix" ]; then wait "$mix"; are_the_same; fi
  cp -R $with_rebar3 "$work/before"
}

does_nothing_twice() {
  cd "$place/package"
  local before again
  before=$(inodes)
  rebar3 compile
  if has_elixir; then
    again=$(mix compile)
    [ -z "$again" ] || wrong "a second mix compile did something: $again"
  fi
  [ "$before" = "$(inodes)" ] || wrong "a second build installed again"
}

# The edit adds a symbol to the library.
picks_up_an_edit() {
  cd "$place/package"
  local crate library
  for crate in canal_lock_nif quorum_nif; do
    echo '#[no_mangle] pub static AN_EDIT: u8 = 1;' >>native/$crate/src/lib.rs
  done
  rebar3 compile
  for library in $both; do
    ! cmp -s $with_rebar3/$library.so "$work/before/$library.so" || wrong "rebar3 ignored an edit of $library"
  done
  if has_elixir; then
    mix compile
    are_the_same || wrong "mix ignored an edit"
  fi
}

# The edit must be in the docs for the shell.
picks_up_an_edit_of_the_docs() {
  cd "$place/package"
  sed -i.before 's/^%% @doc /&Edited. /' src/canal_lock.erl
  local of_rebar3=doc/chunks/canal_lock.chunk of_mix=_build/dev/lib/canal_lock/doc/chunks/canal_lock.chunk
  # Modification times have seconds, and this second may be that of the first build.
  touch -t 200101010000 $of_rebar3
  rebar3 compile
  grep -q "Edited\." $of_rebar3 || wrong "rebar3 ignored the edit"
  if has_elixir; then
    touch -t 200101010000 $of_mix
    mix compile
    grep -q "Edited\." $of_mix || wrong "mix ignored the edit"
  fi
}

# Our message refers to cargo's output and adds nothing.
leaves_compile_errors_alone() {
  cd "$place/package"
  echo 'nonsense' >>native/canal_lock_nif/src/lib.rs
  expect_failure "status 101); see its output above." escript native/build.escript
  tail -n 1 "$said" | grep -q '^canal_lock: .* output above\.$' || wrong "the message says more"
}

# Without the optimizations that take long. `make dist' and all other builds have them.
quick_release() { export CARGO_PROFILE_RELEASE_{LTO=off,CODEGEN_UNITS=16,OPT_LEVEL=1}; }

building() {
  quick_release
  check "$(has_elixir && echo both tools at once || echo rebar3), from nothing" builds_from_nothing
  check "a second build does nothing" does_nothing_twice
  check "an edit of a .rs file is picked up" picks_up_an_edit
  check "an edit of the docs is picked up" picks_up_an_edit_of_the_docs
  check "a compile error is left to cargo's output" leaves_compile_errors_alone
}

builds_without_a_network() {
  enter rebar3_git without_a_network
  local ours=${CARGO_HOME-}
  mkdir "$work/cargo_home"
  export CARGO_HOME="$work/cargo_home" CARGO_NET_OFFLINE=true
  expect_failure "Crates are missing on this machine, and cargo cannot download them." rebar3 compile
  expect_output "run \"cargo vendor --locked FOLDER\" in a copy of $PWD/_build/default/lib/canal_lock/native."
  expect_output "write the lines that cargo printed into $CARGO_HOME/config.toml,"
  expect_output "Or set CANAL_LOCK_NIF_LIBRARY to a library or archive that was built on another machine."

  # The machine with a network.
  (
    cd "$place/canal_lock/native"
    unset CARGO_HOME CARGO_NET_OFFLINE
    if [ -n "$ours" ]; then export CARGO_HOME=$ours; fi
    cargo vendor --locked "$place/crates" >"$work/lines"
  )
  cp "$work/lines" "$CARGO_HOME/config.toml"
  # With Rust, Erlang and rebar3 only, and for an explicit target, for which cargo uses another folder.
  without_compilers env PATH="$rust:$linker:$bin" CARGO_HOME="$CARGO_HOME" \
    CARGO_BUILD_TARGET="$(rustc -vV | sed -n 's/^host: //p')" rebar3 compile
  expect_library_works_with_erl "$PWD/_build/default/lib"
}

crates() {
  quick_release
  check "no crates and no network: the error says how to provide crates, and that works" builds_without_a_network
}
