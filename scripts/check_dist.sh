#!/usr/bin/env bash
# Checks the archives in _build/dist: contents, checksums, and that a library for Linux with glibc needs nothing that a
# system with glibc 2.28 and OTP 25 lacks.
#
#   scripts/check_dist.sh
#   scripts/check_dist.sh --release     and that checksum.term of the sources is that of these archives
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.28
# The parts of glibc.
may_need='libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|libm\.so\.6|ld-linux-(x86-64\.so\.2|aarch64\.so\.1)'
# Functions of erl_nif.h since NIF version 2.16. The libraries are of version 2.15.
too_new='enif_(init_resource_type|dynamic_resource_call|set_option|get_string_length|make_new_atom(_len)?)'

fail() {
  echo "check dist: $*" >&2
  exit 1
}

check_library() { # FILE TARGET
  local machine needed versions undefined
  case $2 in
    x86_64-*) machine='Advanced Micro Devices X86-64' ;;
    aarch64-*) machine=AArch64 ;;
    *) fail "$2: which machine?" ;;
  esac
  readelf --file-header "$1" | grep -q "Machine: *$machine" || fail "$1 is not for $machine"
  needed=$(readelf --dynamic "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' | grep -vxE "$may_need") || true
  [ -z "$needed" ] || fail "$1 needs" $needed
  versions=$(readelf --wide --dyn-syms "$1" | grep -oE 'GLIBC_[0-9.]+' | cut -d _ -f 2 | sort -Vu)
  [ -n "$versions" ] || fail "$1 shows no versions of glibc"
  [ "$(printf '%s\n' "$versions" $glibc | sort -V | tail -n 1)" = $glibc ] ||
    fail "$1 needs glibc $(tail -n 1 <<<"$versions"); the limit is $glibc"
  undefined=$(readelf --wide --dyn-syms "$1" | awk '$7 == "UND" && $8 !~ /@/ && $5 != "WEAK" { print $8 }')
  undefined=$(grep -vE '^(enif_|$)' <<<"$undefined") || true
  [ -z "$undefined" ] || fail "$1 needs symbols that neither glibc nor the VM has:" $undefined
  undefined=$(readelf --wide --dyn-syms "$1" | awk '$7 == "UND" { print $8 }' | grep -xE "$too_new") || true
  [ -z "$undefined" ] || fail "$1 needs functions of a later VM:" $undefined
  [ "$(stat -c %s "$1")" -lt 1500000 ] || fail "$1 has $(stat -c %s "$1") bytes: was it stripped?"
}

version=$(sed -n 's/^ *{vsn, "\(.*\)"},$/\1/p' src/canal_lock.app.src)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cd _build/dist || fail "there are no archives: run make dist"
cp checksum.term "$stage/"
(cd ../.. && escript scripts/checksums.escript _build/dist)
cmp checksum.term "$stage/checksum.term" || fail "checksum.term is not of these archives"
[ "${1-}" != --release ] || cmp checksum.term ../../checksum.term ||
  fail "the checksum.term of the sources is not of these archives"

compgen -G "canal_lock-$version-*.tar.gz" >/dev/null || fail "there are no archives: run make dist"
for archive in canal_lock-"$version"-*.tar.gz; do
  target=${archive#canal_lock-"$version"-}
  target=${target%.tar.gz}
  files=$(tar -tzf "$archive" | sort | xargs)
  app=canal_lock-$version
  [ "$files" = "$app/LICENSE $app/priv/canal_lock_nif.so $app/priv/canal_lock_quorum_nif.so" ] ||
    fail "$archive contains: $files"
  mkdir "$stage/$target"
  tar -C "$stage/$target" -xzf "$archive"
  case $target in
    *-linux-gnu) for library in "$stage/$target/$app"/priv/*.so; do check_library "$library" "$target"; done ;;
  esac
  echo "check dist: $archive: $(stat -c %s "$archive") bytes"
done
