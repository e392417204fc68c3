# Precompiled archives on a machine without Rust: from a server and from a folder, by both tools, and what the build
# reports if it gets none. Sourced by run.sh.

# A repository as a release has it: with the checksums of its archives.
make_release() {
  make_repository "$place/release"
  cp "$work/archives/checksum.term" "$place/release/"
  git -C "$place/release" -c user.name=downstream -c user.email=downstream@localhost commit --quiet --all \
    --message=checksums
}

start_server() {
  escript "$downstream/server.escript" "$work/archives" >"$work/ports" 2>"$work/server.log" &
  until [ -s "$work/ports" ]; do sleep 0.1; done
  read -r _ port _ secure_port <"$work/ports"
  server=http://127.0.0.1:$port
}

without_rust() { # URL COMMAND...
  CANAL_LOCK_PRECOMPILED_URL=$1 without_compilers "${@:2}"
}

# Uses a new cache.
empty_cache() {
  XDG_CACHE_HOME=$(mktemp -d "$work/cache.XXX")
  export XDG_CACHE_HOME
}

gets() { # URL
  rm -rf "$work/got"
  without_rust "$1" escript "$place/release/native/build.escript" "$work/got"
  has_both "$work/got"
}

reports() { # WORDS URL [COMMAND...]
  expect_failure_in_one_line "$1" without_rust "$2" "${@:3}" escript "$place/release/native/build.escript" "$place/none"
  [ ! -e "$place/none" ] || wrong "something was installed"
}

from_a_server_with_rebar3() {
  empty_cache
  stand_in "$place/release"
  enter rebar3_git precompiled
  without_rust "$server/files" rebar3 compile
  has_both _build/default/lib/canal_lock/priv
  expect_library_works_with_erl "$PWD/_build/default/lib"
}

from_a_server_with_mix() {
  empty_cache
  stand_in "$place/release"
  enter mix_git precompiled_mix
  without_rust "$server/files" env PATH="$bin:$mix" mix deps.get
  expect_library_works without_rust "$server/files" env PATH="$bin:$mix" mix run --no-halt
  has_both _build/dev/lib/canal_lock/priv
}

# Of an address and of a folder, by the configuration of the project, also without the quorum locks.
by_configuration_with_rebar3() {
  empty_cache
  stand_in "$place/release"
  enter rebar3_git configured
  echo "{canal_lock, [{precompiled_url, \"$work/archives\"}, {quorum, false}]}." >>rebar.config
  without_compilers rebar3 compile
  cmp "$ready_made" _build/default/lib/canal_lock/priv/canal_lock_nif.so
  lacks_quorum _build/default/lib/canal_lock/priv
  ERL_LIBS=$PWD/_build/default/lib expect_permits_work erl -noinput \
    -eval '{ok, _} = application:ensure_all_started(downstream).'
  expect_output "CANAL_LOCK_QUORUM=0"
  # A variable takes precedence. rebar3 builds a dependency once.
  CANAL_LOCK_QUORUM=1 without_compilers rebar3 do clean --apps canal_lock, compile
  has_both _build/default/lib/canal_lock/priv
  echo "{canal_lock, [{precompiled, yes}]}." >rebar.config
  expect_failure_in_one_line "the setting precompiled of canal_lock true or false, got: yes." \
    env REBAR_ROOT_DIR="$PWD" escript "$script" "$place/none"
  echo "{canal_lock, [{precompiled_url, <<\"https://example.org\">>}]}." >rebar.config
  expect_failure_in_one_line "the setting precompiled_url of canal_lock must be a string" \
    env REBAR_ROOT_DIR="$PWD" escript "$script" "$place/none"
}

by_configuration_with_mix() {
  empty_cache
  stand_in "$place/release"
  enter mix_git configured_mix
  mkdir -p config
  cat >config/config.exs <<END
import Config
config :canal_lock, precompiled_url: "$work/archives", quorum: false
END
  without_compilers env PATH="$bin:$mix" mix deps.get
  expect_permits_work without_compilers env PATH="$bin:$mix" mix run --no-halt
  cmp "$ready_made" _build/dev/lib/canal_lock/priv/canal_lock_nif.so
  lacks_quorum _build/dev/lib/canal_lock/priv
}

lacks_quorum() { # PRIV
  [ ! -e "$1/canal_lock_quorum_nif.so" ] || wrong "the library of the quorum locks was installed"
}

# A second build downloads nothing, and a damaged cache is downloaded again.
from_the_cache() {
  empty_cache
  gets "$server/files"
  gets "$server/hang"
  local cached
  cached=$(find "$XDG_CACHE_HOME/canal_lock" -name '*.tar.gz')
  echo >>"$cached"
  gets "$server/files"
  cmp "$archive" "$cached"
}

