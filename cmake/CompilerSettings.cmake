# One set of flags for every target: the same floating-point rules everywhere, so that a number never
# depends on which file computed it.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1") # assertions of the standard library stay cheap, traces stay readable

add_library(llmtrain_settings INTERFACE)
target_include_directories(llmtrain_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_compile_options(llmtrain_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -ffp-contract=fast -fno-math-errno -fno-trapping-math>)
if(LLMTRAIN_WERROR)
  target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LLMTRAIN_NATIVE)
  target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)
endif()
if(LLMTRAIN_SANITIZE)
  add_compile_options(-fsanitize=${LLMTRAIN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LLMTRAIN_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
