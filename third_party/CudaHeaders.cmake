# NVIDIA's headers, for a test that compares our declarations with them. Looked
# for in TensorFlow's wheel, in NVIDIA's pip packages and in a CUDA toolkit.
#
# ring_keras_find_cuda_header(<variable> <header>) sets the variable to the
# folder that has the header, or to a false value.
set(cuda_header_folders "")
if(TARGET tensorflow::framework)
  get_target_property(tensorflow_folders
    tensorflow::framework INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder ${tensorflow_folders})
    foreach(repository cuda_cudart cuda_nvcc cuda_nvrtc cuda_nccl)
      list(APPEND cuda_header_folders ${folder}/external/${repository}/include)
    endforeach()
  endforeach()
endif()
foreach(package cuda_runtime cuda_nvcc cuda_nvrtc nccl cu13)
  if(Python_SITELIB)
    list(APPEND cuda_header_folders ${Python_SITELIB}/nvidia/${package}/include)
  endif()
endforeach()
list(APPEND cuda_header_folders /usr/local/cuda/include)

# Not cached: a package may have been installed since.
function(ring_keras_find_cuda_header variable header)
  unset(found)
  find_path(found ${header} PATHS ${cuda_header_folders} NO_CACHE)
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()
