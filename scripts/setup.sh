#!/usr/bin/env bash
# Sees to it that this machine can build, test and measure, given that it has Rust. Silent and quick when nothing is
# missing. On Debian and its relatives it installs what is; elsewhere it says what is missing and exits with status 1.
#
#   scripts/setup.sh          what everything but the soak and the plots needs
#   scripts/setup.sh soak     what the soak needs, too
#   scripts/setup.sh bench    what the plots of the benchmark need, too
set -euo pipefail
case "${*-}" in
  '' | soak | bench) for_what=${1-} ;;
  *) echo "usage: scripts/setup.sh [soak|bench]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."

needed_otp=25     # error_info of NIF errors, and what the tests were written against
needed_elixir=1.14
needed_rust=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' native/Cargo.toml)

missing=()        # in words, for people
packages=()       # what brings it, for apt-get; Rust is never among them

lacks() { # WHAT [PACKAGE...]
  missing+=("$1")
  shift
  packages+=("$@")
}

has() { command -v "$1" >/dev/null 2>&1; }

# Is version $1 at least $2? An empty one is not.
at_least() { [ -n "$1" ] && [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

look_for_rust() {
  # A plain rustup installation is on PATH only in shells that were started after it.
  PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
  local version
  version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2) || true
  if ! has cargo || ! at_least "$version" "$needed_rust"; then
    lacks "Rust $needed_rust or newer (found: ${version:-none}): see https://rustup.rs, or run: rustup update"
  fi
  # Rust links with the C compiler; a compiler without the C library's start files is found out only by linking.
  local program
  program=$(mktemp)
  if ! echo 'int main(void) { return 0; }' | cc -x c -o "$program" - 2>/dev/null; then
    lacks "a C compiler that links (cc)" gcc libc6-dev
  fi
  rm -f "$program"
}

# The applications of Erlang/OTP that the tools and tests use, PropEr, and what the examples are made of. Each is a
# package of its own on Debian.
look_for_erlang() {
  local applications=(
    crypto ssl tools eunit common_test dialyzer edoc xmerl syntax_tools parsetools inets public_key proper mochiweb
  )
  local application found otp root absent
  if ! has erl || ! has escript; then
    lacks "Erlang/OTP $needed_otp or newer (erl, escript)" erlang-base
    for application in "${applications[@]}"; do
      lacks "Erlang application $application" "erlang-${application//_/-}"
    done
    return
  fi
  found=$(erl -boot start_clean -noshell -eval '
    Wanted = ['"$(IFS=,; echo "${applications[*]}")"'],
    Missing = [atom_to_list(A) || A <- Wanted, code:lib_dir(A) =:= {error, bad_name}],
    io:format("~ts|~ts|~ts~n", [erlang:system_info(otp_release), code:root_dir(), lists:join(" ", Missing)]),
    halt().')
  IFS='|' read -r otp root absent <<<"$found"
  at_least "$otp" "$needed_otp" || lacks "Erlang/OTP $needed_otp or newer (found: $otp)" erlang-base
  for application in $absent; do
    if [ "$root" = /usr/lib/erlang ]; then
      lacks "Erlang application $application" "erlang-${application//_/-}"
    else
      # Debian's package would bring a second Erlang along, and this one would still not find what is missing.
      lacks "application $application of the Erlang in $root (ERL_LIBS may name a folder that has it)"
    fi
  done
}

look_for_tools() {
  local elixir
  has make || lacks "make" make
  has rebar3 || lacks "rebar3" rebar3
  elixir=$(elixir --short-version 2>/dev/null) || true
  at_least "$elixir" "$needed_elixir" || lacks "Elixir $needed_elixir or newer (found: ${elixir:-none})" elixir
}

# The load of examples/router; the server of examples/redis_connections.exs and its client. (That example starts a Redis
# of its own. Debian's package may start another one, for this machine alone, which can be stopped.)
look_for_what_the_examples_need() {
  has wrk || lacks "wrk" wrk
  has redis-server || lacks "redis-server" redis-server
  # By a module: another package makes a folder of that name.
  if ! has erl || ! erl -boot start_clean -noshell -eval 'is_list(code:which(eredis)) orelse halt(1), halt().'; then
    lacks "eredis, Redis's client for Erlang" erlang-redis-client
  fi
}

# Instructions are counted by it, on x86-64 alone (scripts/instructions.sh). On systems other than Linux it hardly
# exists: scripts/memory_checks.sh does without it there, and says so.
look_for_valgrind() {
  case "$for_what $(uname -sm)" in
    *' Linux x86_64' | 'soak Linux '*) has valgrind || lacks "valgrind" valgrind ;;
  esac
}

# For the fuzzer of the quorum locks' frames.
look_for_cpp() {
  [ "$for_what" != soak ] || has c++ || lacks "a C++ compiler" g++
}

# Makes the network namespaces in which nodes with quorum locks are cut off, if this is root. Otherwise the tests skip
# them, and say so.
look_for_ip() {
  [ "$(uname -s)" != Linux ] || has ip || lacks "ip, of iproute2" iproute2
}

look_for_what_the_plots_need() {
  has gnuplot || lacks "gnuplot" gnuplot-nox
}

look() {
  missing=()
  packages=()
  look_for_rust
  look_for_erlang
  look_for_tools
  look_for_what_the_examples_need
  look_for_valgrind
  look_for_cpp
  look_for_ip
  [ "$for_what" != bench ] || look_for_what_the_plots_need
}

report_and_fail() {
  echo "setup: this machine lacks:" >&2
  printf '  %s\n' "${missing[@]}" >&2
  if has apt-get && [ ${#packages[@]} -gt 0 ]; then
    echo "setup: as root, run: apt-get install --no-install-recommends ${packages[*]}" >&2
  fi
  exit 1
}

look
[ ${#missing[@]} -eq 0 ] && exit 0
has apt-get && [ ${#packages[@]} -gt 0 ] || report_and_fail

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  has sudo || report_and_fail
  as_root=(sudo)
fi

echo "setup: missing here:"
printf '  %s\n' "${missing[@]}"
echo "setup: installing: ${packages[*]}"
# Lists that cannot be refreshed may still be good enough: whether they are, the installation tells.
"${as_root[@]}" apt-get update || echo "setup: going on with the package lists at hand"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${packages[@]}"

look
[ ${#missing[@]} -eq 0 ] || report_and_fail
echo "setup: everything is here now"
