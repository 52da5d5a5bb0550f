# The headers and libraries of the torch wheel in the environment.
#
# Defines the target torch::torch and RING_KERAS_TORCH_MINOR, as 2_13. Only
# tf_ops/torch links it.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import torch; print(torch.__version__.split('+')[0], torch.__path__[0], sep=';')"
  OUTPUT_VARIABLE found
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET
  RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR
    "RING_KERAS_BUILD_TORCH needs torch, which ${Python_EXECUTABLE} does not find. "
    "Run `pip install torch`, and build with --no-build-isolation.")
endif()
list(GET found 0 version)
list(GET found 1 folder)
message(STATUS "Found torch ${version}: ${folder}")
string(REGEX REPLACE "^([0-9]+)\\.([0-9]+).*" "\\1_\\2" RING_KERAS_TORCH_MINOR ${version})

add_library(ring_keras_torch_wheel INTERFACE)
add_library(torch::torch ALIAS ring_keras_torch_wheel)
target_include_directories(ring_keras_torch_wheel SYSTEM INTERFACE
  ${folder}/include ${folder}/include/torch/csrc/api/include)
# What `torch.distributed.is_available()` says of all Linux wheels.
target_compile_definitions(ring_keras_torch_wheel INTERFACE USE_DISTRIBUTED USE_C10D)
# No rpath: `import torch` has loaded them before.
target_link_libraries(ring_keras_torch_wheel INTERFACE
  ${folder}/lib/libtorch_python.so ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so)
