# The headers and the framework library of TensorFlow wheels.
#
# For each, defines the target tensorflow::framework_<major>_<minor>, and adds
# <major>_<minor> to the list RING_KERAS_TENSORFLOWS; also RING_KERAS_CXX11_ABI
# and, for people, RING_KERAS_TENSORFLOW_VERSIONS, and for each whether it has
# what kernels for XLA need: RING_KERAS_TENSORFLOW_<minor>_HAS_XLA_FFI. Only
# tf_ops/kernels links the targets. Of two wheels of one minor version the first counts.
set(RING_KERAS_TENSORFLOW_DIRS "" CACHE STRING
  "Folders with an installed TensorFlow each; empty: the environment's")

# `minor` is of the form 2_21.
function(ring_keras_add_tensorflow minor include_dir library)
  set(target tensorflow_framework_${minor})
  add_library(${target} INTERFACE)
  add_library(tensorflow::framework_${minor} ALIAS ${target})
  # highwayhash and farmhash are what the headers of an XLA kernel reach for.
  target_include_directories(${target} SYSTEM INTERFACE
    ${include_dir}
    ${include_dir}/external/highwayhash
    ${include_dir}/external/farmhash_archive/src)
  if(minor STREQUAL "2_19")
    target_include_directories(${target} SYSTEM INTERFACE
      ${PROJECT_SOURCE_DIR}/third_party/tensorflow_2_19)
  endif()
  # The wheel's own flag, of tf.sysconfig.get_compile_flags().
  target_compile_definitions(${target} INTERFACE EIGEN_MAX_ALIGN_BYTES=64)
  # No rpath: `import tensorflow` has loaded it before the op library needs it.
  target_link_libraries(${target} INTERFACE ${library})
endfunction()

execute_process(
  COMMAND ${Python_EXECUTABLE}
    ${PROJECT_SOURCE_DIR}/build_support/probe_tensorflow.py
    ${RING_KERAS_TENSORFLOW_DIRS}
  OUTPUT_VARIABLE probes
  ERROR_VARIABLE probe_error
  RESULT_VARIABLE probe_result)
if(NOT probe_result EQUAL 0)
  message(FATAL_ERROR "${probe_error}")
endif()

set(RING_KERAS_TENSORFLOWS)
set(versions)
set(abis)
string(JSON last LENGTH "${probes}")
math(EXPR last "${last} - 1")
foreach(index RANGE ${last})
  string(JSON version GET "${probes}" ${index} version)
  string(JSON include_dir GET "${probes}" ${index} include_dir)
  string(JSON library GET "${probes}" ${index} library)
  string(JSON abi GET "${probes}" ${index} cxx11_abi)
  string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" _ ${version})
  set(minor ${CMAKE_MATCH_1}_${CMAKE_MATCH_2})
  if(minor IN_LIST RING_KERAS_TENSORFLOWS)
    continue()
  endif()
  message(STATUS "Found TensorFlow ${version}: ${library}")
  ring_keras_add_tensorflow(${minor} ${include_dir} ${library})
  set(RING_KERAS_TENSORFLOW_${minor}_HAS_XLA_FFI OFF)
  if(EXISTS ${include_dir}/xla/ffi/api/ffi.h)
    set(RING_KERAS_TENSORFLOW_${minor}_HAS_XLA_FFI ON)
  endif()
  list(APPEND RING_KERAS_TENSORFLOWS ${minor})
  list(APPEND versions ${version})
  list(APPEND abis ${abi})
endforeach()
list(JOIN versions ", " RING_KERAS_TENSORFLOW_VERSIONS)

list(REMOVE_DUPLICATES abis)
list(LENGTH abis abi_count)
if(NOT abi_count EQUAL 1)
  message(FATAL_ERROR
    "TensorFlow ${RING_KERAS_TENSORFLOW_VERSIONS}: one core cannot serve wheels "
    "of both C++ ABIs. Build for each ABI by itself.")
endif()
set(RING_KERAS_CXX11_ABI ${abis})
