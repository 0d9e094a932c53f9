# Sourced by the scripts beside it: where things are kept, how they speak, how one thing is installed once.
#
# Invariants: standard output carries only what the caller asked for (a path); everything said to people goes to
# standard error. The cache lies outside the tree, so that a fresh clone finds what an earlier one installed.
# shellcheck shell=bash

set -euo pipefail
# Everything here looks for what was built in the tree.
unset CARGO_TARGET_DIR

tools_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034  # for the scripts that source this file
root_dir=$(cd "$tools_dir/../.." && pwd)
cache_dir=${ALLUVIUM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/alluvium}

# The broker that tests and demo run unless KAFKA_VERSION says otherwise.
# shellcheck disable=SC2034
default_kafka=4.3.1

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "$(basename "$0"): $*"
  exit 1
}

# install_once DIRECTORY STAMP FUNCTION: makes DIRECTORY (in the cache) by calling `FUNCTION TEMPORARY_DIRECTORY`.
#
# The directory appears under its name only when it is complete and carries the marker `.complete` with STAMP inside;
# an interrupted installation leaves a temporary directory that the next one removes. Two at once: the second waits
# for the first and then finds its work done.
install_once() {
  local directory=$1 stamp=$2 installer=$3 temporary
  if is_complete "$directory" "$stamp"; then
    return 0
  fi
  mkdir -p "$(dirname "$directory")"
  exec 9>"$directory.lock"
  if ! flock --nonblock 9; then
    say "waiting for another installation of $(basename "$directory") ..."
    flock --timeout 1800 9 || fail "the other installation did not end within 30 minutes ($directory.lock)"
  fi
  if ! is_complete "$directory" "$stamp"; then
    # Under the lock: what bears this prefix now was left by an installation that died.
    rm -rf "$directory".partial.*
    temporary=$(mktemp -d "$directory.partial.XXXXXX")
    # shellcheck disable=SC2064  # the value of now is meant
    trap "rm -rf '$temporary'" EXIT
    "$installer" "$temporary"
    printf '%s\n' "$stamp" >"$temporary/.complete"
    chmod 755 "$temporary"
    rm -rf "$directory"
    mv "$temporary" "$directory"
    trap - EXIT
  fi
  exec 9>&-
}

is_complete() {
  [ -f "$1/.complete" ] && [ "$(cat "$1/.complete")" = "$2" ]
}

# version_at_least HAVE WANT: compares dotted versions.
version_at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# as_root COMMAND...: runs it with the rights to install packages.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "root rights are needed to install packages, and there is no sudo; as root: $*"
  fi
}

# confirm_installation: asks, but only where somebody can answer; goes on unasked in CI and in scripts.
confirm_installation() {
  if [ "${CI:-}" = true ] || ! [ -t 0 ]; then
    return 0
  fi
  local answer
  printf 'Install them now? [y/N] ' >&2
  read -r answer
  case $answer in
    y | Y | yes) ;;
    *) fail "nothing installed" ;;
  esac
}

# The JDK to use is 17 when there is one, else the first newer one: whatever JAVA_HOME or PATH have beside it.
wanted_java=17

java_major() {
  sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$1/release" 2>/dev/null
}

java_homes() {
  printf '%s\n' "${JAVA_HOME:-}"
  if command -v javac >/dev/null; then
    dirname "$(dirname "$(readlink -f "$(command -v javac)")")"
  fi
  printf '%s\n' /usr/lib/jvm/* "$HOME"/.sdkman/candidates/java/* "$HOME"/.jdks/*
}

# find_java: prints the home of the JDK (not: JRE) to use; fails when there is none.
find_java() {
  local home major newer=''
  while read -r home; do
    [ -n "$home" ] && [ -x "$home/bin/javac" ] || continue
    major=$(java_major "$home")
    [ -n "$major" ] || continue
    if [ "$major" -eq "$wanted_java" ]; then
      printf '%s\n' "$home"
      return 0
    fi
    if [ -z "$newer" ] && [ "$major" -gt "$wanted_java" ]; then
      newer=$home
    fi
  done < <(java_homes)
  [ -n "$newer" ] || return 1
  printf '%s\n' "$newer"
}

# go_install DIRECTORY MODULE VERSION BINARY: builds one Go program into the cache with `go install`.
go_install() {
  local directory=$1 module=$2 version=$3 binary=$4 override=$5
  build_with_go() {
    local into=$1
    require_go "$binary" "$override"
    say "$binary $version is not in $cache_dir: building it with go install (one to four minutes) ..."
    GOBIN=$into GOFLAGS='' go install "$module@$version" >"$into/.go.log" 2>&1 || {
      tail -n 20 "$into/.go.log" >&2
      fail "go install $module@$version failed (see above)"
    }
    [ -x "$into/$binary" ] || fail "go install succeeded but $binary is not there"
    rm -f "$into/.go.log"
  }
  install_once "$directory" "$module $version" build_with_go
}

# From 1.21 on, Go fetches by itself the newer toolchain that a module asks for.
oldest_go=1.21

go_version() {
  go env GOVERSION 2>/dev/null | sed 's/^go//; s/[^0-9.].*$//'
}

# Older ones (Debian 12 has 1.19) can still download this one as a module, and that one does the work.
go_toolchain=go1.25.5

require_go() {
  local what=$1 override=$2 machine directory
  if ! command -v go >/dev/null; then
    "$tools_dir/require" go >&2
  fi
  if version_at_least "$(go_version)" "$oldest_go"; then
    return 0
  fi
  case $(uname -m) in
    x86_64) machine=amd64 ;;
    aarch64) machine=arm64 ;;
    *) fail "Go $(go_version) is too old to build $what: install Go $oldest_go or newer, or set $override to a $what binary" ;;
  esac
  say "Go $(go_version) is too old to build $what: fetching $go_toolchain with it ..."
  directory=$(cd / && GOFLAGS='' go mod download -json "golang.org/toolchain@v0.0.1-$go_toolchain.linux-$machine" |
    sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
  [ -f "$directory/bin/go" ] ||
    fail "$go_toolchain could not be fetched: install Go $oldest_go or newer, or set $override to a $what binary"
  # A module archive keeps no execute permissions.
  chmod u+x "$directory"/bin/* "$directory"/pkg/tool/linux_"$machine"/*
  PATH=$directory/bin:$PATH
}

# read_line LOG: prints `PASSED FAILED`, as the last line `N passed, N failed` of a log says.
read_line() {
  awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$1"
}
