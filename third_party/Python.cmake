# The headers of the Pythons that the module is for.
#
# For each, adds <major>_<minor> to the list RING_KERAS_PYTHONS, and defines
# the target python::headers_<major>_<minor> and RING_KERAS_PYTHON_<minor>_SUFFIX, the end of
# a module's name. Only tf_ops/bindings links the targets.
set(RING_KERAS_PYTHON_HEADERS "" CACHE STRING
  "For each Python its version and the folder of its Python.h, as 3.12=/usr/include/python3.12; empty: the interpreter's")

set(components Interpreter)
if(RING_KERAS_BUILD_BINDINGS AND NOT RING_KERAS_PYTHON_HEADERS)
  list(APPEND components Development.Module)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS ${components})

function(ring_keras_add_python minor include_dir)
  add_library(python_headers_${minor} INTERFACE)
  add_library(python::headers_${minor} ALIAS python_headers_${minor})
  target_include_directories(python_headers_${minor} SYSTEM INTERFACE ${include_dir})
endfunction()

set(RING_KERAS_PYTHONS)
foreach(entry IN LISTS RING_KERAS_PYTHON_HEADERS)
  if(NOT entry MATCHES "^3\\.([0-9]+)=(.+)$")
    message(FATAL_ERROR
      "RING_KERAS_PYTHON_HEADERS takes 3.<minor>=<folder>, got '${entry}'.")
  endif()
  set(minor 3_${CMAKE_MATCH_1})
  set(RING_KERAS_PYTHON_${minor}_SUFFIX
    .cpython-3${CMAKE_MATCH_1}-${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.so)
  ring_keras_add_python(${minor} ${CMAKE_MATCH_2})
  list(APPEND RING_KERAS_PYTHONS ${minor})
endforeach()
if("Development.Module" IN_LIST components)
  set(minor ${Python_VERSION_MAJOR}_${Python_VERSION_MINOR})
  set(RING_KERAS_PYTHON_${minor}_SUFFIX .${Python_SOABI}.so)
  ring_keras_add_python(${minor} "${Python_INCLUDE_DIRS}")
  list(APPEND RING_KERAS_PYTHONS ${minor})
endif()
