# Run-time checks for the C++ tests.
#
# "address" also checks undefined behaviour, but for the types of objects: that check
# opens pipes, and there are tests without descriptors. "thread" excludes both: their
# run times cannot share a process.
set(RING_KERAS_SANITIZE "" CACHE STRING "Empty, address or thread")
set_property(CACHE RING_KERAS_SANITIZE PROPERTY STRINGS "" address thread)

if(NOT RING_KERAS_SANITIZE)
  set(ring_keras_sanitizer_flags "")
elseif(RING_KERAS_SANITIZE STREQUAL "address")
  set(ring_keras_sanitizer_flags
    -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
elseif(RING_KERAS_SANITIZE STREQUAL "thread")
  set(ring_keras_sanitizer_flags -fsanitize=thread)
else()
  message(FATAL_ERROR
    "RING_KERAS_SANITIZE takes '', 'address' or 'thread', got "
    "'${RING_KERAS_SANITIZE}'.")
endif()

function(ring_keras_sanitizers target)
  if(ring_keras_sanitizer_flags)
    target_compile_options(${target}
      PRIVATE ${ring_keras_sanitizer_flags} -fno-omit-frame-pointer -g)
    target_link_options(${target} PUBLIC ${ring_keras_sanitizer_flags})
  endif()
endfunction()
