# The machine's own compiler, which must be one for x86-64.
if(NOT CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL "x86_64")
  message(FATAL_ERROR "Releases are built on x86-64.")
endif()
