#!/usr/bin/env bash
# Builds and runs projects that depend on the library, in a folder with a space in its name, against a clone of the
# working tree. Also checks the error messages of builds that lack something. One build starts from nothing. The others
# install archives of the libraries that the working tree has built.
#
#   test/packaging/downstream/run.sh            all
#   test/packaging/downstream/run.sh GROUP...   of: with_cargo with_rebar3 with_mix with_archives
set -euo pipefail
downstream=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$downstream/../../.." && pwd)
cd "$root"

source "$downstream/steps.sh"
source "$downstream/with_cargo.sh"
source "$downstream/with_rebar3.sh"
source "$downstream/with_mix.sh"
source "$downstream/with_archives.sh"

archive=$(DIST=$work/archives scripts/dist.sh)
tar -C "$work" -xzf "$archive"
app=$(basename "$work"/canal_lock-*)
ready_made=$work/$app/priv
# A repository as a release has it: with the checksums of its archives.
make_repository "$place/canal_lock"
make_bin
start_server

if [ $# -eq 0 ]; then set -- with_cargo with_rebar3 with_mix with_archives; fi
side_by_side "$@"
close
