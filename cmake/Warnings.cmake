# Warnings for our own code; other libraries' headers are SYSTEM includes.
option(RING_KERAS_WERROR "Treat warnings as errors" OFF)

function(ring_keras_warnings target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual)
  if(RING_KERAS_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