after_faults() {
  empty_cache
  gets "$server/busy"
  empty_cache
  gets "$server/moved/"
  empty_cache
  HTTP_PROXY=${server#http://} gets "http://archives.invalid/files"
  empty_cache
  HTTP_PROXY=http://127.0.0.1:1 NO_PROXY=example.org,127.0.0.1 gets "$server/files"
}

wrong_archives() {
  empty_cache
  local name=${archive##*/}
  mkdir "$work/tampered" "$work/truncated"
  # The same bytes in another order.
  { tail -c +1001 "$archive"; head -c 1000 "$archive"; } >"$work/tampered/$name"
  head -c 1000 "$archive" >"$work/truncated/$name"
  reports "$name has the wrong checksum: expected " "$work/tampered"
  reports "$name has 1000 bytes instead of " "$work/truncated"
  reports "cannot read $work/nowhere/$name: no such file or directory." "$work/nowhere"
  reports "CANAL_LOCK_PRECOMPILED_URL must be an address or the absolute path of a folder, got: archives." archives
}

no_archive() {
  empty_cache
  reports "has no archive for riscv64gc-unknown-linux-gnu, only for " "$server/files" \
    env CARGO_BUILD_TARGET=riscv64gc-unknown-linux-gnu
  reports "CANAL_LOCK_PRECOMPILED is set, but CANAL_LOCK_PRECOMPILED_URL is not." "" env CANAL_LOCK_PRECOMPILED=1
  reports "CANAL_LOCK_PRECOMPILED must be 0 or 1, or the setting" "$server/files" env CANAL_LOCK_PRECOMPILED=yes
  reports "there is no cargo" "$server/files" env CANAL_LOCK_PRECOMPILED=0
  cp -R "$place/release" "$place/old"
  sed -i.before 's/{minimum_otp_vsn, "[0-9]*"}/{minimum_otp_vsn, "99"}/' "$place/old/rebar.config"
  expect_failure_in_one_line "canal_lock needs Erlang/OTP 99 or later, but this is " \
    without_rust "$server/files" escript "$place/old/native/build.escript" "$place/none"
  expect_failure_in_one_line "there are no archives of these sources, because they are not a release" \
    without_rust "$server/files" escript "$script" "$place/none"
  [ ! -e "$place/none" ] || wrong "something was installed"
}

no_download() {
  empty_cache
  local name=${archive##*/}
  reports "cannot download $server/hang/$name: the server sent nothing for 500 ms (tried 3 times)." "$server/hang" \
    env CANAL_LOCK_PRECOMPILED_TIMEOUT_MS=500
  reports "CANAL_LOCK_PRECOMPILED_TIMEOUT_MS must be a number of milliseconds, got: 30s." "$server/hang" \
    env CANAL_LOCK_PRECOMPILED_TIMEOUT_MS=30s
  reports "cannot download $server/missing/$name: the server answered 404 Not Found." "$server/missing"
  reports "cannot download $server/cut/$name: the server closed the connection (tried 3 times)." "$server/cut"
  reports "connection refused (tried 3 times)." http://127.0.0.1:1
  # Directly, after a redirect, and through a proxy, whose password is not printed.
  reports "https://127.0.0.1:$secure_port/$name: TLS: " "https://127.0.0.1:$secure_port"
  reports "$server/secure/$name: TLS: " "$server/secure"
  reports "https://archives.invalid/$name: TLS: " "https://archives.invalid" \
    env HTTPS_PROXY="http://user:secret@${server#http://}"
  reports "the environment variable HTTPS_PROXY is not the address of a proxy." "https://archives.invalid" \
    env HTTPS_PROXY="http://"
}

precompiled() {
  local port secure_port server mix=$work/mix
  make_release
  start_server
  if has_elixir; then link_programs "$mix" elixir mix readlink; fi
  check "without Rust, rebar3 installs the archive of a server" from_a_server_with_rebar3
  check_with_elixir "without Rust, mix installs the archive of a server" from_a_server_with_mix
  check "rebar3 reads the address and the other settings in rebar.config" by_configuration_with_rebar3
  check_with_elixir "mix reads them in the project's configuration" by_configuration_with_mix
  check "a second build takes the archive from the cache, if it is not damaged" from_the_cache
  check "an archive arrives after failures, a redirect, or through a proxy" after_faults
  check "a wrong archive in a folder: one sentence" wrong_archives
  check "no archive for these sources or this machine: one sentence" no_archive
  check "a server that hangs, lacks the file, or cannot be trusted: one sentence" no_download
}
