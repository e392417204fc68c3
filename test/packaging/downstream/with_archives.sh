# The archives of `make dist': downloads, and what the build script reports if it installs nothing. Sourced by run.sh.

# Calls the build script on a machine without Rust.
gets() { # VARIABLE=VALUE...
  rm -rf "$place/got"
  without_rust env "$@" escript "$script" "$place/got"
  has_both "$place/got"
}

# Expects one line with these words, and that nothing is installed.
reports() { # WORDS VARIABLE=VALUE...
  expect_failure "$1" without_rust env "${@:2}" escript "$script" "$place/none"
  [ "$(wc -l <"$said")" -eq 1 ] || wrong "more than one line"
  [ ! -e "$place/none" ] || wrong "something was installed"
}

url() { echo "CANAL_LOCK_PRECOMPILED_URL=$1"; }

# A new cache.
empty_cache() { rm -rf "$XDG_CACHE_HOME"; }

# The environment and the time do not matter.
is_made_the_same_twice() {
  local again
  again=$(DIST=$work/again CANAL_LOCK_ARCHIVE=/nowhere CANAL_LOCK_QUORUM=0 "$root/scripts/dist.sh")
  cmp "$archive" "$again"
  cmp "$work/archives/checksum.term" "$work/again/checksum.term"
  [ "$(TZ=UTC tar -tvzf "$archive" | grep -c ' 1970-01-01 00:00 ')" = 3 ] || wrong "the archive contains times"
}

# The second call of the script is silent. An old library of the quorum locks is removed.
of_ones_own() {
  erlc -Werror -o "$work" "$root/native/archive.erl"
  gets CANAL_LOCK_ARCHIVE="$archive"
  [ -z "$(CANAL_LOCK_ARCHIVE=$archive without_rust escript "$script" "$place/got")" ] || wrong "it was installed twice"
  echo "of other sources" >"$place/got/canal_lock_nif.so"
  CANAL_LOCK_ARCHIVE=$archive CANAL_LOCK_QUORUM=0 without_rust escript "$script" "$place/got" >"$said"
  expect_output "installed $place/got/canal_lock_nif.so, removed $place/got/canal_lock_quorum_nif.so"
  has_permits_only "$place/got"
}

# A second build downloads nothing, and a damaged cache is downloaded again.
downloaded() {
  gets "$(url "$server/files")"
  gets "$(url "$server/missing")"
  local cached
  cached=$(find "$XDG_CACHE_HOME/canal_lock" -name '*.tar.gz')
  echo >>"$cached"
  gets "$(url "$server/files")"
  cmp "$archive" "$cached"
  empty_cache
  gets "$(url "$server/moved/")"
  empty_cache
  gets "$(url http://archives.invalid/files)" HTTP_PROXY="${server#http://}"
  empty_cache
  gets "$(url "$server/files")" HTTP_PROXY=http://127.0.0.1:1 NO_PROXY=example.org,127.0.0.1
}

