# NVIDIA's headers, for a test that compares our declarations with them. Looked
# for in TensorFlow's wheel, in NVIDIA's pip packages and in a CUDA toolkit.
#
# ring_keras_find_cuda_header(<variable> <header>) sets the variable to the
# folder that has the header, or to a false value.
set(cuda_header_folders "")
foreach(minor ${RING_KERAS_TENSORFLOWS})
  get_target_property(tensorflow_folders
    tensorflow_framework_${minor} INTERFACE_INCLUDE_DIRECTORIES)
  list(GET tensorflow_folders 0 folder)
  foreach(repository cuda_cudart cuda_nvcc cuda_nvrtc cuda_nccl)
    list(APPEND cuda_header_folders ${folder}/external/${repository}/include)
  endforeach()
endforeach()
if(Python_SITELIB)
  foreach(package cuda_runtime cuda_nvcc cuda_nvrtc nccl cu13)
    list(APPEND cuda_header_folders ${Python_SITELIB}/nvidia/${package}/include)
  endforeach()
endif()
list(APPEND cuda_header_folders /usr/local/cuda/include)

# Not cached: a package may have been installed since.
function(ring_keras_find_cuda_header variable header)
  unset(found)
  find_path(found ${header} PATHS ${cuda_header_folders} NO_CACHE)
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()
