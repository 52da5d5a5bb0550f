# A room is a folder of tf_ops/ with one concern; each is one target.

# ring_keras_room(<name> SOURCES a.cc ... [DEPENDS <room> ...])
#
# Defines ring_keras_<name>, alias ring_keras::<name>. Include paths start at
# the repository's root, and nothing else is on them: a room that reaches for
# TensorFlow or Python fails to compile.
function(ring_keras_room name)
  cmake_parse_arguments(PARSE_ARGV 1 room "" "" "SOURCES;DEPENDS")
  if(NOT room_SOURCES OR room_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR
      "ring_keras_room(${name}): expected SOURCES and optionally DEPENDS, got "
      "'${ARGN}'.")
  endif()

  set(target ring_keras_${name})
  add_library(${target} STATIC ${room_SOURCES})
  add_library(ring_keras::${name} ALIAS ${target})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC Threads::Threads)
  list(TRANSFORM room_DEPENDS PREPEND ring_keras::)
  target_link_libraries(${target} PUBLIC ${room_DEPENDS})
  ring_keras_compile_options(${target})
endfunction()

# What every target of ours is compiled with.
function(ring_keras_compile_options target)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  # std::string crosses from the core to the op library.
  target_compile_definitions(${target}
    PRIVATE _GLIBCXX_USE_CXX11_ABI=${RING_KERAS_CXX11_ABI})
  ring_keras_warnings(${target})
  ring_keras_sanitizers(${target})
endfunction()

# ring_keras_cpp_tests(<program> SOURCES x_test.cc ... DEPENDS <room> ...)
#
# One executable, because nearly all of a test's compile time is its headers. ctest
# runs it once for each of its files of tests, as <folder>_x_test.
function(ring_keras_cpp_tests program)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "" "SOURCES;DEPENDS")
  if(NOT test_SOURCES OR test_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR
      "ring_keras_cpp_tests(${program}): expected SOURCES and DEPENDS, got "
      "'${ARGN}'.")
  endif()

  add_executable(${program} ${test_SOURCES})
  list(TRANSFORM test_DEPENDS PREPEND ring_keras::)
  target_link_libraries(${program}
    PRIVATE ring_keras_test_support ${test_DEPENDS})
  ring_keras_compile_options(${program})
  # What is tested is optimized as ever.
  target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O1>)
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  list(FILTER test_SOURCES INCLUDE REGEX "_test\\.cc$")
  foreach(source IN LISTS test_SOURCES)
    cmake_path(GET source STEM file)
    add_test(NAME ${folder}_${file} COMMAND ${program} ${file}.cc)
    set_tests_properties(${folder}_${file} PROPERTIES TIMEOUT 120)
  endforeach()
endfunction()
