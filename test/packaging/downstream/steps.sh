# What every check stands on: the repository that downstream depend on, copies of their projects, and what is expected
# of a command. Sourced by run.sh.

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
# Where the projects are built. No tool may stumble over the space.
place="$work/a folder"
mkdir "$place"
# What both tools call, in the repository.
script=$place/canal_lock/native/build.escript

# A downstream's machine has none of this.
unset CANAL_LOCK_NIF_LIBRARY CANAL_LOCK_QUORUM_NIF_LIBRARY
unset CARGO CARGO_TARGET_DIR CARGO_BUILD_TARGET RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
unset MIX_ENV MIX_REBAR3 ERL_LIBS ERL_FLAGS MAKEFLAGS MFLAGS
# A release of mix that starts no distribution leaves no epmd behind, and a node that does not start no dump.
export RELEASE_DISTRIBUTION=none ERL_CRASH_DUMP_SECONDS=0
export ELIXIR_ERL_OPTIONS="${ELIXIR_ERL_OPTIONS-+fnu}"

# Goes through its checks while others do.
side_by_side() { # FUNCTION...
  local function started=()
  for function in "$@"; do
    (log=$work/$function.log said=$work/$function.said; "$function") &
    started+=($!)
  done
  for function in "${started[@]}"; do wait "$function"; done
}

# In a shell of its own, which the first command that fails ends. Its output is shown if it fails. Not to be called in
# a condition, or beside && and ||: there bash goes on after failures, whatever is set.
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

check_with_elixir() { # TITLE FUNCTION
  if has_elixir; then check "$@"; else echo "left out, because there is no Elixir here: $1" | tee -a "$work/results"; fi
}

# The closing line; those that went wrong and those that were left out once more above it.
close() {
  local passed failed
  passed=$(grep -c '^ok' "$work/results") || true
  failed=$(grep -c '^FAILED' "$work/results") || true
  grep -v '^ok' "$work/results" || true
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

has_elixir() { command -v elixir >/dev/null && command -v mix >/dev/null; }

wrong() { echo "$*" >&2; exit 1; }

# The working tree as git would clone it: neither what is built nor what is ignored.
make_repository() { # FOLDER
  local file
  mkdir "$1"
  while IFS= read -r -d '' file; do
    # One that was removed is still listed.
    if [ -e "$file" ]; then printf '%s\0' "$file"; fi
  done < <(git ls-files --cached --others --exclude-standard -z) | tar --null --create --files-from=- | tar -x -C "$1"
  git -C "$1" init --quiet --initial-branch=main
  git -C "$1" add --all
  git -C "$1" -c user.name=downstream -c user.email=downstream@localhost commit --quiet --message=copy
}

# What a package for hex would hold: what app.src lists, and nothing else.
make_package() { # REPOSITORY FOLDER
  mkdir "$2"
  (
    cd "$1"
    erl -noinput -eval '
      {ok, [{application, canal_lock, Keys}]} = file:consult("src/canal_lock.app.src"),
      {files, Files} = lists:keyfind(files, 1, Keys),
      io:format("~ts~n", [lists:join("\n", Files)]),
      halt().' | tar --create --files-from=-
  ) | tar -x -C "$2"
}

# For git, the address by which the projects depend on us is this repository.
stand_in() { # REPOSITORY
  export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$1.insteadOf"
  export GIT_CONFIG_VALUE_0=https://example.org/canal_lock.git
}

# A copy of a project, with what all of them do, and into it.
enter() { # PROJECT [FOLDER]
  cp -R "$downstream/$1" "$place/${2-$1}"
  cd "$place/${2-$1}"
  local lib=lib
  if [ -d apps ]; then lib=apps/downstream/lib; fi
  if [ -f rebar.config ]; then
    cp "$downstream/visit/"*.erl src/
  else
    mkdir $lib
    cp "$downstream/visit/"*.ex $lib/
  fi
}

# The lines that every project prints when all was as it should be.
visits() { # COMMAND...
  counts_permits "$@"
  grep -q "^canal_lock: the library of the quorum locks came when it was asked for" "$said" ||
    wrong "no word of the quorum locks from: $*"
}

# The first of them. Instead of the other it may say why the library of the quorum locks does not come.
counts_permits() { # COMMAND...
  "$@" | tee "$said"
  grep -q "^canal_lock: three got in, a fourth found it full, and the permit of one that died came back" "$said" ||
    wrong "no word of the visit from: $*"
}

# Of what was built or brought here.
has_both() { # PRIV
  cmp "$ready_made" "$1/canal_lock_nif.so"
  cmp "$ready_made_quorum" "$1/canal_lock_quorum_nif.so"
}

visits_with_erl() { # LIBS [ARGUMENT...]
  local libs=$1
  shift
  ERL_LIBS=$libs visits erl -noinput "$@" -eval '{ok, _} = application:ensure_all_started(downstream).'
}

# Exits with status 1, and says this.
refuses() { # WORDS COMMAND...
  local words=$1 status=0
  shift
  "$@" >"$said" 2>&1 || status=$?
  cat "$said"
  [ "$status" -eq 1 ] || wrong "exit status $status instead of 1 from: $*"
  says "$words"
}

# It did, whatever the width at which it was printed.
says() { # WORDS
  tr '\n' ' ' <"$said" | tr -s ' ' | grep -qF -- "$1" || wrong "no word of: $1"
}

# Nothing but this, in one line.
refuses_in_one_line() { # WORDS COMMAND...
  refuses "$@"
  [ "$(wc -l <"$said")" -eq 1 ] || wrong "more than one line"
}

# A machine with Erlang, rebar3 and git: no Rust, no C compiler, no Elixir.
poor() { # COMMAND...
  env -u CARGO_HOME -u RUSTC -u MIX_REBAR3 PATH="$bin" HOME="$work" "$@"
}

make_bin() {
  bin=$work/bin
  link_programs "$bin" sh env erl escript rebar3 git dirname basename sed uname cat rm mkdir ln cp mv
  # Rust, by the programs of the toolchain themselves: what rustup has put into their place asks for its home.
  rust=$work/rust
  PATH="$(rustc --print sysroot)/bin:$PATH" link_programs "$rust" cargo rustc
  # And what it links with.
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
