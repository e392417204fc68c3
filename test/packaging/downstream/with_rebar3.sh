# A project built by rebar3, without Rust. Sourced by run.sh.

libs=$place/rebar3/_build/default/lib

# From a server, with an Erlang that has no EDoc.
by_git() {
  enter_rebar3 rebar3
  ERL_AFLAGS="-run code del_path edoc" CANAL_LOCK_PRECOMPILED_URL=$server/files without_rust rebar3 release
  has_both "$libs/canal_lock/priv"
  cd "$work"
  expect_library_works with_erl "$libs"
}

# In both code loading modes of the VM.
moved() {
  mv "$place/rebar3/_build/default/rel/downstream" "$work/moved"
  mv "$place/rebar3" "$work/elsewhere"
  has_both "$work"/moved/lib/canal_lock-*/priv
  local mode
  for mode in interactive embedded; do
    expect_library_works "$work/moved/bin/downstream" -noinput -mode $mode
  done
  mv "$work/elsewhere" "$place/rebar3"
}

# Permits work without the library of the quorum locks.
boots_without_quorum() {
  rm "$work"/moved/lib/canal_lock-*/priv/canal_lock_quorum_nif.so
  expect_permits_work "$work/moved/bin/downstream" -noinput -mode embedded
  expect_output "canal_lock cannot load its native library $work/moved/"
  expect_output "/priv/canal_lock_quorum_nif.so: cannot open shared object file: No such file or directory"
  expect_output "A build with CANAL_LOCK_QUORUM=0"
}

# In embedded mode, which loads all modules at boot, the release does not start.
boots_without_its_library() {
  rm "$work"/moved/lib/canal_lock-*/priv/canal_lock_nif.so
  local mode
  for mode in interactive embedded; do
    expect_failure "canal_lock cannot load its native library $work/moved/" \
      "$work/moved/bin/downstream" -noinput -mode $mode
    expect_output "/priv/canal_lock_nif.so: cannot open shared object file: No such file or directory"
  done
  expect_output "on_load_function_failed"
  expect_output "\`rebar3 do clean --apps canal_lock, compile' or \`mix deps.compile canal_lock --force'"
}

# With the command that the error names, from a folder.
restores_libraries() {
  cd "$place/rebar3"
  echo "{canal_lock, [{precompiled_url, \"$work/archives\"}, {quorum, false}]}." >>rebar.config
  rm "$libs"/canal_lock/priv/*.so
  without_rust rebar3 do clean --apps canal_lock, compile
  has_permits_only "$libs/canal_lock/priv"
  expect_permits_work with_erl "$libs"
  # For h(canal_lock).
  ERL_LIBS=$libs erl -noinput -eval '{ok, _} = code:get_doc(canal_lock), halt().'
  # A variable takes precedence.
  CANAL_LOCK_QUORUM=1 without_rust rebar3 do clean --apps canal_lock, compile
  has_both "$libs/canal_lock/priv"
}

with_rebar3() {
  check "rebar3, by git, with an archive of a server" by_git
  check "a release of rebar3, moved" moved
  check "a release without the library of the quorum locks counts permits and reports what is missing" \
    boots_without_quorum
  check "a release without its native library reports what is missing" boots_without_its_library
  check "rebar3 restores missing libraries, with the settings in rebar.config" restores_libraries
}
