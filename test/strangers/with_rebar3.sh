# Projects that rebar3 builds. Sourced by run.sh.

by_git() {
  enter rebar3_git
  rebar3 release
  cd "$work"
  visits_with_erl "$place/rebar3_git/_build/default/lib"
  # What h(canal_lock) shows.
  ERL_LIBS=$place/rebar3_git/_build/default/lib erl -noinput -eval '{ok, _} = code:get_doc(canal_lock), halt().'
}

moved() {
  mv "$place/rebar3_git/_build/default/rel/stranger" "$work/moved"
  mv "$place/rebar3_git" "$work/elsewhere"
  cd "$work"
  visits "$work/moved/bin/stranger" -noinput
  mv "$work/elsewhere" "$place/rebar3_git"
}

# With all modules loaded at boot, as many releases do it, it goes no further.
boots_without_its_library() {
  rm "$work"/moved/lib/canal_lock-*/priv/canal_lock_nif.so
  local mode
  for mode in interactive embedded; do
    refuses "canal_lock cannot load its native library $work/moved/" "$work/moved/bin/stranger" -noinput -mode $mode
    says "/priv/canal_lock_nif.so: no such file or directory"
  done
  says "on_load_function_failed"
  says "\`rebar3 do clean --apps canal_lock, compile' or \`mix deps.compile canal_lock --force'"
}

# As the sentence has told.
brings_it_back() {
  cd "$place/rebar3_git"
  rm _build/default/lib/canal_lock/priv/canal_lock_nif.so
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
  local -x CANAL_LOCK_NIF_LIBRARY=$ready_made
  check "rebar3, by git" by_git
  check "a release of rebar3, moved" moved
  check "a release without its native library says what is missing" boots_without_its_library
  check "rebar3 brings a missing library back" brings_it_back
  check "rebar3, by _checkouts" by_checkouts
}
