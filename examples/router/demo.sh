#!/bin/sh
# Runs the router's demo from what `rebar3 as examples compile' has built: half a minute. Exits with status 1 if
# a promise was broken.
set -eu
cd "$(dirname "$0")/../.."

for what in wrk _build/rebar3/examples/lib/router; do
  [ -d "$what" ] || command -v "$what" >/dev/null || {
    echo "demo: there is no $what; make demo sees to it" >&2
    exit 1
  }
done

# On a terminal it is shown in place, so its width has to be known: the VM does not look at it in this mode.
columns=0
if [ -t 1 ]; then
  size=$(stty size </dev/tty 2>/dev/null) || size='24 80'
  columns=${size#* }
fi

# Without the VM's break handler, which would ask on Ctrl-C what to do.
exec env ERL_LIBS="_build/rebar3/examples/lib${ERL_LIBS:+:$ERL_LIBS}" \
  erl -noinput +Bd -router port 0 -run router_demo main "$columns"
