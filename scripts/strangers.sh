#!/usr/bin/env bash
# Builds and runs the library the ways its users will, each from nothing and below a folder with a space in its name:
# as a dependency of either tool, in releases that are moved, without cargo, without Elixir, twice, and both at once.
# Takes some minutes, nearly all of them cargo's.
set -euo pipefail
cd "$(dirname "$0")/.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
log=$work/log
mkdir "$work/a folder"
library="$work/a folder/canal_lock"
unset CANAL_LOCK_NIF_LIBRARY CARGO CARGO_TARGET_DIR MIX_ENV ERL_LIBS
# A release of mix that starts no distribution leaves no epmd behind.
export RELEASE_DISTRIBUTION=none
export ELIXIR_ERL_OPTIONS="${ELIXIR_ERL_OPTIONS-+fnu}"

# What git would clone: neither what is built nor what is ignored.
mkdir "$library"
git ls-files --cached --others --exclude-standard -z | tar --null --create --files-from=- | tar -x -C "$library"
git -C "$library" init --quiet --initial-branch=main
git -C "$library" add --all
git -C "$library" -c user.name=stranger -c user.email=stranger@localhost commit --quiet --message=copy

# Ends the script, with all that the failed step had to say.
fail() { cat "$log" >&2; echo "FAILED: $*" >&2; exit 1; }
ok() { echo "ok: $*"; }
quietly() { "$@" >"$log" 2>&1 || fail "$* (exit status $?)"; }
inode() { ls -i "$1" | cut -d ' ' -f 1; }

# --- projects that depend on us -------------------------------------------------------------------------------------

# Takes a permit, is refused the second, says so and stops the VM.
erlang_project() { # FOLDER DEPS
  mkdir -p "$1/src"
  cat >"$1/src/stranger.app.src" <<'END'
{application, stranger, [{vsn, "1"}, {applications, [kernel, stdlib, canal_lock]}, {mod, {stranger, []}}]}.
END
  cat >"$1/src/stranger.erl" <<'END'
-module(stranger).
-export([start/2, stop/1]).
start(_, _) ->
    {ok, Manager} = canal_lock:start_link(1),
    {acquired, 1} = canal_lock:acquire(key, 1, 1),
    full = canal_lock:acquire(key, 1, 1),
    io:format("a permit for the stranger~n"),
    init:stop(),
    {ok, Manager}.
stop(_) -> ok.
END
  cat >"$1/rebar.config" <<END
{deps, [$2]}.
{relx, [{release, {stranger, "1"}, [stranger]}, {mode, prod}, {extended_start_script, false}, {vm_args, "vm.args"}]}.
END
  # The arguments that would be written for us name the node, which starts distribution and leaves an epmd behind.
  : >"$1/vm.args"
}

mix_project() { # FOLDER DEPS [MORE PROJECT OPTIONS]
  mkdir -p "$1/lib"
  cat >"$1/mix.exs" <<END
defmodule Stranger.MixProject do
  use Mix.Project
  def project, do: [app: :stranger, version: "1.0.0", deps: [$2]${3:-}]
  def application, do: [mod: {Stranger, []}]
end
END
  cat >"$1/lib/stranger.ex" <<'END'
defmodule Stranger do
  use Application
  def start(_, _) do
    {:ok, manager} = :canal_lock.start_link(1)
    {:acquired, 1} = :canal_lock.acquire(:key, 1, 1)
    :full = :canal_lock.acquire(:key, 1, 1)
    IO.puts("a permit for the stranger")
    System.stop()
    {:ok, manager}
  end
end
END
}

gets_its_permit() { # COMMAND...
  quietly "$@"
  grep -q '^a permit for the stranger' "$log" || fail "no permit from: $*"
}

runs_with_erl() { # LIBS
  ERL_LIBS="$1" gets_its_permit erl -noshell -eval '{ok, _} = application:ensure_all_started(stranger).'
}

# --- a checkout of our own ------------------------------------------------------------------------------------------

cd "$library"
with_rebar3=priv/canal_lock_nif.so
with_mix=_build/dev/lib/canal_lock/priv/canal_lock_nif.so

(rebar3 compile >"$work/rebar3.log" 2>&1) & rebar3_pid=$!
(mix compile >"$work/mix.log" 2>&1) & mix_pid=$!
wait "$rebar3_pid" || { cp "$work/rebar3.log" "$log"; fail "rebar3 compile, beside mix"; }
wait "$mix_pid" || { cp "$work/mix.log" "$log"; fail "mix compile, beside rebar3"; }
cmp "$with_rebar3" "$with_mix"
ok "both tools at once, from nothing"

before="$(inode "$with_rebar3") $(inode "$with_mix")"
quietly rebar3 compile
said=$(mix compile 2>/dev/null)
[ -z "$said" ] || fail "a second mix compile did something: $said"
[ "$before" = "$(inode "$with_rebar3") $(inode "$with_mix")" ] || fail "a second build installed again"
ok "a second build does nothing"

# A line more at the top moves the line numbers that the library carries for its backtraces.
touch_rust() { sed -i '1i // one line more' "$library/native/canal_lock_nif/src/lib.rs"; }
touch_rust
quietly rebar3 compile
quietly mix compile
[ "$(inode "$with_rebar3")" != "${before% *}" ] || fail "rebar3 overlooked an edit"
[ "$(inode "$with_mix")" != "${before#* }" ] || fail "mix overlooked an edit"
ok "both tools pick up an edit of a .rs file"

ready_made=$work/ready_made.so
cp "$with_rebar3" "$ready_made"
quietly git checkout --quiet -- native
git clean -fdxq

# --- rebar3 ---------------------------------------------------------------------------------------------------------

