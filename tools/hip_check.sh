#!/usr/bin/env bash
# Compiles every GPU source as HIP for AMD's gfx90a, to objects that are thrown away; needs no GPU. 77: no hipcc, nothing checked.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v hipcc >/dev/null; then
  echo "hip_check.sh: no hipcc; run ./setup.sh without --cpu" >&2
  exit 77
fi
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
export objects
export HIP_PLATFORM=amd  # also where CUDA is installed

# Flags as of nvcc (cmake/cuda.cmake). nvcc includes CUDA's runtime by itself, and clang does not know __grid_constant__.
compile() {
  local object=$objects/${1//\//_}.o
  if hipcc --offload-arch=gfx90a -std=c++20 -O3 -Wall -Wextra -Werror -ffp-contract=off -include hip/hip_runtime.h \
    -D'__grid_constant__=' -DPERIGEE_WITH_CUDA=1 -Isrc -c "$1" -o "$object" >"$object.log" 2>&1; then
    echo "$1: compiles"
  else
    { echo "$1: does not compile"; cat "$object.log"; } >&2
    return 255  # xargs starts nothing more
  fi
}
export -f compile

echo "src/tensor/gpu_cuda.cc: left out, host code that asks for NVIDIA's driver and compute capability"
echo "bench/cuda/instructions.cu: left out, it compares PTX instructions"
find src -name '*.cu' -print0 | sort -z | xargs -0 -n 1 -P "$(nproc)" bash -c 'compile "$0"'
