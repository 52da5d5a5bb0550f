# The headers and the framework library of the installed TensorFlow wheel.
#
# Defines the target tensorflow::framework, RING_KERAS_TENSORFLOW_VERSION and
# RING_KERAS_CXX11_ABI. Only tf_ops/kernels links the target.
execute_process(
  COMMAND ${Python_EXECUTABLE}
    ${PROJECT_SOURCE_DIR}/build_support/probe_tensorflow.py
  OUTPUT_VARIABLE probe
  ERROR_VARIABLE probe_error
  RESULT_VARIABLE probe_result)
if(NOT probe_result EQUAL 0)
  message(FATAL_ERROR "${probe_error}")
endif()
string(JSON RING_KERAS_TENSORFLOW_VERSION GET ${probe} version)
string(JSON RING_KERAS_CXX11_ABI GET ${probe} cxx11_abi)
string(JSON tensorflow_include_dir GET ${probe} include_dir)
string(JSON tensorflow_library GET ${probe} library)
message(STATUS
  "Found TensorFlow ${RING_KERAS_TENSORFLOW_VERSION}: ${tensorflow_library}")

string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" _ ${RING_KERAS_TENSORFLOW_VERSION})
set(RING_KERAS_TENSORFLOW_MAJOR ${CMAKE_MATCH_1})
set(RING_KERAS_TENSORFLOW_MINOR ${CMAKE_MATCH_2})

add_library(tensorflow::framework INTERFACE IMPORTED)
# highwayhash and farmhash are what the headers of an XLA kernel reach for.
target_include_directories(tensorflow::framework SYSTEM INTERFACE
  ${tensorflow_include_dir}
  ${tensorflow_include_dir}/external/highwayhash
  ${tensorflow_include_dir}/external/farmhash_archive/src)
# The wheel's own flag, of tf.sysconfig.get_compile_flags().
target_compile_definitions(tensorflow::framework
  INTERFACE EIGEN_MAX_ALIGN_BYTES=64)
# No rpath: `import tensorflow` has loaded it before the op library needs it.
target_link_libraries(tensorflow::framework INTERFACE ${tensorflow_library})
