# Warnings for our own code; other libraries' headers are SYSTEM includes.
option(RING_KERAS_WERROR "Treat warnings as errors" OFF)

function(ring_keras_warnings target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual)
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It takes all files of a unit for headers, whose anonymous namespaces it warns of.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  if(RING_KERAS_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
