# Device code. nvcc comes from CUDA_HOME, /usr/local/cuda or the project's Python environment (PyPI wheels), in this order.
set(PERIGEE_CUDA_ARCHS "80;90a" CACHE STRING "Compute capabilities that device code is compiled for")
find_program(PERIGEE_NVCC nvcc NO_DEFAULT_PATH
  PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin
        ${PROJECT_SOURCE_DIR}/.venv/lib/python3.11/site-packages/nvidia/cu13/bin)
if(NOT PERIGEE_NVCC)
  message(FATAL_ERROR "no nvcc in CUDA_HOME, /usr/local/cuda or .venv: run ./setup.sh without --cpu")
endif()
message(STATUS "nvcc: ${PERIGEE_NVCC}")

# perigee_cuda_object(FILE): compiles one .cu file for all architectures as part of perigee_cuda_objects.
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
            ${codes} -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -c ${file} -o ${object}
    COMMENT "nvcc ${name}.cu")
  add_custom_target(cuda_${name} DEPENDS ${object})
  add_dependencies(perigee_cuda_objects cuda_${name})
endfunction()
