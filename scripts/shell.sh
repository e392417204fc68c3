#!/bin/sh
# Starts an Erlang shell with canal_lock, from the build of `rebar3 compile` or from another folder of applications:
#   scripts/shell.sh [LIBRARIES]
set -eu
cd "$(dirname "$0")/.."
libraries=${1:-_build/rebar3/default/lib}

cat <<'END'
canal_lock is started. Some calls to try:

  canal_lock:acquire(db, 3, 1).     acquires a permit of db if fewer than 3 * 1 are held
  canal_lock:buckets(db, 3).        the held permits, as buckets of 3
  canal_lock:release(db, 3, 1).     releases the permit

  Hold = fun() -> canal_lock:acquire(db, 3, 2), timer:sleep(60000) end.
  spawn(Hold).                      a holder; its permit is released when it dies
  canal_lock:holders(db).           the holders and their permits
  canal_lock:top().                 a live view; Enter ends it

  h(canal_lock, acquire).           the documentation of a function
  q().                              ends the shell

END
exec env ERL_LIBS="$libraries${ERL_LIBS:+:$ERL_LIBS}" \
  erl -eval '{ok, _} = application:ensure_all_started(canal_lock)'
