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

fail() {
  echo "distro: $*" >&2
  exit 1
}

[ $# -ge 1 ] || fail "usage: scripts/distro.sh SUITE [COMMAND [ARGUMENT...]]"
suite=$1
shift
[ $# -gt 0 ] || set -- make --keep-going test
[ "$(id -u)" -eq 0 ] || fail "only root can enter a Debian in a folder"
arch=${ARCH:-$(dpkg --print-architecture)}
# These variables are kept.
passed_on=()
for name in CANAL_LOCK_CI CANAL_LOCK_SOAK CARGO_INCREMENTAL {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY; do
  [ -z "${!name-}" ] || passed_on+=("$name=${!name}")
done
root=$PWD/_build/distro/$suite-$arch
log=$root.log

install_tools() {
  local packages=()
  command -v debootstrap >/dev/null || packages+=(debootstrap)
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages+=(debian-archive-keyring)
  [ "$arch" = "$(dpkg --print-architecture)" ] || command -v qemu-aarch64-static >/dev/null ||
    packages+=(qemu-user-static)
  [ ${#packages[@]} -eq 0 ] && return
  apt-get update -qq || echo "distro: apt-get update failed; continuing with the existing package lists"
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${packages[@]}"
}

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

not_installable() {
  echo "distro: $suite ($arch): not tried: $*; see $log" >&2
  exit 75
}

# Marks a complete folder, so that a run after an interrupted one begins again.
make_root() {
  [ ! -e "$root/complete" ] || return 0
  echo "distro: making $root"
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --arch="$arch" --include=ca-certificates "$suite" "$root" >"$log" 2>&1 ||
    not_installable "debootstrap failed"
  # The lists of an archive's copy may have expired.
  echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90canal_lock"
  mkdir "$root/canal_lock"
  inside sh -c 'apt-get update -qq && apt-get install -qq --yes --no-install-recommends cargo git make' >>"$log" 2>&1 ||
    not_installable "installing cargo, git and make failed"
  touch "$root/complete"
}

# In namespaces of its own for mounts and processes, so that nothing stays behind. The folder is a mount of its own,
# because tests make network namespaces, which need one. With this machine's certificates and name servers, because its
# network may have its own.
inside() {
  ROOT=$root unshare --mount --pid --fork --kill-child bash -euc '
    mount --bind "$ROOT" "$ROOT"
    mount -t proc proc "$ROOT/proc"
    mount --rbind /dev "$ROOT/dev"
    mount --rbind /sys "$ROOT/sys"
    for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
      touch "$ROOT$file"
      mount --bind "$file" "$ROOT$file"
    done
    exec chroot "$ROOT" "$@"' inside /usr/bin/env --ignore-environment --chdir=/canal_lock \
    HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    DEBIAN_FRONTEND=noninteractive "${passed_on[@]}" "$@"
}

# Keeps the build results of earlier runs. With new times (-m): a build compares them with those of its results, which
# may be newer than an edit that they lack.
copy_sources() {
  find "$root/canal_lock" -mindepth 1 -maxdepth 1 ! -name _build -exec rm -rf {} +
  git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"
  done | tar -c --null -T - | tar -x -m -C "$root/canal_lock"
  # Tests list the files by git.
  git -C "$root/canal_lock" init --quiet
  git -C "$root/canal_lock" add --all
}

install_tools
register_qemu
mkdir -p _build/distro
make_root
copy_sources
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
