#!/usr/bin/env bash
# Packs the native libraries into an archive in _build/dist and writes its checksum beside it. On a machine with both
# files, CANAL_LOCK_NIF_LIBRARY=/path/to/the/archive.tar.gz installs the libraries without Rust.
set -euo pipefail
cd "$(dirname "$0")/.."

# The archive must contain libraries built from these sources.
unset CANAL_LOCK_NIF_LIBRARY CANAL_LOCK_QUORUM_NIF_LIBRARY

version=$(sed -n 's/^ *{vsn, "\(.*\)"},$/\1/p' src/canal_lock.app.src)
target=${CARGO_BUILD_TARGET:-$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')}
[ -n "$version" ] && [ -n "$target" ]
archive=canal_lock-$version-$target.tar.gz
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

escript native/build.escript "$stage/priv" >&2
cp LICENSE "$stage/priv/"
mkdir -p _build/dist
# By Erlang, because not every tar can omit times and owners. Without them, the same libraries give the same archive.
# The paths inside contain the version, so the archive may be renamed.
STAGE=$stage ARCHIVE=_build/dist/$archive APP=canal_lock-$version erl -noinput -boot start_clean -eval '
  [Stage, Archive, App] = [os:getenv(Name) || Name <- ["STAGE", "ARCHIVE", "APP"]],
  {ok, Tar} = erl_tar:open(Archive, [write, compressed]),
  [begin
       {ok, Bytes} = file:read_file(filename:join([Stage, "priv", filename:basename(Name)])),
       ok = erl_tar:add(Tar, Bytes, App ++ "/" ++ Name, [{mtime, 0}, {uid, 0}, {gid, 0}])
   end || Name <- ["LICENSE", "priv/canal_lock_nif.so", "priv/canal_lock_quorum_nif.so"]],
  ok = erl_tar:close(Tar),
  halt().'
cd _build/dist
if command -v sha256sum >/dev/null; then sha256sum "$archive"; else shasum -a 256 "$archive"; fi >"$archive.sha256"
echo "_build/dist/$archive"
