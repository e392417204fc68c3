# The repository that the projects depend on, copies of the projects, and expectations. Sourced by run.sh.

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
# The projects are built here. The space in the path must not break any tool.
place="$work/a folder"
mkdir "$place"
# The build script, which both tools call.
script=$place/canal_lock/native/build.escript

# A user's machine does not set these.
unset "${!CANAL_LOCK_@}" XDG_CACHE_HOME {HTTP,HTTPS,NO}_PROXY {http,https,no}_proxy
unset CARGO CARGO_TARGET_DIR CARGO_BUILD_TARGET RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
unset MIX_ENV MIX_REBAR3 ERL_LIBS ERL_FLAGS MAKEFLAGS MFLAGS
# So that releases of mix start no epmd, and nodes that fail to start write no crash dumps.
export RELEASE_DISTRIBUTION=none ERL_CRASH_DUMP_SECONDS=0
export ELIXIR_ERL_OPTIONS="${ELIXIR_ERL_OPTIONS-+fnu}"
# Git uses the repository for the address in the projects' dependencies.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$place/canal_lock.insteadOf"
export GIT_CONFIG_VALUE_0=https://example.org/canal_lock.git

# Runs the functions concurrently.
side_by_side() { # FUNCTION...
  local function started=()
  for function in "$@"; do
    (
      # A subshell does not inherit the trap.
      trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
      log=$work/$function.log said=$work/$function.said
      # Each has a cache of its own.
      export XDG_CACHE_HOME=$work/$function.cache
      "$function"
    ) &
    started+=($!)
  done
  for function in "${started[@]}"; do wait "$function"; done
}

# Runs the function in a subshell, which the first failing command ends, and shows its output if it fails. Do not call
# this in a condition, or beside && and ||, where bash ignores failures inside of functions.
check() { # TITLE FUNCTION
  local status started=$SECONDS
  set +e
  (
    set -eE
    trap 'echo "${BASH_SOURCE[0]##*/}:$LINENO: failed: $BASH_COMMAND" >&2' ERR
    "$2"
  ) >"$log" 2>&1 </dev/null
  status=$?
  set -e
  if [ $status -eq 0 ]; then
    echo "ok: $1 ($((SECONDS - started)) s)" | tee -a "$work/results"
  else
    cat "$log"
    echo "FAILED: $1" | tee -a "$work/results"
  fi
}

# Prints the failed checks again, then a summary line.
close() {
  grep '^FAILED' "$work/results" || true
  echo "$(grep -c '^ok' "$work/results") passed, $(grep -c '^FAILED' "$work/results") failed"
  ! grep -q '^FAILED' "$work/results"
}

wrong() { echo "$*" >&2; exit 1; }

# The working tree as git would clone it: without build results and ignored files.
make_repository() { # FOLDER
  local file
  mkdir "$1"
  while IFS= read -r -d '' file; do
    # git still lists removed files.
    if [ -e "$file" ]; then printf '%s\0' "$file"; fi
  done < <(git ls-files --cached --others --exclude-standard -z) | tar --null --create --files-from=- | tar -x -C "$1"
  cp "$work/archives/checksum.term" "$1/"
  git -C "$1" init --quiet --initial-branch=main
  git -C "$1" add --all
  git -C "$1" -c user.name=downstream -c user.email=downstream@localhost commit --quiet --message=copy
}

# Makes a project of rebar3 or mix, and changes into its folder.
enter_rebar3() { # FOLDER
  cp -R "$downstream/rebar3" "$place/$1"
  cp "$downstream/downstream.erl" "$place/$1/src/"
  cd "$place/$1"
}

enter_mix() { # FOLDER DEPENDENCY
  mkdir -p "$place/$1/"{src,lib}
  cd "$place/$1"
  sed "s|DEPENDENCY|$2|" "$downstream/mix/mix.exs" >mix.exs
  cp "$downstream/mix/application.ex" lib/
  cp "$downstream/downstream.erl" src/
}

# Expects both lines that every project prints when the library works.
expect_library_works() { # COMMAND...
  expect_permits_work "$@"
  expect_output "canal_lock: the library of the quorum locks loads when it is used"
}

# Expects the first line. The second may instead explain why the library of the quorum locks does not load.
expect_permits_work() { # COMMAND...
  "$@" | tee "$said"
  expect_output "canal_lock: three permits acquired, the fourth refused, and the permit of a dead holder released"
}

# Expects that the folder has both libraries, unchanged; or only that of permits.
has_both() { # PRIV
  diff -r "$ready_made" "$1"
}

has_permits_only() { # PRIV
  [ "$(ls "$1")" = canal_lock_nif.so ] || wrong "the folder contains: $(ls "$1")"
  cmp "$ready_made/canal_lock_nif.so" "$1/canal_lock_nif.so"
}

with_erl() { # LIBS
  ERL_LIBS=$1 erl -noinput -eval '{ok, _} = application:ensure_all_started(downstream).'
}

# Expects exit status 1 and these words.
expect_failure() { # WORDS COMMAND...
  local words=$1 status=0
  shift
  "$@" >"$said" 2>&1 || status=$?
  cat "$said"
  [ "$status" -eq 1 ] || wrong "exit status $status instead of 1 from: $*"
  expect_output "$words"
}

# Expects these words in the last output, ignoring line breaks.
expect_output() { # WORDS
  tr '\n' ' ' <"$said" | tr -s ' ' | grep -qF -- "$1" || wrong "not in the output: $1"
}

# A machine with Erlang, Elixir, rebar3 and git: no Rust, no C compiler.
without_rust() { # COMMAND...
  env -u CARGO_HOME -u RUSTC PATH="$bin" HOME="$work" "$@"
}

make_bin() {
  bin=$work/bin
  link_programs "$bin" sh env erl escript rebar3 elixir mix git \
    dirname basename readlink sed uname cat rm mkdir ln cp mv
  # The programs of the Rust toolchain itself, because rustup's wrappers need its home folder.
  rust=$work/rust
  PATH="$(rustc --print sysroot)/bin:$PATH" link_programs "$rust" cargo rustc
  # The programs that Rust links with.
  linker=$work/linker
  link_programs "$linker" cc ld as
}

link_programs() { # FOLDER PROGRAM...
  local folder=$1 program found
  mkdir "$folder"
  for program in "${@:2}"; do
    if found=$(command -v "$program"); then ln -s "$found" "$folder/$program"; fi
  done
}

start_server() {
  escript "$downstream/server.escript" "$work/archives" >"$work/ports" 2>"$work/server.log" &
  until [ -s "$work/ports" ]; do sleep 0.1; done
  read -r port secure_port <"$work/ports"
  server=http://127.0.0.1:$port
}
