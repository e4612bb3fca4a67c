# Every dependency comes from find_package; cmake/install_dependencies.sh installs the Debian packages. If GoogleTest,
# inih and Kokkos, which are small, are missing, they are built from source (LLMTRAIN_FETCH).
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
include(${CMAKE_CURRENT_LIST_DIR}/Fetch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/CudaArchitectures.cmake)

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI 3.1 REQUIRED COMPONENTS C CXX)
find_package(fmt 9 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
llmtrain_find_or_fetch(inih)
find_package(xxHash REQUIRED)
find_package(ZLIB 1.2 REQUIRED)
find_package(zstd REQUIRED)
find_package(PCRE2 REQUIRED)
find_package(yaml REQUIRED)
find_package(tomlplusplus 3.3 REQUIRED)

# Defined here, since FindHDF5 of CMake 4.3 fails when it defines the target for Debian's libhdf5_serial.
add_library(hdf5::hdf5 INTERFACE IMPORTED)
find_package(HDF5 1.10 REQUIRED COMPONENTS C)
target_include_directories(hdf5::hdf5 INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(hdf5::hdf5 INTERFACE ${HDF5_C_LIBRARIES})

# oneDNN's micro-kernels are an experimental option of its build, without which products use the slowest path. The check
# runs at every configuration, as the library may have been replaced.
function(llmtrain_look_for_micro_kernels)
  include(CheckCXXSourceCompiles)
  add_library(llmtrain_onednn INTERFACE)
  target_link_libraries(llmtrain_onednn INTERFACE DNNL::dnnl)
  set(CMAKE_REQUIRED_LIBRARIES DNNL::dnnl OpenMP::OpenMP_CXX)
  set(CMAKE_REQUIRED_QUIET ON)
  unset(LLMTRAIN_ONEDNN_UKERNELS CACHE)
  check_cxx_source_compiles("#include <oneapi/dnnl/dnnl_ukernel.h>
    int main() { return dnnl_brgemm_release_hw_context(); }" LLMTRAIN_ONEDNN_UKERNELS)
  if(LLMTRAIN_ONEDNN_UKERNELS)
    message(STATUS "Found oneDNN ${dnnl_VERSION} with micro-kernels")
    target_compile_definitions(llmtrain_onednn INTERFACE LLMTRAIN_ONEDNN_UKERNELS)
  elseif(LLMTRAIN_X86)
    message(WARNING "oneDNN ${dnnl_VERSION} (${dnnl_DIR}) has no micro-kernels: the program will be correct, but several times slower, and will choose fp32. To get them build oneDNN with -DDNNL_EXPERIMENTAL_UKERNEL=ON: Debian's packages "
      "(cmake/install_dependencies.sh) and this repository's spack.yaml do.")
  endif()
endfunction()

# Libraries of device and kernels; no higher layer uses them directly.
if(LLMTRAIN_DEVICE STREQUAL "host")
  llmtrain_find_or_fetch(Kokkos 4.6...<6)
  find_package(dnnl 3.6 REQUIRED)
  llmtrain_look_for_micro_kernels()
  set(LLMTRAIN_DEVICE_LIBRARIES Kokkos::kokkos llmtrain_onednn OpenMP::OpenMP_CXX)
elseif(LLMTRAIN_DEVICE STREQUAL "emulated") # the tests emulate the libraries of a GPU
  file(GLOB emulator_sources CONFIGURE_DEPENDS tests/emulator/*.cpp)
  add_library(llmtrain_emulator STATIC ${emulator_sources})
  target_link_libraries(llmtrain_emulator PUBLIC llmtrain_settings PRIVATE fmt::fmt MPI::MPI_CXX OpenMP::OpenMP_CXX)
  target_include_directories(llmtrain_emulator PUBLIC ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/tests/emulator)
  set(LLMTRAIN_DEVICE_LIBRARIES llmtrain_emulator OpenMP::OpenMP_CXX)
  # NVTX's headers need no GPU. They are linked to a folder of their own: the others of the CUDA Toolkit are emulated.
  find_path(LLMTRAIN_NVTX_INCLUDE_DIR nvtx3/nvToolsExt.h PATHS /usr/local/cuda/include)
  if(LLMTRAIN_NVTX_INCLUDE_DIR)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/nvtx)
    file(CREATE_LINK ${LLMTRAIN_NVTX_INCLUDE_DIR}/nvtx3 ${PROJECT_BINARY_DIR}/nvtx/nvtx3 SYMBOLIC)
    target_include_directories(llmtrain_emulator SYSTEM PUBLIC ${PROJECT_BINARY_DIR}/nvtx)
    list(APPEND LLMTRAIN_DEVICE_LIBRARIES ${CMAKE_DL_LIBS})
  endif()
else()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(choose_architectures ON)
  endif()
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(nvcc_program nvcc PATHS /usr/local/cuda/bin)
    if(nvcc_program)
      set(CMAKE_CUDA_COMPILER ${nvcc_program})
    endif()
  endif()
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # missing in CMake 3.25.1 of Debian 12
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  if(choose_architectures)
    llmtrain_default_architectures(architectures ${CMAKE_CUDA_COMPILER_VERSION})
    # In the cache, since enable_language has stored its own choice there, which the next configuration would take for
    # the user's.
    set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPU architectures" FORCE)
  endif()
  find_package(CUDAToolkit 12 REQUIRED)
  find_package(NCCL REQUIRED)
  # NVTX and cuDNN load their libraries
  set(LLMTRAIN_DEVICE_LIBRARIES CUDA::cudart CUDA::cublasLt OpenMP::OpenMP_CXX ${CMAKE_DL_LIBS})
  find_package(CUDNN 9.8) # without its headers the built-in attention is always used
  if(CUDNN_FOUND)
    list(APPEND LLMTRAIN_DEVICE_LIBRARIES CUDNN::headers)
  endif()
  set(LLMTRAIN_TRANSFER_LIBRARIES NCCL::NCCL)
endif()
