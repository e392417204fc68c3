#!/usr/bin/env bash
# Builds and runs projects that depend on the library: copies of the folders here, in a folder with a space in its name,
# against a clone of the working tree. Also checks the error messages of builds on machines that lack something. Checks
# that need Elixir are skipped without it, and listed before the last line.
#
# Two builds start from nothing. The others install the libraries that the working tree has built.
#
#   test/packaging/downstream/run.sh            all
#   test/packaging/downstream/run.sh GROUP...   of: building crates with_rebar3 with_mix archives precompiled lacking
set -euo pipefail
downstream=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$downstream/../../.." && pwd)
cd "$root"

source "$downstream/steps.sh"
source "$downstream/building.sh"
source "$downstream/with_rebar3.sh"
source "$downstream/with_mix.sh"
source "$downstream/lacking.sh"
source "$downstream/archives.sh"
source "$downstream/precompiled.sh"

make_repository "$place/canal_lock"
stand_in "$place/canal_lock"
make_bin

escript native/build.escript "$work/ready_made"
ready_made=$work/ready_made/canal_lock_nif.so
ready_made_quorum=$work/ready_made/canal_lock_quorum_nif.so
archive=$(DIST=$work/archives scripts/dist.sh)

# Nearly all of its time is cargo's.
with_cargo() {
  building
  crates
}

others() {
  with_rebar3
  with_mix
  archives
  precompiled
  lacking
}

if [ $# -eq 0 ]; then side_by_side with_cargo others; else side_by_side "$@"; fi
close
