# The headers of XLA's interface for foreign functions: those of the jaxlib wheel in
# the environment, else TensorFlow's. It is a C interface with versions, and newer
# runtimes take older callers.
#
# Defines the target jax::ffi. Only tf_ops/kernels/xla links it.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util as u; print(*u.find_spec('jaxlib').submodule_search_locations)"
  OUTPUT_VARIABLE folder
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET)
add_library(ring_keras_jax_ffi INTERFACE)
add_library(jax::ffi ALIAS ring_keras_jax_ffi)
set(found OFF)
if(folder AND EXISTS ${folder}/include/xla/ffi/api/ffi.h)
  message(STATUS "Found jaxlib: ${folder}")
  target_include_directories(ring_keras_jax_ffi SYSTEM INTERFACE ${folder}/include)
  set(found ON)
endif()
foreach(minor IN LISTS RING_KERAS_TENSORFLOWS)
  if(NOT found AND RING_KERAS_TENSORFLOW_${minor}_HAS_XLA_FFI)
    target_include_directories(ring_keras_jax_ffi SYSTEM INTERFACE
      $<TARGET_PROPERTY:tensorflow_framework_${minor},INTERFACE_INCLUDE_DIRECTORIES>)
    set(found ON)
  endif()
endforeach()
if(NOT found)
  message(FATAL_ERROR
    "RING_KERAS_BUILD_JAX needs the headers of jaxlib or of TensorFlow 2.20 or newer, "
    "and ${Python_EXECUTABLE} finds neither. Run `pip install jax`, and build with "
    "--no-build-isolation.")
endif()
