# Builds with cargo: one from nothing, then again, and after an edit. Sourced by run.sh.

with_rebar3=priv
with_mix=_build/dev/lib/canal_lock/priv
both="canal_lock_nif canal_lock_quorum_nif"

# The content of a hex package: what app.src lists, and nothing else.
make_package() { # FOLDER
  mkdir "$1"
  (
    cd "$place/canal_lock"
    erl -noinput -eval '
      {ok, [{application, canal_lock, Keys}]} = file:consult("src/canal_lock.app.src"),
      {files, Files} = lists:keyfind(files, 1, Keys),
      io:format("~ts~n", [lists:join("\n", Files)]),
      halt().' | tar --create --files-from=-
  ) | tar -x -C "$1"
}

# A machine without a network, with these folders on its PATH. Without the optimizations that take long: `make dist' and
# all other builds have them.
offline() { # PATH COMMAND...
  without_rust env PATH="$1" CARGO_HOME="$work/cargo_home" CARGO_NET_OFFLINE=true \
    CARGO_PROFILE_RELEASE_{LTO=off,CODEGEN_UNITS=16,OPT_LEVEL=0} "${@:2}"
}

build_by_both() {
  local rebar3
  (cd "$place/from_nothing" && offline "$rust:$linker:$bin" rebar3 compile) & rebar3=$!
  offline "$rust:$linker:$bin" mix compile
  wait $rebar3
  local library
  for library in $both; do cmp $with_rebar3/$library.so $with_mix/$library.so; done
}

# The library is the content of its package, as a checkout of a project of rebar3. First the two failures that name what
# is missing, then the build, with the crates as docs/installing.md says.
builds_from_nothing() {
  make_package "$place/package"
  enter_rebar3 from_nothing
  mkdir _checkouts
  ln -s "$place/package" _checkouts/canal_lock
  mkdir "$work/cargo_home"
  local hint="read \"Without a network\" in $place/package/docs/installing.md."
  grep -q '^## Without a network$' "$place/package/docs/installing.md"
  cd "$place/package"
  expect_failure "If it could not download crates, $hint" offline "$rust:$linker:$bin" escript native/build.escript
  (cd native && cargo vendor --locked "$place/crates" >"$work/cargo_home/config.toml")
  expect_failure "If it found no linker \`cc', install a C compiler." offline "$rust:$bin" escript native/build.escript
  expect_output "linker \`cc\` not found"
  build_by_both
  cp -R $with_rebar3 "$work/before"
  expect_library_works with_erl "$place/from_nothing/_build/default/lib:$place/from_nothing/_build/default/checkouts"
}

does_nothing_twice() {
  cd "$place/package"
  local before again
  before=$(ls -i $with_rebar3/* $with_mix/*)
  (cd "$place/from_nothing" && offline "$rust:$linker:$bin" rebar3 compile)
  again=$(offline "$rust:$linker:$bin" mix compile)
  [ -z "$again" ] || wrong "a second mix compile did something: $again"
  [ "$before" = "$(ls -i $with_rebar3/* $with_mix/*)" ] || wrong "a second build installed again"
}

# The edits add a symbol to each library, and a word to the docs for the shell.
picks_up_edits() {
  cd "$place/package"
  local file library
  for file in canal_lock_nif quorum_nif; do
    echo '#[no_mangle] pub static AN_EDIT: u8 = 1;' >>native/$file/src/lib.rs
  done
  sed -i.before 's/^%% @doc /&Edited. /' src/canal_lock.erl
  local docs=(doc/chunks/canal_lock.chunk _build/dev/lib/canal_lock/doc/chunks/canal_lock.chunk)
  # Modification times have seconds, and this second may be that of the first build.
  touch -t 200101010000 "${docs[@]}"
  build_by_both
  for library in $both; do
    ! cmp -s $with_rebar3/$library.so "$work/before/$library.so" || wrong "an edit of $library was ignored"
  done
  for file in "${docs[@]}"; do grep -q "Edited\." "$file" || wrong "$file lacks the edit"; done
}

# A rustc that prints its arguments and refuses to compile.
musl_with_our_flags() {
  cat >"$work/rustc_wrapper" <<'END'
#!/bin/sh
case " $* " in
  *" --crate-name ___ "*) exec "$@" ;;
  *" --crate-name "*) echo "called: $*" >&2; exit 1 ;;
  *) exec "$@" ;;
esac
END
  chmod +x "$work/rustc_wrapper"
  local target
  cd "$place/canal_lock/native"
  for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
    RUSTC_WRAPPER=$work/rustc_wrapper cargo build --keep-going --locked --target $target >"$said" 2>&1 || true
    grep -q -- "called: .*--target $target .*-C target-feature=-crt-static" "$said" || wrong "no flag for $target"
  done
}

with_cargo() {
  check "both tools at once, from nothing, without a network" builds_from_nothing
  check "a second build does nothing" does_nothing_twice
  check "edits of Rust and of the docs are picked up" picks_up_edits
  check "musl: cargo passes our flags" musl_with_our_flags
}
