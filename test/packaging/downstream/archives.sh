# The archive of `make dist', and invalid archives. Sourced by run.sh.

# With the build script of the repository or another one, on a machine without Rust.
installs() { # ARCHIVE FOLDER [SCRIPT]
  CANAL_LOCK_NIF_LIBRARY=$1 without_compilers escript "${3-$script}" "$2"
}

refuses_to_install() { # WORDS ARCHIVE [SCRIPT]
  expect_failure_in_one_line "$1" installs "$2" "$place/nothing" "${@:3}"
  [ ! -e "$place/nothing" ] || wrong "something was installed"
}

sum() { # ARCHIVE
  (cd "${1%/*}" && if command -v sha256sum >/dev/null; then sha256sum "${1##*/}"; else shasum -a 256 "${1##*/}"; fi) \
    >"$1.sha256"
}

# A copy of the archive with its checksum.
copy() { # NAME
  cp "$archive" "$work/$1"
  cp "$archive.sha256" "$work/$1.sha256"
}

# The environment and the time do not matter.
is_made_the_same_twice() {
  local again
  export DIST=$work/again
  again=$(CANAL_LOCK_NIF_LIBRARY=/nowhere.so CANAL_LOCK_QUORUM_NIF_LIBRARY=/nowhere.so "$root/scripts/dist.sh")
  cmp "$archive" "$again"
  cmp "$archive.sha256" "$again.sha256"
  local files
  files=$(tar -tzf "$archive" | sed 's,.*/,,' | sort | xargs)
  [ "$files" = "LICENSE canal_lock_nif.so canal_lock_quorum_nif.so" ] || wrong "the archive contains: $files"
  [ "$(TZ=UTC tar -tvzf "$archive" | grep -c ' 1970-01-01 00:00 ')" = 3 ] || wrong "the archive contains times"
}

# Also in a project, with an Erlang that has no EDoc.
is_installed() {
  installs "$archive" "$place/unpacked"
  has_both "$place/unpacked"
  [ -z "$(installs "$archive" "$place/unpacked")" ] || wrong "it was installed twice"
  enter rebar3_git without_rust
  ERL_AFLAGS="-run code del_path edoc" CANAL_LOCK_NIF_LIBRARY=$archive without_compilers rebar3 compile
  expect_library_works_with_erl "$PWD/_build/default/lib"
}

is_checked_without_crypto() {
  local without_crypto="-run code del_path crypto"
  ERL_AFLAGS=$without_crypto refuses_to_install "Erlang's crypto or the program sha256sum or shasum" \
    "$archive"
  copy damaged.tar.gz
  echo >>"$work/damaged.tar.gz"
  mkdir "$work/sums"
  local program
  for program in sha256sum shasum; do
    if ! command -v $program >/dev/null; then continue; fi
    rm -f "$work"/sums/*
    ln -s "$(command -v $program)" "$work/sums/$program"
    (
      bin=$bin:$work/sums
      export ERL_AFLAGS=$without_crypto
      installs "$archive" "$place/checked by $program"
      has_both "$place/checked by $program"
      refuses_to_install "does not match its checksum" "$work/damaged.tar.gz"
    )
  done
}

is_refused() {
  copy changed.tar.gz
  echo >>"$work/changed.tar.gz"
  refuses_to_install "changed.tar.gz does not match its checksum: expected " "$work/changed.tar.gz"
  rm "$work/changed.tar.gz.sha256"
  refuses_to_install "changed.tar.gz.sha256 cannot be read: no such file or directory." "$work/changed.tar.gz"
  echo "no checksum" >"$work/changed.tar.gz.sha256"
  refuses_to_install "changed.tar.gz.sha256 is not a checksum in the format of sha256sum." "$work/changed.tar.gz"

  echo "no archive" >"$work/none.tar.gz"
  sum "$work/none.tar.gz"
  refuses_to_install "cannot unpack $work/none.tar.gz: " "$work/none.tar.gz"

  tar -C "$place/canal_lock" -czf "$work/empty.tar.gz" LICENSE
  sum "$work/empty.tar.gz"
  refuses_to_install "empty.tar.gz does not contain canal_lock_nif.so." "$work/empty.tar.gz"

  # An archive of `make dist' has both libraries.
  local library
  for library in canal_lock_nif.so canal_lock_quorum_nif.so; do
    mkdir "$work/lacks $library"
    tar -C "$work/lacks $library" -xzf "$archive"
    rm "$work/lacks $library"/canal_lock-*/priv/$library
    tar -C "$work/lacks $library" -czf "$work/lacking.tar.gz" "$(ls "$work/lacks $library")"
    sum "$work/lacking.tar.gz"
    refuses_to_install "lacking.tar.gz does not contain $library." "$work/lacking.tar.gz"
  done

  # Paths that lead out of the archive: nothing is unpacked, neither there nor in the working directory.
  mkdir -p "$work/above/beneath"
  cp "$ready_made" "$work/above/canal_lock_nif.so"
  (cd "$work/above/beneath" && tar -P -czf "$work/above.tar.gz" ../canal_lock_nif.so)
  (cd "$work/above" && tar -P -czf "$work/absolute.tar.gz" "$PWD/canal_lock_nif.so")
  rm "$work/above/canal_lock_nif.so"
  cd "$work/above/beneath"
  local outside
  for outside in above absolute; do
    sum "$work/$outside.tar.gz"
    refuses_to_install "$outside.tar.gz" "$work/$outside.tar.gz"
  done
  refuses_to_install "empty.tar.gz" "$work/empty.tar.gz"
  [ "$(find "$work/above")" = "$work/above"$'\n'"$work/above/beneath" ] || wrong "something was unpacked"

  cp -R "$place/canal_lock" "$place/next"
  sed -i.before 's/{vsn, "[^"]*"}/{vsn, "99.0.0"}/' "$place/next/src/canal_lock.app.src"
  refuses_to_install "these sources are canal_lock-99.0.0, but $archive contains canal_lock-" \
    "$archive" "$place/next/native/build.escript"
}

archives() {
  check "an archive made twice is the same" is_made_the_same_twice
  check "an archive is installed, without Rust and without Elixir" is_installed
  check "an archive is checked without Erlang's crypto" is_checked_without_crypto
  check "a wrong archive is not installed: one sentence" is_refused
}
