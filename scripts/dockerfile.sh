#!/usr/bin/env bash
# Runs the instructions of examples/Dockerfile without Docker, and checks that its program answers. Requires root.
#
#   scripts/dockerfile.sh
#
# Each stage is a folder with the Debian of its FROM, made by debootstrap. The folder differs from the image: it has
# ca-certificates, so that it can get the certificates of this machine. Docker itself and .dockerignore are not run:
# COPY of the context copies what git would commit.
#
# Exit status 75: as scripts/distro.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/debian.sh

file=examples/Dockerfile
stages=$PWD/_build/distro/dockerfile
log=$stages.log
mapfile -t environment < <(passed_on "${proxies[@]}")
trap 'rm -rf "$stages"' EXIT

unknown() { fail "$file: this script does not know: $*"; }

# The folder of an image is made once.
from() { # IMAGE [as STAGE]
  [[ $1 =~ ^debian:([a-z]+)-slim$ ]] || unknown "FROM $*"
  suite=${BASH_REMATCH[1]}
  local image=$PWD/_build/distro/$suite-$arch-bare
  if [ ! -e "$image/complete" ]; then
    root=$image
    bootstrap
    touch "$image/complete"
  fi
  root=$stages/${3-last} directory=/ as=
  cp -a --reflink=auto "$image" "$root"
}

copy() { # [--from=STAGE] FROM TO
  case $* in
    '. .') copy_sources "$root$directory" ;;
    --from=*) cp -a "$stages/${1#--from=}$2" "$root$3" ;;
    *) unknown "COPY $*" ;;
  esac
}

# Starts the program of CMD, and asks it for a page until it answers. With the bash of the Debian: the program has
# another network.
answers() { # PROGRAM [ARGUMENT...]
  network=--net inside timeout 60 bash -euc '
    "$@" &
    until { : >"/dev/tcp/127.0.0.1/$PORT"; } 2>/dev/null; do kill -0 $!; sleep 0.1; done
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf "GET / HTTP/1.1\r\nHost: nowhere\r\n\r\n" >&3
    read -r line <&3
    echo "$line"
    [[ $line == "HTTP/1.1 404 No app is configured for this Host"* ]]' program "$@"
}

install_tools
rm -rf "$stages"
mkdir -p "$stages"
# Comments and empty lines are left out, and continued lines joined.
sed -e '/^#/d; /^$/d' -e ':more; /\\$/ { N; s/\\\n *//; t more }' "$file" >"$stages/instructions"
while read -r instruction arguments <&4; do
  echo "dockerfile: $instruction $arguments"
  case $instruction in
    FROM) from $arguments ;;
    RUN) inside sh -c "$arguments" >"$log" 2>&1 || { tail -n 50 "$log"; fail "failed: $arguments"; } ;;
    WORKDIR) directory=$arguments; mkdir -p "$root$directory" ;;
    COPY) copy $arguments ;;
    USER) as=--userspec=$arguments environment+=(HOME=/nonexistent) ;;
    EXPOSE) environment+=("PORT=$arguments") ;;
    CMD) mapfile -t command < <(grep -o '[^][", ]*' <<<"$arguments") ;;
    *) unknown "$instruction $arguments" ;;
  esac
done 4<"$stages/instructions"
answers "${command[@]}"
echo "dockerfile: passed"
