#!/bin/sh
# An Erlang shell with canal_lock started, from what `rebar3 compile` has built, or from another folder of applications:
#   scripts/shell.sh [LIBRARIES]
set -eu
cd "$(dirname "$0")/.."
libraries=${1:-_build/rebar3/default/lib}

cat <<'END'
canal_lock is started. For a start:

  canal_lock:acquire(db, 3, 1).     a permit of db, if fewer than 3 * 1 are out
  canal_lock:buckets(db, 3).        those that are out, as buckets of 3
  canal_lock:release(db, 3, 1).     gives it back

  Hold = fun() -> canal_lock:acquire(db, 3, 2), timer:sleep(60000) end.
  spawn(Hold).                      gives it back when it dies
  canal_lock:holders(db).           who holds how many
  canal_lock:top().                 all of this as it changes; Enter ends it

  h(canal_lock, acquire).           what a call takes, answers and costs
  q().                              leaves

END
exec env ERL_LIBS="$libraries${ERL_LIBS:+:$ERL_LIBS}" \
  erl -canal_lock max_per 3 -eval '{ok, _} = application:ensure_all_started(canal_lock)'
