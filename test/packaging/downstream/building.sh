# What cargo builds: what a package holds, by both tools, again, and after an edit; and a project of somebody who has
# no network. Sourced by run.sh.

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

# A line more at the top moves the line numbers that the library carries for its backtraces.
picks_up_an_edit() {
  cd "$place/package"
  local crate library
  for crate in canal_lock_nif quorum_nif; do
    sed -i.before '1i\
// one line more
' native/$crate/src/lib.rs
  done
  rebar3 compile
  for library in $both; do
    ! cmp -s $with_rebar3/$library.so "$work/before/$library.so" || wrong "rebar3 overlooked an edit of $library"
  done
  if has_elixir; then
    mix compile
    are_the_same || wrong "mix overlooked an edit"
  fi
}

# In the docs for the shell.
picks_up_an_edit_of_the_docs() {
  cd "$place/package"
  sed -i.before 's/^%% @doc Limits who may use what, right now/& and here/' src/canal_lock.erl
  local of_rebar3=doc/chunks/canal_lock.chunk of_mix=_build/dev/lib/canal_lock/doc/chunks/canal_lock.chunk
  # Files tell the time by the second, and this may be the one that they were made in.
  touch -t 200101010000 $of_rebar3
  rebar3 compile
  grep -q "right now and here" $of_rebar3 || wrong "rebar3 overlooked it"
  if has_elixir; then
    touch -t 200101010000 $of_mix
    mix compile
    grep -q "right now and here" $of_mix || wrong "mix overlooked it"
  fi
}

# Cargo's own words say it, and nothing is added.
leaves_compile_errors_alone() {
  cd "$place/package"
  echo 'nonsense' >>native/canal_lock_nif/src/lib.rs
  refuses "status 101); its own words are above." escript native/build.escript
  tail -n 1 "$said" | grep -q '^canal_lock: .* are above\.$' || wrong "more is said"
}

# These are quick builds of what is the same library otherwise; the one without a network is as it is for everybody.
building() {
  export CARGO_PROFILE_RELEASE_{LTO=off,CODEGEN_UNITS=16,OPT_LEVEL=1}
  check "$(has_elixir && echo both tools at once || echo rebar3), from nothing" builds_from_nothing
  check "a second build does nothing" does_nothing_twice
  check "an edit of a .rs file is picked up" picks_up_an_edit
  check "an edit of the docs is picked up" picks_up_an_edit_of_the_docs
  check "a compile error is left to cargo's words" leaves_compile_errors_alone
  unset "${!CARGO_PROFILE_RELEASE_@}"
}

builds_without_a_network() {
  enter rebar3_git without_a_network
  local ours=${CARGO_HOME-}
  mkdir "$work/cargo_home"
  export CARGO_HOME="$work/cargo_home" CARGO_NET_OFFLINE=true
  refuses "The crates that it needs are not on this machine, and cargo cannot fetch them." rebar3 compile
  says "run \"cargo vendor --locked FOLDER\" in a copy of $PWD/_build/default/lib/canal_lock/native;"
  says "write the lines that it printed into $CARGO_HOME/config.toml,"
  says "Or let CANAL_LOCK_NIF_LIBRARY name what was built elsewhere."

  # A machine with a network, or at least with all the crates.
  (
    cd "$place/canal_lock/native"
    unset CARGO_HOME CARGO_NET_OFFLINE
    if [ -n "$ours" ]; then export CARGO_HOME=$ours; fi
    cargo vendor --locked "$place/crates" >"$work/lines"
  )
  cp "$work/lines" "$CARGO_HOME/config.toml"
  # By Rust, Erlang and rebar3 alone; and for a target by name, which cargo puts into another folder.
  poor env PATH="$rust:$linker:$bin" CARGO_HOME="$CARGO_HOME" \
    CARGO_BUILD_TARGET="$(rustc -vV | sed -n 's/^host: //p')" rebar3 compile
  visits_with_erl "$PWD/_build/default/lib"
}

crates() {
  check "no crates and no network: how to bring them, and with that it builds" builds_without_a_network
}
