#!/usr/bin/env bash
# Sets up, builds and passes the tests.
#   ./test.sh          the whole suite
#   ./test.sh quick    the tier that takes less than a minute once built
set -euo pipefail
cd "$(dirname "$0")"
tier=${1:-full}
case "$tier" in quick|full) ;; *) echo "test.sh: unknown tier '$tier'; use quick or full" >&2; exit 2 ;; esac

if [ "$tier" = quick ]; then ./setup.sh --cpu; else ./setup.sh; fi
cmake --preset cpu -Wno-dev
cmake --build --preset cpu
if [ "$tier" = full ]; then
  # Device code is compiled everywhere and run where there is a GPU.
  cmake --preset cuda -Wno-dev
  cmake --build --preset cuda --target perigee_cuda_objects gpu_test
  build/cuda/gpu_test
  .venv/bin/python -m pytest -q tools/pretrain tools/tidy_test.py tools/known_bugs_test.py
fi
ctest --preset "$tier"
