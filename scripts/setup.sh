#!/bin/bash
# Installs the Debian packages that a target of the Makefile needs, and only those that are missing:
#
#   scripts/setup.sh GROUP...      groups: build test python bench lint docs fuzz aarch64
#
# Where nothing is missing it does nothing. Elsewhere than on Debian or its descendants it says what is
# needed and goes on.
set -euo pipefail

declare -A packages=(
  [build]="g++ cmake ninja-build ccache git python3
           libhwy-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libopenblas0"
  [test]="libgtest-dev librapidcheck-dev pkgconf binutils"
  [python]="python3-dev python3-pip python3-numpy python3-pytest python3-hypothesis"
  [bench]="libopenblas-dev"
  [lint]="clang-format clang-tidy codespell shellcheck"
  [docs]="doxygen"
  [fuzz]="clang libclang-rt-dev"
  [aarch64]="g++-aarch64-linux-gnu qemu-user libhwy-dev:arm64 libfmt-dev:arm64 libspdlog-dev:arm64
             libopenblas0:arm64 libgtest-dev:arm64 librapidcheck-dev:arm64"
)

wanted=()
for group in "$@"; do
  [[ -v "packages[$group]" ]] || { echo "setup: unknown group '$group'" >&2; exit 2; }
  # shellcheck disable=SC2206  # the lists are split on purpose
  wanted+=(${packages[$group]})
done
# pip fetches the header packages of the CUDA backends.
if "$(dirname "$0")/has_nvcc.sh" && ! python3 -m pip --version >/dev/null 2>&1; then
  wanted+=(python3-pip)
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian system; these Debian packages, or their like, are needed: ${wanted[*]}"
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || {
    echo "setup: missing packages, and neither root nor sudo to install them:" \
         "apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"
}

echo "setup: installing ${missing[*]}"
# Libraries of another architecture stand beside the machine's own, in folders of their own.
if [[ ${missing[*]} == *:arm64* ]]; then
  "${as_root[@]}" dpkg --add-architecture arm64
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt_get update && apt_get install -y --no-remove --no-install-recommends "${missing[@]}"; } >"$log" 2>&1
then
  cat "$log" >&2
  echo "setup: apt-get could not install the packages above" >&2
  exit 1
fi
