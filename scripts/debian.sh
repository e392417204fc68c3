# Folders with a Debian, made by debootstrap, and commands in them. Sourced by distro.sh and dockerfile.sh. Requires
# root. Sets `arch'; the caller sets `suite', `root' (the folder), `directory' (where commands run there), `log' and
# `environment' (the variables of commands).

arch=${ARCH:-$(dpkg --print-architecture)}

fail() {
  echo "$(basename "$0" .sh): $*" >&2
  exit 1
}

not_installable() {
  echo "$(basename "$0" .sh): $suite ($arch): not tried: $*; see $log" >&2
  exit 75
}

# VARIABLE=VALUE for each of these variables that is set.
passed_on() { # VARIABLE...
  local name
  for name in "$@"; do
    [ -z "${!name-}" ] || echo "$name=${!name}"
  done
}
proxies=({http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY)

install_tools() {
  [ "$(id -u)" -eq 0 ] || fail "only root can enter a Debian in a folder"
  local packages=()
  command -v debootstrap >/dev/null || packages+=(debootstrap)
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages+=(debian-archive-keyring)
  [ "$arch" = "$(dpkg --print-architecture)" ] || command -v qemu-aarch64-static >/dev/null ||
    packages+=(qemu-user-static)
  [ ${#packages[@]} -eq 0 ] && return
  apt-get update -qq || echo "distro: apt-get update failed; continuing with the existing package lists"
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${packages[@]}"
}

# Makes `root'.
bootstrap() {
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --arch="$arch" --include=ca-certificates "$suite" "$root" >"$log" 2>&1 ||
    not_installable "debootstrap failed"
  # The lists of an archive's copy may have expired.
  echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90canal_lock"
}

# In namespaces of its own for mounts and processes, so that nothing stays behind. The folder is a mount of its own,
# because tests make network namespaces, which need one. With this machine's certificates and name servers, because its
# network may have its own. With `network=--net' in a network of its own. `as' has options of chroot.
inside() { # COMMAND...
  ROOT=$root NETWORK=${network-} unshare --mount --pid --fork --kill-child ${network-} bash -euc '
    mount --bind "$ROOT" "$ROOT"
    mount -t proc proc "$ROOT/proc"
    mount --rbind /dev "$ROOT/dev"
    mount --rbind /sys "$ROOT/sys"
    for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
      touch "$ROOT$file"
      mount --bind "$file" "$ROOT$file"
    done
    [ -z "$NETWORK" ] || ip link set lo up
    exec chroot "$@"' inside ${as-} "$root" /usr/bin/env --ignore-environment --chdir="$directory" HOME=/root \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${environment[@]}" "$@"
}

# Copies what git would commit. With new times (-m): a build compares them with those of its results, which may be newer
# than an edit that they lack.
copy_sources() { # FOLDER
  git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"
  done | tar -c --null -T - | tar -x -m -C "$1"
}
