# Projects built by mix. Sourced by run.sh.

by_git_with_mix() {
  enter mix_git
  mix deps.get
  expect_library_works mix run --no-halt
  # For h CanalLock, h :canal_lock and h :canal_lock_telemetry.
  mix run --no-start -e '
    for module <- [CanalLock, :canal_lock, :canal_lock_telemetry], do: :docs_v1 = elem(Code.fetch_docs(module), 0)'
}

# With the command that the error names.
restores_libraries_with_mix() {
  cd "$place/mix_git"
  rm _build/dev/lib/canal_lock/priv/*.so
  expect_failure "canal_lock_nif.so: no such file or directory" mix run --no-halt
  mix deps.compile canal_lock --force
  expect_library_works mix run --no-halt
}

# Another library to install stands for an edit: mix runs the build script each time for both.
by_path() {
  export MIX_ENV=prod
  enter mix_path
  expect_library_works mix run --no-halt
  has_both _build/prod/lib/canal_lock/priv
  [ ! -e "$place/canal_lock/priv" ] || wrong "mix installed into the source"
  [ -z "$(mix compile)" ] || wrong "a second mix compile did something"
  cp "$ready_made" "$work/longer.so"
  echo >>"$work/longer.so"
  CANAL_LOCK_NIF_LIBRARY=$work/longer.so mix compile
  cmp "$work/longer.so" _build/prod/lib/canal_lock/priv/canal_lock_nif.so
}

moved_with_mix() {
  cd "$place/mix_path"
  MIX_ENV=prod mix release
  mv _build/prod/rel/downstream "$work/moved_with_mix"
  cd "$work"
  rm -rf "$place/mix_path"
  has_both "$work"/moved_with_mix/lib/canal_lock-*/priv
  expect_library_works "$work/moved_with_mix/bin/downstream" start
}

boots_without_quorum_with_mix() {
  rm "$work"/moved_with_mix/lib/canal_lock-*/priv/canal_lock_quorum_nif.so
  expect_permits_work "$work/moved_with_mix/bin/downstream" start
  expect_output "/priv/canal_lock_quorum_nif.so: no such file or directory"
}

boots_without_its_library_with_mix() {
  rm "$work"/moved_with_mix/lib/canal_lock-*/priv/canal_lock_nif.so
  expect_failure "canal_lock cannot load its native library $work/moved_with_mix/" \
    "$work/moved_with_mix/bin/downstream" start
  expect_output "/priv/canal_lock_nif.so: no such file or directory"
}

by_an_umbrella() {
  enter mix_umbrella_git
  mix deps.get
  expect_library_works mix run --no-halt
}

# The library as one of the umbrella's applications.
in_an_umbrella() {
  enter mix_umbrella
  git clone --quiet "$place/canal_lock" apps/canal_lock
  expect_library_works mix run --no-halt
}

# With MIX_REBAR3, mix uses this rebar3 instead of installing one.
with_rebar3_as_manager() {
  MIX_REBAR3=$(command -v rebar3)
  export MIX_REBAR3
  enter mix_rebar3
  mix deps.get
  expect_library_works mix run --no-halt
}

with_mix() {
  local -x CANAL_LOCK_NIF_LIBRARY=$ready_made CANAL_LOCK_QUORUM_NIF_LIBRARY=$ready_made_quorum
  check_with_elixir "mix, by git" by_git_with_mix
  check_with_elixir "mix restores missing libraries" restores_libraries_with_mix
  check_with_elixir "mix, by path" by_path
  check_with_elixir "a release of mix, moved" moved_with_mix
  check_with_elixir "the same without the library of the quorum locks counts permits and reports what is missing" \
    boots_without_quorum_with_mix
  check_with_elixir "the same without its native library reports what is missing" boots_without_its_library_with_mix
  check_with_elixir "mix, by git, from an umbrella" by_an_umbrella
  check_with_elixir "mix, in an umbrella" in_an_umbrella
  check_with_elixir "mix, by git, with rebar3 as its manager" with_rebar3_as_manager
}
