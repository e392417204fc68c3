#!/bin/sh
# Runs the router's demo, built by `rebar3 as examples compile', for half a minute. Exits with status 1 if a promise was
# broken.
set -eu
cd "$(dirname "$0")/../.."

for what in wrk _build/rebar3/examples/lib/router; do
  [ -d "$what" ] || command -v "$what" >/dev/null || {
    echo "demo: $what is missing; run make demo" >&2
    exit 1
  }
done

# The demo updates a terminal in place and needs its width, which the VM does not read with -noinput.
columns=0
if [ -t 1 ]; then
  size=$(stty size </dev/tty 2>/dev/null) || size='24 80'
  columns=${size#* }
fi

# +Bd: no break handler, which would prompt on Ctrl-C.
exec env ERL_LIBS="_build/rebar3/examples/lib${ERL_LIBS:+:$ERL_LIBS}" \
  erl -noinput +Bd -router port 0 -run router_demo main "$columns"
