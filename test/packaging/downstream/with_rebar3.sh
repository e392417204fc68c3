# Projects that rebar3 builds. Sourced by run.sh.

by_git() {
  enter rebar3_git
  rebar3 release
  has_both _build/default/lib/canal_lock/priv
  cd "$work"
  visits_with_erl "$place/rebar3_git/_build/default/lib"
  # What h(canal_lock) shows.
  ERL_LIBS=$place/rebar3_git/_build/default/lib erl -noinput -eval '{ok, _} = code:get_doc(canal_lock), halt().'
}

# Whether all modules are loaded at boot or not.
moved() {
  mv "$place/rebar3_git/_build/default/rel/downstream" "$work/moved"
  mv "$place/rebar3_git" "$work/elsewhere"
  cd "$work"
  has_both "$work"/moved/lib/canal_lock-*/priv
  local mode
  for mode in interactive embedded; do
    visits "$work/moved/bin/downstream" -noinput -mode $mode
  done
  mv "$work/elsewhere" "$place/rebar3_git"
}

# Permits do without it.
boots_without_quorum() {
  rm "$work"/moved/lib/canal_lock-*/priv/canal_lock_quorum_nif.so
  counts_permits "$work/moved/bin/downstream" -noinput -mode embedded
  says "canal_lock cannot load its native library $work/moved/"
  says "/priv/canal_lock_quorum_nif.so: no such file or directory"
  says "CANAL_LOCK_QUORUM_NIF_LIBRARY in the environment may name a ready-made one"
}

# With all modules loaded at boot, as many releases do it, it goes no further.
boots_without_its_library() {
  rm "$work"/moved/lib/canal_lock-*/priv/canal_lock_nif.so
  local mode
  for mode in interactive embedded; do
    refuses "canal_lock cannot load its native library $work/moved/" "$work/moved/bin/downstream" -noinput -mode $mode
    says "/priv/canal_lock_nif.so: no such file or directory"
  done
  says "on_load_function_failed"
  says "\`rebar3 do clean --apps canal_lock, compile' or \`mix deps.compile canal_lock --force'"
}

# As the sentence has told.
brings_it_back() {
  cd "$place/rebar3_git"
  rm _build/default/lib/canal_lock/priv/*.so
  rebar3 do clean --apps canal_lock, compile
  visits_with_erl "$place/rebar3_git/_build/default/lib"
}

by_checkouts() {
  enter rebar3_checkouts
  mkdir _checkouts
  git clone --quiet "$place/canal_lock" _checkouts/canal_lock
  rebar3 compile
  visits_with_erl "$PWD/_build/default/lib:$PWD/_build/default/checkouts" -config config/sys
}

with_rebar3() {
  local -x CANAL_LOCK_NIF_LIBRARY=$ready_made CANAL_LOCK_QUORUM_NIF_LIBRARY=$ready_made_quorum
  check "rebar3, by git" by_git
  check "a release of rebar3, moved" moved
  check "a release without the library of the quorum locks counts permits, and says what is missing" \
    boots_without_quorum
  check "a release without its native library says what is missing" boots_without_its_library
  check "rebar3 brings missing libraries back" brings_it_back
  check "rebar3, by _checkouts" by_checkouts
}
