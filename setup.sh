#!/usr/bin/env bash
# Installs what building, testing and the tools need on Debian 12. Asks nothing, may be run again at any time.
#   ./setup.sh         everything, the compilers of GPU code and the clients of the full tests included
#   ./setup.sh --cpu   what the CPU build, the chat and the quick tests need
set -euo pipefail
cd "$(dirname "$0")"

with_all=1
for argument in "$@"; do
  case "$argument" in
    --cpu) with_all=0 ;;
    -h|--help) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown argument '$argument'; use --cpu or nothing" >&2; exit 2 ;;
  esac
done

packages=(g++ cmake ninja-build git ca-certificates
  libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev
  libboost1.81-dev libssl-dev libspdlog-dev
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
  python3 python3-venv)
if [ "$with_all" -eq 1 ]; then
  packages+=(hipcc libamdhip64-dev rocm-device-libs)  # GPU sources are compiled for AMD too (tools/hip_check.sh)
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
  root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup.sh: needs root or sudo to install: ${missing[*]}" >&2; exit 1; }
    root=(sudo)
  fi
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

# Python for the test tools, in a virtual environment of the project.
if [ ! -x .venv/bin/python ]; then
  /usr/bin/python3 -m venv .venv
fi
if ! cmp -s tools/requirements-test.txt .venv/installed-test.txt; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tools/requirements-test.txt
  cp tools/requirements-test.txt .venv/installed-test.txt
fi

# Other people's clients for the full tests (about 250 MB). The file lists every dependency, so that nothing is resolved
# again; a few come as sources only and are built with this setuptools.
if [ "$with_all" -eq 1 ] && ! cmp -s tools/requirements-clients.txt .venv-clients/installed.txt; then
  /usr/bin/python3 -m venv --clear .venv-clients
  clients_pip=(.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check)
  "${clients_pip[@]}" setuptools==80.9.0 wheel==0.45.1
  "${clients_pip[@]}" --no-build-isolation --use-pep517 --no-deps --no-compile -r tools/requirements-clients.txt
  cp tools/requirements-clients.txt .venv-clients/installed.txt
fi

# xgrammar's C++ core (constrained decoding), built by cmake/xgrammar.cmake.
.venv/bin/python tools/fetch_sdist.py xgrammar-0.2.9.tar.gz \
  87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90 third_party/xgrammar

# The CUDA compiler: an installed toolkit if there is one, else the wheels of one pinned release.
if [ "$with_all" -eq 1 ] && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
  if ! cmp -s tools/requirements-cuda.txt .venv/installed-cuda.txt; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tools/requirements-cuda.txt
    cp tools/requirements-cuda.txt .venv/installed-cuda.txt
  fi
fi