no_download() {
  empty_cache
  local name=${archive##*/}
  reports "cannot download $server/hang/$name: it took too long." "$(url "$server/hang")" \
    CANAL_LOCK_PRECOMPILED_TIMEOUT_MS=500
  reports "CANAL_LOCK_PRECOMPILED_TIMEOUT_MS must be a number of milliseconds, got: 30s." "$(url "$server/hang")" \
    CANAL_LOCK_PRECOMPILED_TIMEOUT_MS=30s
  reports "cannot download $server/missing/$name: the server answered 404 Not Found." "$(url "$server/missing")"
  reports "cannot download $server/cut/$name: the server closed the connection." "$(url "$server/cut")"
  reports "$server/damaged/$name has the wrong checksum: expected " "$(url "$server/damaged")"
  reports "connection refused." "$(url http://127.0.0.1:1)"
  # Directly, after a redirect, and through a proxy, whose password is not printed.
  reports "https://127.0.0.1:$secure_port/$name: TLS: " "$(url "https://user:secret@127.0.0.1:$secure_port")"
  reports "$server/secure/$name: TLS: " "$(url "$server/secure")"
  reports "https://archives.invalid/$name: TLS: " "$(url https://archives.invalid)" \
    HTTPS_PROXY="http://user:secret@${server#http://}"
  reports "the environment variable HTTPS_PROXY is not the address of a proxy." "$(url https://archives.invalid)" \
    HTTPS_PROXY=http://
  [ -z "$(find "$XDG_CACHE_HOME" -type f)" ] || wrong "something was stored"
}

wrong_archives() {
  cd "$place/canal_lock"
  local name=${archive##*/} folder
  mkdir "$work"/{changed,cut,no_sums}
  # The same bytes in another order.
  { tail -c +1001 "$archive"; head -c 1000 "$archive"; } >"$work/changed/$name"
  head -c 1000 "$archive" >"$work/cut/$name"
  for folder in changed cut; do
    reports "$work/$folder/$name has the wrong checksum: expected " "$(url "$work/$folder")"
    cp "$work/archives/checksum.term" "$work/$folder/"
    reports "$work/$folder/$name has the wrong checksum: expected " CANAL_LOCK_ARCHIVE="$work/$folder/$name"
  done
  reports "cannot read $work/no_sums/$name: no such file or directory." "$(url "$work/no_sums")"
  reports "CANAL_LOCK_PRECOMPILED_URL must be an address or the absolute path of a folder, got: archives." \
    "$(url archives)"
  cp "$archive" "$work/no_sums/"
  reports "cannot read $work/no_sums/checksum.term: no such file" CANAL_LOCK_ARCHIVE="$work/no_sums/$name"
  cp "$archive" "$work/archives/canal_lock-9.0.0-$name"
  reports "but $work/archives/canal_lock-9.0.0-$name is no archive of them." \
    CANAL_LOCK_ARCHIVE="$work/archives/canal_lock-9.0.0-$name"
  reports "CANAL_LOCK_ARCHIVE must be an absolute path, got: nowhere.tar.gz." CANAL_LOCK_ARCHIVE=nowhere.tar.gz
  reports "an archive needs Erlang's application crypto" CANAL_LOCK_ARCHIVE="$archive" \
    ERL_AFLAGS="-run code del_path crypto"
  mkdir "$work/lacking"
  tar -C "$work" -czf "$work/lacking/$name" "$app/priv/canal_lock_nif.so"
  escript scripts/checksums.escript "$work/lacking"
  reports "does not contain $app/priv/canal_lock_quorum_nif.so." CANAL_LOCK_ARCHIVE="$work/lacking/$name"
}

no_archive() {
  reports "only canal_lock-" "$(url "$work/archives")" CARGO_BUILD_TARGET=riscv64gc-unknown-linux-gnu
  cp -R "$place/canal_lock" "$place/unreleased"
  : >"$place/unreleased/checksum.term"
  script=$place/unreleased/native/build.escript
  reports "is empty, because these sources are not a release." "$(url "$work/archives")"
  reports "there is no cargo" CANAL_LOCK_QUORUM=1
  expect_output "Without Rust, set CANAL_LOCK_ARCHIVE to an archive that you made on another machine"
}

no_rust() {
  reports "there is no cargo on PATH or in $work/.cargo/bin: install Rust from https://rustup.rs" CANAL_LOCK_QUORUM=1
  expect_output "set CANAL_LOCK_PRECOMPILED_URL to where this release has its archives, or CANAL_LOCK_ARCHIVE to"
  reports "there is no cargo" "$(url none)"
  local program
  mkdir "$work/old"
  for program in cargo rustc; do
    printf '#!/bin/sh\nprintf "host: x86_64-unknown-linux-gnu\\nrelease: 1.63.0\\n"\n' >"$work/old/$program"
    chmod +x "$work/old/$program"
  done
  reports "rustc is 1.63.0: run \"rustup update\"" PATH="$work/old:$bin"
  reports "does not print its version" PATH="$rust:$bin" RUSTC="$(type -P echo)"
  local variable
  for variable in RUSTFLAGS CARGO_ENCODED_RUSTFLAGS; do
    reports "for musl, rustc builds a shared library only with \"-C target-feature=-crt-static\"" \
      PATH="$rust:$bin" $variable=--cfg=Łódź CARGO_BUILD_TARGET=aarch64-unknown-linux-musl
  done
}

wrong_settings() {
  reports "CANAL_LOCK_QUORUM must be 0 or 1" CANAL_LOCK_QUORUM=yes
  mkdir "$work/settings"
  echo "{canal_lock, [{quorum, yes}]}." >"$work/settings/rebar.config"
  reports "the setting quorum of canal_lock true or false, got: yes." REBAR_ROOT_DIR="$work/settings"
  echo "{canal_lock, [{precompiled_url, <<\"https://example.org\">>}]}." >"$work/settings/rebar.config"
  reports "the setting precompiled_url of canal_lock must be a string" REBAR_ROOT_DIR="$work/settings"
}

with_archives() {
  check "an archive made twice is the same" is_made_the_same_twice
  check "an archive of one's own is installed once" of_ones_own
  check "an archive comes from the cache, after a redirect, or through a proxy" downloaded
  check "a server that hangs, lacks the file, damages it, or cannot be trusted: one sentence" no_download
  check "a wrong archive: one sentence" wrong_archives
  check "no archive for these sources or this machine: one sentence" no_archive
  check "no Rust, an old one, or flags that replace ours: one sentence" no_rust
  check "wrong settings: one sentence" wrong_settings
}
