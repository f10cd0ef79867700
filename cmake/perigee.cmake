# The few build functions that every room uses.

# perigee_library(ROOM SOURCES a.cc ... LIBS x ...): the static library perigee_ROOM.
function(perigee_library room)
  cmake_parse_arguments(A "" "" "SOURCES;LIBS" ${ARGN})
  add_library(perigee_${room} STATIC ${A_SOURCES})
  target_include_directories(perigee_${room} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(perigee_${room} PUBLIC ${A_LIBS})
endfunction()

# perigee_test(NAME SOURCES a_test.cc ... LIBS x ... LABEL quick|full [TIMEOUT seconds]): one GoogleTest binary.
function(perigee_test name)
  cmake_parse_arguments(A "" "LABEL;TIMEOUT" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE PERIGEE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE -O1 -g0)  # test code itself need not be fast, but must compile fast
  add_test(NAME ${name} COMMAND ${name})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT})
endfunction()

# Flags of each vector instruction set. A *_simd.cc file is compiled once per set; num/simd.h gives
# every set the same arithmetic, so the set is a matter of speed and never of bits.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(PERIGEE_ISAS kGeneric kAvx2 kAvx512)
else()
  set(PERIGEE_ISAS kGeneric)
endif()
set(PERIGEE_FLAGS_kGeneric "")
set(PERIGEE_FLAGS_kAvx2 $<$<CONFIG:Release>:-O3> -mavx2 -mfma -mf16c)
# g++ 12 warns inside its own AVX-512 header (an "undefined" register): those two warnings are off there.
set(PERIGEE_FLAGS_kAvx512 $<$<CONFIG:Release>:-O3> -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
                          -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized)
set(PERIGEE_FLAGS_AMX ${PERIGEE_FLAGS_kAvx512} -mamx-tile -mamx-bf16)

# perigee_op(NAME SOURCES x.cc ... [SIMD x_simd.cc ...] [AMX x_amx.cc] [CUDA x_cuda.cu ...]): adds one operation to perigee_ops.
function(perigee_op name)
  cmake_parse_arguments(A "" "" "SOURCES;SIMD;AMX;CUDA" ${ARGN})
  target_sources(perigee_ops PRIVATE ${A_SOURCES})
  if(PERIGEE_CUDA)
    foreach(file ${A_CUDA})
      perigee_cuda_object(${CMAKE_CURRENT_SOURCE_DIR}/${file} perigee_ops)
    endforeach()
  endif()
  if(A_SIMD)
    foreach(isa ${PERIGEE_ISAS})
      add_library(op_${name}_${isa} OBJECT ${A_SIMD})
      target_include_directories(op_${name}_${isa} PRIVATE ${PROJECT_SOURCE_DIR}/src)
      target_compile_definitions(op_${name}_${isa} PRIVATE PERIGEE_ISA=${isa})
      target_compile_options(op_${name}_${isa} PRIVATE ${PERIGEE_FLAGS_${isa}})
      target_sources(perigee_ops PRIVATE $<TARGET_OBJECTS:op_${name}_${isa}>)
    endforeach()
  endif()
  if(A_AMX AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    add_library(op_${name}_amx OBJECT ${A_AMX})
    target_include_directories(op_${name}_amx PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_compile_options(op_${name}_amx PRIVATE ${PERIGEE_FLAGS_AMX})
    target_sources(perigee_ops PRIVATE $<TARGET_OBJECTS:op_${name}_amx>)
  endif()
endfunction()

# perigee_fuzz(NAME SOURCES x_fuzz.cc LIBS ... [CORPUS dir]): a libFuzzer entry point. With g++ it is linked to a seeded
# mutation driver and runs a few seconds as a test; with clang and -DPERIGEE_FUZZ=ON it is a real libFuzzer binary.
function(perigee_fuzz name)
  cmake_parse_arguments(A "" "CORPUS" "SOURCES;LIBS" ${ARGN})
  if(PERIGEE_FUZZ)
    add_executable(${name} ${A_SOURCES})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${name} ${A_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/smoke_main.cc)
    add_test(NAME ${name} COMMAND ${name} --seconds 2 ${A_CORPUS})
    set_tests_properties(${name} PROPERTIES LABELS full TIMEOUT 120)
  endif()
  target_compile_definitions(${name} PRIVATE PERIGEE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${A_LIBS})
endfunction()
