# Builds on machines that lack a tool or have a wrong one: the error messages. Sourced by run.sh.

# A build that must install nothing.
build=(escript "$script" "$place/nowhere")

no_cargo() {
  expect_failure_in_one_line "there is no cargo" without_compilers "${build[@]}"
  expect_output "or set CANAL_LOCK_NIF_LIBRARY to a library or archive that was built on another machine."
}

old_cargo() {
  mkdir "$work/old"
  printf '#!/bin/sh\necho "cargo 1.63.0 (fd9c4297c 2022-07-01)"\n' >"$work/old/cargo"
  printf '#!/bin/sh\necho "rustc 1.63.0 (4b91a6ea7 2022-08-08)"\n' >"$work/old/rustc"
  chmod +x "$work/old/cargo" "$work/old/rustc"
  expect_failure_in_one_line "cargo is 1.63.0" without_compilers env PATH="$work/old:$bin" "${build[@]}"
}

no_linker() {
  expect_failure "There is no cc on PATH, which Rust uses as its linker" \
    without_compilers env PATH="$rust:$bin" CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" CARGO_TARGET_DIR="$work/unlinked" \
    "${build[@]}"
  expect_output "linker \`cc\` not found"
}

not_a_library() {
  export CANAL_LOCK_NIF_LIBRARY=$work/nowhere.so
  expect_failure_in_one_line "CANAL_LOCK_NIF_LIBRARY: cannot read $work/nowhere.so: no such file or directory." \
    "${build[@]}"
  CANAL_LOCK_NIF_LIBRARY=nowhere.so
  expect_failure_in_one_line "CANAL_LOCK_NIF_LIBRARY must be an absolute path, got: nowhere.so." "${build[@]}"
  CANAL_LOCK_NIF_LIBRARY=$archive.sha256
  expect_failure_in_one_line "is neither a library (.so, .dylib, .dll) nor an archive (.tar.gz)." "${build[@]}"
  echo "no library" >"$work/none.so"
  CANAL_LOCK_NIF_LIBRARY=$work/none.so
  expect_failure_in_one_line "CANAL_LOCK_NIF_LIBRARY: $work/none.so is not a library" "${build[@]}"
  head -c 100000 "$ready_made" >"$work/none.so"
  if [ "$(uname)" = Linux ]; then expect_failure_in_one_line "or is truncated." "${build[@]}"; fi
  # A wrong second library prevents the installation of the first.
  CANAL_LOCK_NIF_LIBRARY=$ready_made
  export CANAL_LOCK_QUORUM_NIF_LIBRARY=$work/none.so
  expect_failure_in_one_line "CANAL_LOCK_QUORUM_NIF_LIBRARY: $work/none.so is not a library" "${build[@]}"
  [ ! -e "$place/nowhere" ] || wrong "something was installed"
}

# If only canal_lock_nif is provided, the other library is not built, and an old one is removed.
one_alone() {
  local folder=$place/alone
  mkdir "$folder"
  echo "of other sources" >"$folder/canal_lock_quorum_nif.so"
  CANAL_LOCK_NIF_LIBRARY=$ready_made without_compilers escript "$script" "$folder" >"$said"
  expect_output "canal_lock: installed $folder/canal_lock_nif.so, removed $folder/canal_lock_quorum_nif.so"
  cmp "$ready_made" "$folder/canal_lock_nif.so"
  [ ! -e "$folder/canal_lock_quorum_nif.so" ] || wrong "the library of the quorum locks was not removed"
  local again
  again=$(CANAL_LOCK_NIF_LIBRARY=$ready_made without_compilers escript "$script" "$folder")
  [ -z "$again" ] || wrong "a second build was not silent: $again"
  CANAL_LOCK_NIF_LIBRARY=$ready_made CANAL_LOCK_QUORUM_NIF_LIBRARY=$ready_made_quorum \
    without_compilers escript "$script" "$folder"
  has_both "$folder"
  # CANAL_LOCK_QUORUM_NIF_LIBRARY takes precedence over the archive.
  echo >>"$folder/canal_lock_quorum_nif.so"
  CANAL_LOCK_NIF_LIBRARY=$archive CANAL_LOCK_QUORUM_NIF_LIBRARY=$folder/canal_lock_quorum_nif.so \
    without_compilers escript "$script" "$place/first"
  cmp "$folder/canal_lock_quorum_nif.so" "$place/first/canal_lock_quorum_nif.so"
  cmp "$ready_made" "$place/first/canal_lock_nif.so"
}

# What cargo prints for musl if it may not link dynamically.
no_shared_library() {
  cat >"$work/cargo" <<'END'
#!/bin/sh
case $1 in
  --version) echo "cargo 99.0.0" ;;
  build) echo '{"reason":"compiler-artifact","target":{"kind":["rlib"],"name":"canal_lock_nif"},"filenames":[]}' ;;
esac
END
  chmod +x "$work/cargo"
  CARGO=$work/cargo expect_failure_in_one_line \
    "but no shared library of it. For musl, rustc builds a shared library only" \
    "${build[@]}"
}

# Cargo fails before it needs the libraries of the target, which are missing here.
musl_without_our_flags() {
  local variable
  for variable in RUSTFLAGS CARGO_ENCODED_RUSTFLAGS; do
    expect_failure "For musl, rustc builds a shared library only with \"-C target-feature=-crt-static\"" \
      env $variable=--cfg=Łódź CARGO_BUILD_TARGET=aarch64-unknown-linux-musl "${build[@]}"
  done
}

# A rustc that prints its arguments and refuses to compile.
musl_with_our_flags() {
  cat >"$work/rustc_wrapper" <<'END'
#!/bin/sh
case " $* " in
  *" --crate-name ___ "*) exec "$@" ;;
  *" --crate-name "*) echo "called: $*" >&2; exit 1 ;;
  *) exec "$@" ;;
esac
END
  chmod +x "$work/rustc_wrapper"
  local target
  cd "$place/canal_lock/native"
  for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
    RUSTC_WRAPPER=$work/rustc_wrapper cargo build --keep-going --locked --target $target >"$said" 2>&1 || true
    cat "$said"
    grep -q -- "called: .*--target $target .*-C target-feature=-crt-static" "$said" || wrong "no flag for $target"
  done
}

lacking() {
  check "no cargo: one sentence" no_cargo
  check "an old cargo: one sentence" old_cargo
  check "no C compiler: one sentence in addition to cargo's" no_linker
  check "a prebuilt library that is not a library: one sentence" not_a_library
  check "a prebuilt library alone" one_alone
  check "no shared library: one sentence that explains musl" no_shared_library
  check "musl, with RUSTFLAGS that replace ours: the flag to add" musl_without_our_flags
  check "musl: cargo passes our flags" musl_with_our_flags
}
