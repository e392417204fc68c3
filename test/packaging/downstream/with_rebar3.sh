# Projects built by rebar3. Sourced by run.sh.

by_git() {
  enter rebar3_git
  rebar3 release
  has_both _build/default/lib/canal_lock/priv
  cd "$work"
  expect_library_works_with_erl "$place/rebar3_git/_build/default/lib"
  # For h(canal_lock).
  ERL_LIBS=$place/rebar3_git/_build/default/lib erl -noinput -eval '{ok, _} = code:get_doc(canal_lock), halt().'
}

# In both code loading modes of the VM.
moved() {
  mv "$place/rebar3_git/_build/default/rel/downstream" "$work/moved"
  mv "$place/rebar3_git" "$work/elsewhere"
  cd "$work"
  has_both "$work"/moved/lib/canal_lock-*/priv
  local mode
  for mode in interactive embedded; do
    expect_library_works "$work/moved/bin/downstream" -noinput -mode $mode
  done
  mv "$work/elsewhere" "$place/rebar3_git"
}

# Permits work without the library of the quorum locks.
boots_without_quorum() {
  rm "$work"/moved/lib/canal_lock-*/priv/canal_lock_quorum_nif.so
  expect_permits_work "$work/moved/bin/downstream" -noinput -mode embedded
  expect_output "canal_lock cannot load its native library $work/moved/"
  expect_output "/priv/canal_lock_quorum_nif.so: no such file or directory"
  expect_output "CANAL_LOCK_QUORUM_NIF_LIBRARY can name a prebuilt library"
}

# In embedded mode, which loads all modules at boot, the release does not start.
boots_without_its_library() {
  rm "$work"/moved/lib/canal_lock-*/priv/canal_lock_nif.so
  local mode
  for mode in interactive embedded; do
    expect_failure "canal_lock cannot load its native library $work/moved/" \
      "$work/moved/bin/downstream" -noinput -mode $mode
    expect_output "/priv/canal_lock_nif.so: no such file or directory"
  done
  expect_output "on_load_function_failed"
  expect_output "\`rebar3 do clean --apps canal_lock, compile' or \`mix deps.compile canal_lock --force'"
}

# With the command that the error names.
restores_libraries() {
  cd "$place/rebar3_git"
  rm _build/default/lib/canal_lock/priv/*.so
  rebar3 do clean --apps canal_lock, compile
  expect_library_works_with_erl "$place/rebar3_git/_build/default/lib"
}

by_checkouts() {
  enter rebar3_checkouts
  mkdir _checkouts
  git clone --quiet "$place/canal_lock" _checkouts/canal_lock
  rebar3 compile
  expect_library_works_with_erl "$PWD/_build/default/lib:$PWD/_build/default/checkouts" -config config/sys
}

with_rebar3() {
  local -x CANAL_LOCK_NIF_LIBRARY=$ready_made CANAL_LOCK_QUORUM_NIF_LIBRARY=$ready_made_quorum
  check "rebar3, by git" by_git
  check "a release of rebar3, moved" moved
  check "a release without the library of the quorum locks counts permits and reports what is missing" \
    boots_without_quorum
  check "a release without its native library reports what is missing" boots_without_its_library
  check "rebar3 restores missing libraries" restores_libraries
  check "rebar3, by _checkouts" by_checkouts
}
