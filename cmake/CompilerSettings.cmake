# One set of flags for every target: the same floating-point rules everywhere, so that a number never depends on the
# file that computes it.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1") # keeps assertions of the standard library cheap and traces readable

set(CMAKE_POSITION_INDEPENDENT_CODE ON)
include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX) # links programs with -pie

add_library(llmtrain_settings INTERFACE)
target_include_directories(llmtrain_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(llmtrain_settings INTERFACE LLMTRAIN_VERSION="${PROJECT_VERSION}")
# Warnings and floating-point rules: no -ffast-math, one contraction rule. A test checks the machine code for GPUs.
target_compile_options(llmtrain_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -ffp-contract=fast -fno-math-errno -fno-trapping-math>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr -lineinfo --no-compress>)
# GCC 12 to 14 wrongly report overlapping copies and overflows inside the standard library and fmt (bugs 105329, 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
  target_compile_options(llmtrain_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds>)
endif()
# GCC 13 and 14 wrongly treat every reference returned by a function of a temporary as a reference to it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
endif()
if(LLMTRAIN_WERROR)
  target_compile_options(llmtrain_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

# Instruction set. Files named x_avx512.cpp need more than the rest of the program; they are called only after a check
# of the processor.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(LLMTRAIN_X86 ON)
  set(LLMTRAIN_AVX512_FLAGS -march=x86-64-v4 -mavx512bf16)
  # Stack frames that detect_stack_use_after_return moves to the heap are not aligned to vectors of 64 bytes (GCC bug
  # 110027).
  if(LLMTRAIN_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND LLMTRAIN_AVX512_FLAGS --param=asan-use-after-return=0)
  endif()
else()
  set(LLMTRAIN_X86 OFF)
endif()
if(LLMTRAIN_NATIVE)
  target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
elseif(LLMTRAIN_X86)
  target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)
endif()

# Hardening: input is hostile. Loops run over raw pointers, so the checks of std::vector and std::span cost nothing there.
target_compile_definitions(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
if(LLMTRAIN_X86)
  target_compile_options(llmtrain_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fstack-clash-protection -fcf-protection=full>)
endif()
add_link_options(LINKER:-z,relro,-z,now LINKER:--as-needed)

if(LLMTRAIN_SANITIZE)
  add_compile_options(-fsanitize=${LLMTRAIN_SANITIZE} -fno-omit-frame-pointer)
  if(LLMTRAIN_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  if(LLMTRAIN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>) # for fences in Kokkos' headers
  endif()
  add_link_options(-fsanitize=${LLMTRAIN_SANITIZE})
elseif(NOT CMAKE_BUILD_TYPE STREQUAL "Debug") # needs the optimizer, and would hide errors from the sanitizers
  target_compile_options(llmtrain_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>)
endif()

if(LLMTRAIN_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# No absolute path of this tree enters an object file, and ccache ignores the build folder: builds of one tree and of
# its clones share identical objects.
target_compile_options(llmtrain_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
  # without it ccache skips precompiled headers
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fpch-preprocess>)
find_program(CCACHE ccache)
if(CCACHE)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
