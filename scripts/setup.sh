#!/usr/bin/env bash
# Installs what a machine with Rust lacks to build, test and measure. It prints nothing if nothing is missing. Where
# there is no apt-get, it lists what is missing and exits with status 1.
#
#   scripts/setup.sh          for everything except the soak and the plots
#   scripts/setup.sh soak     for the soak as well
#   scripts/setup.sh bench    for the plots of the benchmark, and what it compares with, as well
#   scripts/setup.sh dist     for the archives of a release as well
set -euo pipefail
case "${*-}" in
  '' | soak | bench | dist) for_what=${1-} ;;
  *) echo "usage: scripts/setup.sh [soak|bench|dist]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."

needed_otp=25     # the oldest release that the tests pass on
needed_elixir=1.14
needed_rust=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' native/Cargo.toml)

missing=()        # what is missing, for the message
packages=()       # the Debian packages that provide it; never Rust

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
  # Rust links with the C compiler. Only linking shows whether the C library's start files are there.
  local program
  program=$(mktemp)
  if ! echo 'int main(void) { return 0; }' | cc -x c -o "$program" - 2>/dev/null; then
    lacks "a C compiler that links (cc)" gcc libc6-dev
  fi
  rm -f "$program"
}

# The applications that the tools, tests and examples use. Debian has a package for each.
look_for_erlang() {
  local applications=(
    crypto ssl tools eunit common_test dialyzer edoc xmerl syntax_tools parsetools inets public_key proper
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
      # Debian's package would install a second Erlang, which does not help this one.
      lacks "application $application of the Erlang in $root (or set ERL_LIBS to a folder that contains it)"
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

# For examples/redis_connections.exs: a server and a client. The benchmark uses the server, too. Both start their own.
# Debian's package may start another one, which can be stopped.
look_for_example_programs() {
  has redis-server || lacks "redis-server" redis-server
  # By its module, because another package creates a folder with the same name.
  if ! has erl || ! erl -boot start_clean -noshell -eval 'is_list(code:which(eredis)) orelse halt(1), halt().'; then
    lacks "eredis, Redis's client for Erlang" erlang-redis-client
  fi
}

# scripts/instructions.sh uses it on x86-64. Few systems other than Linux have it; scripts/memory_checks.sh skips it
# there.
look_for_valgrind() {
  case "$for_what $(uname -sm)" in
    *' Linux x86_64' | 'soak Linux '*) has valgrind || lacks "valgrind" valgrind ;;
  esac
}

# For the fuzzer of frames.
look_for_cpp() {
  [ "$for_what" != soak ] || has c++ || lacks "a C++ compiler" g++
}

# Creates the network namespaces that disconnect nodes in tests. That requires root; the tests report that they skip
# these cases otherwise.
look_for_ip() {
  [ "$(uname -s)" != Linux ] || has ip || lacks "ip, of iproute2" iproute2
}

# `make bench WHAT=waiting' compares with it, and leaves it out if another Erlang than Debian's does not have it.
look_for_poolboy() {
  if has erl && ! erl -boot start_clean -noshell -eval '
    code:root_dir() =/= "/usr/lib/erlang" orelse is_list(code:which(poolboy)) orelse halt(1), halt().'
  then
    lacks "poolboy, a pool of workers for Erlang" erlang-poolboy
  fi
}

look_for_gnuplot() {
  has gnuplot || lacks "gnuplot" gnuplot-nox
}

# Installs zig, which links the archives.
look_for_python() {
  python3 -c 'import ensurepip, venv' 2>/dev/null || lacks "Python 3 with venv" python3-venv
}

look() {
  missing=()
  packages=()
  look_for_rust
  look_for_erlang
  look_for_tools
  look_for_example_programs
  look_for_valgrind
  look_for_cpp
  look_for_ip
  [ "$for_what" != bench ] || { look_for_gnuplot; look_for_poolboy; }
  [ "$for_what" != dist ] || look_for_python
}

report_and_fail() {
  echo "setup: missing on this machine:" >&2
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

echo "setup: missing on this machine:"
printf '  %s\n' "${missing[@]}"
echo "setup: installing: ${packages[*]}"
# The installation may succeed with old package lists.
"${as_root[@]}" apt-get update || echo "setup: apt-get update failed; continuing with the existing package lists"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${packages[@]}"

look
[ ${#missing[@]} -eq 0 ] || report_and_fail
echo "setup: everything is installed"
