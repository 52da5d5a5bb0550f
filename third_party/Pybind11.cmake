# The headers of the pybind11 wheel, a build requirement in pyproject.toml.
#
# Defines pybind11::headers. Only tf_ops/bindings links it.
execute_process(
  COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
  OUTPUT_VARIABLE pybind11_cmake_dir
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET
  RESULT_VARIABLE pybind11_result)
if(NOT pybind11_result EQUAL 0)
  message(FATAL_ERROR
    "pybind11 was not found by ${Python_EXECUTABLE}. Run `pip install "
    "pybind11`, or let pip do it by leaving out --no-build-isolation.")
endif()
# Not a cached one: each isolated build of pip's has its own.
set(PYBIND11_NOPYTHON ON)  # Python.cmake has them.
set(pybind11_DIR ${pybind11_cmake_dir})
find_package(pybind11 2.12 CONFIG REQUIRED)
