# What the build says on machines that lack something, or have something else. Sourced by run.sh.

# What nothing may come of.
build=(escript "$script" "$place/nowhere")

no_cargo() {
  refuses_in_one_line "there is no cargo" poor "${build[@]}"
  says "or let CANAL_LOCK_NIF_LIBRARY name what was built elsewhere."
}

old_cargo() {
  mkdir "$work/old"
  printf '#!/bin/sh\necho "cargo 1.63.0 (fd9c4297c 2022-07-01)"\n' >"$work/old/cargo"
  printf '#!/bin/sh\necho "rustc 1.63.0 (4b91a6ea7 2022-08-08)"\n' >"$work/old/rustc"
  chmod +x "$work/old/cargo" "$work/old/rustc"
  refuses_in_one_line "cargo is 1.63.0" poor env PATH="$work/old:$bin" "${build[@]}"
}

no_linker() {
  refuses "There is no cc on PATH, which Rust links with" \
    poor env PATH="$rust:$bin" CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" CARGO_TARGET_DIR="$work/unlinked" "${build[@]}"
  says "linker \`cc\` not found"
}

not_ready_made() {
  export CANAL_LOCK_NIF_LIBRARY=$work/nowhere.so
  refuses_in_one_line "CANAL_LOCK_NIF_LIBRARY names $work/nowhere.so: no such file or directory." "${build[@]}"
  CANAL_LOCK_NIF_LIBRARY=nowhere.so
  refuses_in_one_line "CANAL_LOCK_NIF_LIBRARY must be an absolute path, and nowhere.so is not." "${build[@]}"
  CANAL_LOCK_NIF_LIBRARY=$archive.sha256
  refuses_in_one_line "which is neither a library (.so, .dylib, .dll) nor an archive (.tar.gz)." "${build[@]}"
  echo "no library" >"$work/none.so"
  CANAL_LOCK_NIF_LIBRARY=$work/none.so
  refuses_in_one_line "CANAL_LOCK_NIF_LIBRARY names $work/none.so, which is no library" "${build[@]}"
  head -c 100000 "$ready_made" >"$work/none.so"
  if [ "$(uname)" = Linux ]; then refuses_in_one_line "or not a whole one." "${build[@]}"; fi
  # Neither comes without the other.
  CANAL_LOCK_NIF_LIBRARY=$ready_made
  export CANAL_LOCK_QUORUM_NIF_LIBRARY=$work/none.so
  refuses_in_one_line "CANAL_LOCK_QUORUM_NIF_LIBRARY names $work/none.so, which is no library" "${build[@]}"
  [ ! -e "$place/nowhere" ] || wrong "something was installed"
}

# Who brings canal_lock_nif alone has no Rust, and what is there of the other is of who knows what.
one_alone() {
  local folder=$place/alone
  mkdir "$folder"
  echo "of other sources" >"$folder/canal_lock_quorum_nif.so"
  CANAL_LOCK_NIF_LIBRARY=$ready_made poor escript "$script" "$folder" >"$said"
  says "canal_lock: installed $folder/canal_lock_nif.so, removed $folder/canal_lock_quorum_nif.so"
  cmp "$ready_made" "$folder/canal_lock_nif.so"
  [ ! -e "$folder/canal_lock_quorum_nif.so" ] || wrong "the other one is there"
  local again
  again=$(CANAL_LOCK_NIF_LIBRARY=$ready_made poor escript "$script" "$folder")
  [ -z "$again" ] || wrong "a second time it did something: $again"
  CANAL_LOCK_NIF_LIBRARY=$ready_made CANAL_LOCK_QUORUM_NIF_LIBRARY=$ready_made_quorum poor escript "$script" "$folder"
  has_both "$folder"
  # The one comes first where an archive has both.
  echo >>"$folder/canal_lock_quorum_nif.so"
  CANAL_LOCK_NIF_LIBRARY=$archive CANAL_LOCK_QUORUM_NIF_LIBRARY=$folder/canal_lock_quorum_nif.so \
    poor escript "$script" "$place/first"
  cmp "$folder/canal_lock_quorum_nif.so" "$place/first/canal_lock_quorum_nif.so"
  cmp "$ready_made" "$place/first/canal_lock_nif.so"
}

# As cargo does it for musl when it may not link dynamically.
no_shared_library() {
  cat >"$work/cargo" <<'END'
#!/bin/sh
case $1 in
  --version) echo "cargo 99.0.0" ;;
  build) echo '{"reason":"compiler-artifact","target":{"kind":["rlib"],"name":"canal_lock_nif"},"filenames":[]}' ;;
esac
END
  chmod +x "$work/cargo"
  CARGO=$work/cargo refuses_in_one_line "named no shared library of it. For musl it makes one only" "${build[@]}"
}

# Cargo knows what a target can make before it needs the libraries of that target, which are not here.
musl_without_our_flags() {
  local variable
  for variable in RUSTFLAGS CARGO_ENCODED_RUSTFLAGS; do
    refuses "For musl it makes one only with \"-C target-feature=-crt-static\"" env $variable=--cfg=Łódź \
      CARGO_BUILD_TARGET=aarch64-unknown-linux-musl "${build[@]}"
  done
}

# What rustc is called with, by one that then refuses to compile anything.
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
  check "no C compiler to link with: one more sentence" no_linker
  check "a ready-made library that is none: one sentence" not_ready_made
  check "a ready-made library alone" one_alone
  check "no shared library: one sentence, with what it is on musl" no_shared_library
  check "for musl with flags in place of ours: what to add" musl_without_our_flags
  check "for musl: our flags are there" musl_with_our_flags
}
