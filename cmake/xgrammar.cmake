# xgrammar's C++ core as one static library, from the pinned source distribution that setup.sh unpacks. Its Python binding,
# its tests and its other third-party folders stay out.
set(PERIGEE_XGRAMMAR ${PROJECT_SOURCE_DIR}/third_party/xgrammar)
if(NOT EXISTS ${PERIGEE_XGRAMMAR}/cpp/grammar_matcher.cc)
  message(FATAL_ERROR "third_party/xgrammar is missing: run ./setup.sh")
endif()
file(GLOB_RECURSE PERIGEE_XGRAMMAR_SOURCES ${PERIGEE_XGRAMMAR}/cpp/*.cc)
list(FILTER PERIGEE_XGRAMMAR_SOURCES EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC ${PERIGEE_XGRAMMAR_SOURCES} ${PROJECT_SOURCE_DIR}/src/text/grammar_log.cc)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17)
target_include_directories(xgrammar SYSTEM PUBLIC ${PERIGEE_XGRAMMAR}/include ${PERIGEE_XGRAMMAR}/3rdparty/picojson
                                                  ${PERIGEE_XGRAMMAR}/3rdparty/dlpack/include)
target_compile_definitions(xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                                           XGRAMMAR_LOG_CUSTOMIZE=1)  # text/grammar_log.cc is told, not the terminal
target_compile_options(xgrammar PRIVATE -w -g0)  # its warnings are not ours to mend
target_link_libraries(xgrammar PUBLIC Threads::Threads)
