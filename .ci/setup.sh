# .ci/setup.sh: what ./run and ./test share: system packages, .venv, and builds. To be sourced.
# Each step looks first and does nothing, silently, where nothing is missing.

say() { printf '%s\n' "$*"; }

stop() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# A package of Debian, and the command, the header or the file that shows that it is there.
readonly build_packages=(
  "g++ g++"
  "cmake cmake"
  "ninja-build ninja"
  "python3 python3"
  "libgtest-dev gtest/gtest.h"
  "nlohmann-json3-dev nlohmann/json.hpp"
  "libcli11-dev CLI/CLI.hpp"
  "libhwy-dev hwy/highway.h"
)
readonly fuzz_packages=(
  "clang-16 clang++-16"
  "libclang-rt-16-dev /usr/lib/llvm-16/lib/clang/16/include/fuzzer/FuzzedDataProvider.h"
)
readonly text_packages=("bible-kjv bible" "bible-kjv-text bible")

# Installs the packages of the "package probe" arguments whose probe is missing. A user who is not
# root is told how.
need_packages() {
  local entry package probe missing=()
  for entry in "$@"; do
    read -r package probe <<<"$entry"
    case $probe in
      /*) [[ -e $probe ]] || missing+=("$package") ;;
      */*) [[ -e /usr/include/$probe || -e /usr/local/include/$probe ]] || missing+=("$package") ;;
      *) command -v "$probe" >/dev/null || missing+=("$package") ;;
    esac
  done
  # Debian's python3 makes no .venv without this package; others have it built in.
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
  ((${#missing[@]})) || return 0

  local line="apt-get install -y --no-install-recommends ${missing[*]}"
  command -v apt-get >/dev/null ||
    stop "missing: ${missing[*]} (Debian's names); install your system's packages for them"
  ((EUID == 0)) || stop "these are missing: ${missing[*]}. As root: $line"
  say "set-up: installing with apt-get: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || stop "apt-get update failed"
  $line -qq >/dev/null || stop "this failed: $line"
}

pip_install() {
  .venv/bin/pip install -qq --disable-pip-version-check "$@" || stop "pip could not install $*"
}

# Installs each requirements file into .venv, unless it holds that very file's packages already.
need_venv() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || stop "python3 is older than 3.9"
  if [[ ! -x .venv/bin/pip ]]; then
    say "set-up: making .venv"
    python3 -m venv .venv
  fi
  local file
  for file in "$@"; do
    cmp -s "$file" ".venv/$file" && continue
    say "set-up: installing $file into .venv"
    pip_install -r "$file"
    cp "$file" ".venv/$file"
  done
}

# CMake 3.25 or newer: the system's, or else one in .venv.
need_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n '1s/.*version //p')
  [[ $(printf '%s\n' 3.25 "$version" | sort -V | head -1) == 3.25 ]] && return 0
  export PATH="$PWD/.venv/bin:$PATH"
  [[ -x .venv/bin/cmake ]] && return 0
  say "set-up: the system's cmake is ${version:-missing}; installing cmake 3.31 into .venv"
  pip_install cmake==3.31.6
}

# build PRESET [TARGET]: configures where that was not done yet, and builds.
build() {
  local folder=build log quiet=()
  [[ $1 == release ]] || folder=build-$1
  if [[ ! -e $folder/build.ninja ]]; then
    log=$(cmake --preset "$1" 2>&1) || { printf '%s\n' "$log" >&2 && return 1; }
  fi
  [[ -t 1 ]] || quiet=(--quiet)
  ninja -C "$folder" "${quiet[@]}" "${@:2}"
}
