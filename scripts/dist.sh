#!/usr/bin/env bash
# Packs the native libraries into archives in _build/dist (or $DIST), and writes the checksum.term of all archives
# there. With an archive, a machine without Rust installs the libraries (docs/installing.md).
#
#   scripts/dist.sh              for this machine, linked with its own C library
#   scripts/dist.sh TARGET...    for these targets, as x86_64-unknown-linux-gnu. Those of glibc need only glibc 2.28:
#                                zig links them, which this installs with pip
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.28
zig_packages=$PWD/scripts/zig.txt
tools=$PWD/_build/zig
dist=${DIST:-_build/dist}

# The archive must contain libraries built from these sources.
unset "${!CANAL_LOCK_@}"

version=$(sed -n 's/^ *{vsn, "\(.*\)"},$/\1/p' src/canal_lock.app.src)
[ -n "$version" ]
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

install_zig() {
  if cmp -s "$zig_packages" "$tools/installed"; then return; fi
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --require-hashes --requirement "$zig_packages"
  cp "$zig_packages" "$tools/installed"
}

# Rust's standard library for the target: by rustup, or Debian's package for its processor.
install_standard_library() { # TARGET
  if [ -d "$(rustc --print target-libdir --target "$1")" ]; then return; fi
  if command -v rustup >/dev/null; then
    rustup target add "$1"
  else
    local arch=${1%%-*}
    case $arch in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; esac
    dpkg --add-architecture "$arch"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "libstd-rust-dev:$arch" >&2
  fi
}

# In a target folder of its own, because the libraries of a usual build are linked with this machine's C library.
build() { # TARGET CARGO_ARGUMENT...
  local folder=_build/cargo-dist/$1/release library file
  (cd native && cargo "${@:2}" --release --locked --target-dir ../_build/cargo-dist \
    -p canal_lock_nif -p canal_lock_quorum_nif)
  mkdir "$stage/$1"
  for library in canal_lock_nif canal_lock_quorum_nif; do
    file=$folder/lib$library.so
    case $1 in *-apple-*) file=$folder/lib$library.dylib ;; esac
    cp "$file" "$stage/$1/$library.so"
  done
}

pack() { # TARGET
  local archive=canal_lock-$version-$1.tar.gz
  cp LICENSE "$stage/$1/"
  # By Erlang, because not every tar can omit times and owners. Without them, the same libraries give the same archive.
  STAGE=$stage/$1 ARCHIVE=$dist/$archive APP=canal_lock-$version erl -noinput -boot start_clean -eval '
    [Stage, Archive, App] = [os:getenv(Name) || Name <- ["STAGE", "ARCHIVE", "APP"]],
    {ok, Tar} = erl_tar:open(Archive, [write, compressed]),
    [begin
         {ok, Bytes} = file:read_file(filename:join(Stage, filename:basename(Name))),
         ok = erl_tar:add(Tar, Bytes, App ++ "/" ++ Name, [{mtime, 0}, {uid, 0}, {gid, 0}])
     end || Name <- ["LICENSE", "priv/canal_lock_nif.so", "priv/canal_lock_quorum_nif.so"]],
    ok = erl_tar:close(Tar),
    halt().'
  echo "$dist/$archive"
}

mkdir -p "$dist"
rm -f "$dist/canal_lock-$version"-*
if [ $# -eq 0 ]; then
  target=${CARGO_BUILD_TARGET:-$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')}
  escript native/build.escript "$stage/$target" >&2
  pack "$target"
fi
for target in "$@"; do
  install_standard_library "$target"
  case $target in
    *-linux-*)
      install_zig
      PATH=$tools/bin:$PATH build "$target" zigbuild --target "${target/%-gnu/-gnu.$glibc}"
      ;;
    *) build "$target" build --target "$target" ;;
  esac
  pack "$target"
done
escript scripts/checksums.escript "$dist"
