# Device code. nvcc comes from CUDA_HOME, /usr/local/cuda or the project's Python environment (PyPI wheels), in this order.
set(PERIGEE_CUDA_ARCHS "80;90a" CACHE STRING "Compute capabilities that device code is compiled for")
find_program(PERIGEE_NVCC nvcc NO_DEFAULT_PATH
  PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin
        ${PROJECT_SOURCE_DIR}/.venv/lib/python3.11/site-packages/nvidia/cu13/bin)
if(NOT PERIGEE_NVCC)
  message(FATAL_ERROR "no nvcc in CUDA_HOME, /usr/local/cuda or .venv: run ./setup.sh without --cpu")
endif()
message(STATUS "nvcc: ${PERIGEE_NVCC}")

# The runtime is linked statically: it finds the driver by itself when the program runs, or says that there is none.
get_filename_component(PERIGEE_CUDA_ROOT ${PERIGEE_NVCC}/../.. REALPATH)
find_path(PERIGEE_CUDA_INCLUDE cuda_runtime_api.h REQUIRED NO_DEFAULT_PATH
  PATHS ${PERIGEE_CUDA_ROOT}/include ${PERIGEE_CUDA_ROOT}/targets/x86_64-linux/include)
find_library(PERIGEE_CUDART libcudart_static.a REQUIRED NO_DEFAULT_PATH
  PATHS ${PERIGEE_CUDA_ROOT}/lib64 ${PERIGEE_CUDA_ROOT}/lib ${PERIGEE_CUDA_ROOT}/targets/x86_64-linux/lib)

# perigee_cuda_object(FILE [TARGET]): compiles one .cu file for all architectures as part of perigee_cuda_objects, and links it to
# a target.
add_custom_target(perigee_cuda_objects)
function(perigee_cuda_object file)
  get_filename_component(name ${file} NAME_WE)
  set(codes)
  foreach(arch ${PERIGEE_CUDA_ARCHS})
    list(APPEND codes -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  add_custom_command(OUTPUT ${object} DEPENDS ${file} DEPFILE ${object}.d
    COMMAND ${PERIGEE_NVCC} -std=c++20 -O3 -Werror all-warnings --expt-relaxed-constexpr --fmad=false
            -DFMT_HEADER_ONLY=1 -DFMT_USE_CONSTEXPR=1 -diag-suppress 20208 -DPERIGEE_WITH_CUDA=1  # fmt: long double
            ${codes} -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -c ${file} -o ${object}
    COMMENT "nvcc ${name}.cu")
  add_custom_target(cuda_${name} DEPENDS ${object})
  add_dependencies(perigee_cuda_objects cuda_${name})
  if(ARGN)
    target_sources(${ARGN} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endif()
endfunction()
