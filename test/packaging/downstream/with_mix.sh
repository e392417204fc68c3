# Projects built by mix, without Rust. Sourced by run.sh.

by_git='git: "https://example.org/canal_lock.git", branch: "main"'

umbrella() { # FOLDER DEPENDENCY
  enter_mix "$1/apps/downstream" "$2"
  sed -i.before 's|deps: |build_path: "../../_build", deps_path: "../../deps", lockfile: "../../mix.lock", &|' mix.exs
  cd ../..
  cp "$downstream/mix/umbrella.exs" mix.exs
}

# From a server, in an umbrella.
by_git_with_mix() {
  umbrella mix "$by_git"
  export CANAL_LOCK_PRECOMPILED_URL=$server/files
  without_rust mix deps.get
  expect_library_works without_rust mix run --no-halt
  has_both _build/dev/lib/canal_lock/priv
  # For h CanalLock, h :canal_lock and h :canal_lock_telemetry.
  mix run --no-start -e '
    for module <- [CanalLock, :canal_lock, :canal_lock_telemetry], do: :docs_v1 = elem(Code.fetch_docs(module), 0)'
}

# With the command that the error names, from a folder.
restores_libraries_with_mix() {
  cd "$place/mix"
  mkdir -p config
  cat >config/config.exs <<END
import Config
config :canal_lock, precompiled_url: "$work/archives", quorum: false
END
  rm _build/dev/lib/canal_lock/priv/*.so
  expect_failure "canal_lock_nif.so: cannot open shared object file" without_rust mix run --no-halt
  without_rust mix deps.compile canal_lock --force
  has_permits_only _build/dev/lib/canal_lock/priv
  expect_permits_work without_rust mix run --no-halt
}

# mix runs the build script each time.
by_path() {
  export MIX_ENV=prod CANAL_LOCK_ARCHIVE=$archive
  enter_mix mix_path 'path: "../canal_lock"'
  expect_library_works without_rust mix run --no-halt
  has_both _build/prod/lib/canal_lock/priv
  [ ! -e "$place/canal_lock/priv" ] || wrong "mix installed into the source"
  [ -z "$(without_rust mix compile)" ] || wrong "a second mix compile did something"
  CANAL_LOCK_QUORUM=0 without_rust mix compile
  has_permits_only _build/prod/lib/canal_lock/priv
  without_rust mix release
}

moved_with_mix() {
  mv "$place/mix_path/_build/prod/rel/downstream" "$work/moved_with_mix"
  rm -rf "$place/mix_path"
  has_both "$work"/moved_with_mix/lib/canal_lock-*/priv
  expect_library_works "$work/moved_with_mix/bin/downstream" start
  rm "$work"/moved_with_mix/lib/canal_lock-*/priv/canal_lock_quorum_nif.so
  expect_permits_work "$work/moved_with_mix/bin/downstream" start
  expect_output "/priv/canal_lock_quorum_nif.so: cannot open shared object file: No such file or directory"
  rm "$work"/moved_with_mix/lib/canal_lock-*/priv/canal_lock_nif.so
  expect_failure "canal_lock cannot load its native library $work/moved_with_mix/" \
    "$work/moved_with_mix/bin/downstream" start
}

# The library as one of the umbrella's applications.
in_an_umbrella() {
  umbrella mix_umbrella "in_umbrella: true"
  git clone --quiet "$place/canal_lock" apps/canal_lock
  CANAL_LOCK_ARCHIVE=$archive expect_library_works without_rust mix run --no-halt
}

# With MIX_REBAR3, mix uses this rebar3 instead of installing one. The child is of the Erlang module.
with_rebar3_as_manager() {
  export MIX_REBAR3=$bin/rebar3 CANAL_LOCK_ARCHIVE=$archive
  enter_mix mix_rebar3 "$by_git, manager: :rebar3"
  sed -i.before 's/{CanalLock, max_per: 3}/{:canal_lock, 3}/' mix.exs
  without_rust mix deps.get
  expect_library_works without_rust mix run --no-halt
}

with_mix() {
  check "mix, by git, in an umbrella, with an archive of a server" by_git_with_mix
  check "mix restores missing libraries, with the settings in the project's configuration" restores_libraries_with_mix
  check "mix, by path, with an archive of one's own" by_path
  check "a release of mix, moved, with and without its libraries" moved_with_mix
  check "mix, in an umbrella" in_an_umbrella
  check "mix, by git, with rebar3 as its manager" with_rebar3_as_manager
}
