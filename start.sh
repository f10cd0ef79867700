#!/usr/bin/env bash
# Sets up, builds and starts a chat with the embedded demo model.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh --cpu
cmake --preset cpu -Wno-dev > build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
rm -f build-configure.log
cmake --build --preset cpu --target perigee >&2
exec build/cpu/perigee chat models/demo "$@"