# rebar3 hands the address to a shell without quotes, so the repository is reached by a name without a space.
ln -s "$library" "$work/repository"
by_git="{canal_lock, {git, \"file://$work/repository\", {branch, \"main\"}}}"

project="$work/a folder/rebar3_git"
erlang_project "$project" "$by_git"
cd "$project"
quietly rebar3 release
cd "$work"
runs_with_erl "$project/_build/default/lib"
ok "rebar3, by git"
mv "$project/_build/default/rel/stranger" "$work/moved"
rm -rf "$project"
gets_its_permit "$work/moved/bin/stranger" -noinput
rm -rf "$work/moved"
ok "a release of rebar3, moved"

project="$work/a folder/rebar3_checkouts"
erlang_project "$project" canal_lock
mkdir "$project/_checkouts"
git clone --quiet "$library" "$project/_checkouts/canal_lock"
cd "$project"
quietly rebar3 compile
cd "$work"
runs_with_erl "$project/_build/default/lib:$project/_build/default/checkouts"
rm -rf "$project"
ok "rebar3, by _checkouts"

# --- mix ------------------------------------------------------------------------------------------------------------

project="$work/a folder/mix_git"
mix_project "$project" "{:canal_lock, git: \"$library\"}"
cd "$project"
quietly mix deps.get
gets_its_permit mix run --no-halt
rm -rf "$project"
ok "mix, by git"

project="$work/a folder/mix_path"
mix_project "$project" "{:canal_lock, path: \"$library\"}"
cd "$project"
gets_its_permit mix run --no-halt
before=$(inode _build/dev/lib/canal_lock/priv/canal_lock_nif.so)
touch_rust
gets_its_permit mix run --no-halt
[ "$before" != "$(inode _build/dev/lib/canal_lock/priv/canal_lock_nif.so)" ] || fail "mix overlooked an edit by path"
[ ! -e "$library/priv" ] || fail "mix installed into the source"
ok "mix, by path, with an edit"
MIX_ENV=prod quietly mix release
mv _build/prod/rel/stranger "$work/moved"
rm -rf "$project"
(cd "$library" && git checkout --quiet -- native && git clean -fdxq)
cd "$work"
gets_its_permit "$work/moved/bin/stranger" start
rm -rf "$work/moved"
ok "a release of mix, moved"

project="$work/a folder/mix_umbrella"
mkdir -p "$project/apps"
cat >"$project/mix.exs" <<'END'
defmodule Umbrella.MixProject do
  use Mix.Project
  def project, do: [apps_path: "apps", version: "1.0.0", deps: []]
end
END
mix_project "$project/apps/stranger" "{:canal_lock, in_umbrella: true}" \
  ', build_path: "../../_build", deps_path: "../../deps", lockfile: "../../mix.lock"'
git clone --quiet "$library" "$project/apps/canal_lock"
sed -i 's/      deps: \[\],/      deps: [], build_path: "..\/..\/_build", deps_path: "..\/..\/deps",/' \
  "$project/apps/canal_lock/mix.exs"
cd "$project"
gets_its_permit mix run --no-halt
rm -rf "$project"
ok "mix, in an umbrella"

# Mix calls the rebar3 that it is shown, instead of asking to install one of its own.
MIX_REBAR3=$(command -v rebar3)
export MIX_REBAR3
project="$work/a folder/mix_rebar3"
mix_project "$project" "{:canal_lock, git: \"$library\", manager: :rebar3}"
cd "$project"
quietly mix deps.get
gets_its_permit mix run --no-halt
rm -rf "$project"
ok "mix, by git, with rebar3 as its manager"

# --- machines that lack something -----------------------------------------------------------------------------------

# A PATH of links to what a build may use here; no cargo, no Elixir.
mkdir "$work/bin"
for tool in sh env erl escript rebar3 git cc ld as dirname basename sed uname cat rm mkdir ln cp mv; do
  ! found=$(command -v "$tool") || ln -s "$found" "$work/bin/$tool"
done
poor() { env -u CARGO -u CARGO_HOME -u MIX_REBAR3 PATH="$work/bin" HOME="$work" "$@"; }

fails_with() { # WORDS COMMAND...
  local words=$1 status=0
  shift
  "$@" >"$log" 2>&1 || status=$?
  [ "$status" -eq 1 ] || fail "exit status $status instead of 1 from: $*"
  grep -q "$words" "$log" || fail "no word of '$words' from: $*"
}

cd "$library"
fails_with 'there is no cargo' poor escript native/build.escript
[ "$(wc -l <"$log")" -eq 1 ] || fail "more than one line about the missing cargo"
fails_with 'there is no cargo' poor rebar3 compile
ok "no cargo: one sentence"

printf '#!/bin/sh\necho "cargo 1.63.0 (fd9c4297c 2022-07-01)"\n' >"$work/bin/cargo"
printf '#!/bin/sh\necho "rustc 1.63.0 (4b91a6ea7 2022-08-08)"\n' >"$work/bin/rustc"
chmod +x "$work/bin/cargo" "$work/bin/rustc"
fails_with 'cargo is 1.63.0' poor escript native/build.escript
[ "$(wc -l <"$log")" -eq 1 ] || fail "more than one line about the old cargo"
rm "$work/bin/cargo" "$work/bin/rustc"
ok "an old cargo: one sentence"

project="$work/a folder/rebar3_ready_made"
erlang_project "$project" "$by_git"
cd "$project"
CANAL_LOCK_NIF_LIBRARY=$ready_made quietly poor rebar3 compile
cmp "$ready_made" _build/default/lib/canal_lock/priv/canal_lock_nif.so
runs_with_erl "$project/_build/default/lib"
ok "a ready-made library, without cargo and without Elixir"
