#!/usr/bin/env bash
# Runs a command, by default `make test', in a fresh Debian of another suite or processor, and reports what failed. The
# Debian is a folder, made by debootstrap. Its Rust, Erlang and Elixir are those of the suite. Requires root.
#
#   scripts/distro.sh SUITE [COMMAND [ARGUMENT...]]
#
# SUITE is trixie, sid or another one whose Rust is new enough. With ARCH=arm64 the folder is for that processor, and
# runs under QEMU if this machine has another one. The folder, _build/distro/SUITE-ARCH, is used again by later runs;
# remove it to begin from nothing. It gets a copy of the sources, uncommitted changes included.
#
# Exit status 75: the packages of the suite cannot be installed today, which is no defect of the library.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/debian.sh

[ $# -ge 1 ] || fail "usage: scripts/distro.sh SUITE [COMMAND [ARGUMENT...]]"
suite=$1
shift
[ $# -gt 0 ] || set -- make --keep-going test
mapfile -t environment < <(passed_on CANAL_LOCK_CI CANAL_LOCK_SOAK CARGO_INCREMENTAL "${proxies[@]}")
environment+=(LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
root=$PWD/_build/distro/$suite-$arch
directory=/canal_lock
log=$root.log

# The kernel runs programs of another processor by an interpreter. F: it opens the interpreter now, so that the
# folder needs no copy.
register_qemu() {
  [ "$arch" != "$(dpkg --print-architecture)" ] || return 0
  [ "$arch" = arm64 ] || fail "ARCH=$arch: this script knows how to run arm64 only"
  local folder=/proc/sys/fs/binfmt_misc
  [ -e $folder/register ] || mount -t binfmt_misc binfmt_misc $folder
  [ -e $folder/qemu-aarch64 ] && return
  local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  echo ":qemu-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F" >$folder/register
}

# Marks a complete folder, so that a run after an interrupted one begins again.
make_root() {
  [ ! -e "$root/complete" ] || return 0
  echo "distro: making $root"
  bootstrap
  mkdir "$root/canal_lock"
  inside sh -c 'apt-get update -qq && apt-get install -qq --yes --no-install-recommends cargo git make' >>"$log" 2>&1 ||
    not_installable "installing cargo, git and make failed"
  touch "$root/complete"
}

# Keeps the build results of earlier runs.
replace_sources() {
  find "$root/canal_lock" -mindepth 1 -maxdepth 1 ! -name _build -exec rm -rf {} +
  copy_sources "$root/canal_lock"
  # Tests list the files by git.
  git -C "$root/canal_lock" init --quiet
  git -C "$root/canal_lock" add --all
}

install_tools
register_qemu
mkdir -p _build/distro
make_root
replace_sources
inside scripts/setup.sh >"$log" 2>&1 || not_installable "scripts/setup.sh failed"
echo "distro: $suite ($arch): $(inside rustc --version), in $root: $*"
if inside "$@" 2>&1 | tee "$log"; then
  echo "distro: $suite ($arch): passed: $*"
else
  echo "distro: $suite ($arch): failed: $*; the log is $log. Its lines about failures:"
  grep -E '\*(failed|timed out)\*|cancelled|\.\.\. FAILED|^ +[0-9]+\) (test|doctest) |^error(\[|:)|^FAILED:' "$log" |
    head -100
  exit 1
fi
