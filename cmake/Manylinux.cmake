# Libraries for machines as old as manylinux_2_28 has them, whatever the compiler's
# own is: see build_support/manylinux/.
option(RING_KERAS_MANYLINUX "Build libraries that run with glibc 2.28" OFF)

if(RING_KERAS_MANYLINUX)
  set(stubs ${PROJECT_BINARY_DIR}/manylinux)
  execute_process(
    COMMAND ${Python_EXECUTABLE}
      ${PROJECT_SOURCE_DIR}/build_support/manylinux/link_stubs.py
      ${stubs} ${CMAKE_CXX_COMPILER} ${CMAKE_READELF}
    COMMAND_ERROR_IS_FATAL ANY)
  add_library(ring_keras_old_symbols STATIC
    ${PROJECT_SOURCE_DIR}/build_support/manylinux/old_symbols.cc)
  set_target_properties(ring_keras_old_symbols PROPERTIES
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(ring_keras_old_symbols PRIVATE -ffunction-sections)
  set(ring_keras_moved_libraries
    ${stubs}/libdl.so ${stubs}/libpthread.so ${stubs}/librt.so)
endif()

# Size matters where there is a copy for each TensorFlow or Python, and speed does
# not: the core does the work.
function(ring_keras_adapter target)
  if(RING_KERAS_MANYLINUX)
    target_compile_options(${target} PRIVATE -Os)
  endif()
endfunction()

# What a library that is installed links last.
function(ring_keras_old_systems target)
  if(RING_KERAS_MANYLINUX)
    target_link_directories(${target} BEFORE PRIVATE ${PROJECT_BINARY_DIR}/manylinux)
    target_link_libraries(${target} PRIVATE
      ring_keras_old_symbols
      -Wl,--push-state,--no-as-needed ${ring_keras_moved_libraries} -Wl,--pop-state)
    target_link_options(${target} PRIVATE
      -Wl,--exclude-libs,libring_keras_old_symbols.a -Wl,--gc-sections)
  endif()
endfunction()
