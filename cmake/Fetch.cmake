# llmtrain_find_or_fetch(NAME [VERSION] [PACKAGE name]): calls find_package and, if that fails and the machine has a
# network, builds the pinned release below from source. The commit, not the tag, identifies it.
include(FetchContent)
set(LLMTRAIN_RELEASE_GTest "https://github.com/google/googletest;52eb8108c5bdec04579160ae17225d66034bd723;1.17.0")
set(LLMTRAIN_RELEASE_inih "https://github.com/benhoyt/inih;26254ee9de7681f8825433415443e7116ff24b98;62")
set(LLMTRAIN_RELEASE_Kokkos "https://github.com/kokkos/kokkos;1b1383c6001f3bfe9fe309ca923c2d786600cc79;4.6.01")

# The probe runs once per build folder: a machine without a network must not wait for it at every configuration.
function(llmtrain_require_network name repository)
  find_package(Git QUIET)
  if(GIT_FOUND AND NOT LLMTRAIN_REACHED_${name})
    execute_process(COMMAND ${CMAKE_COMMAND} -E env GIT_TERMINAL_PROMPT=0 ${GIT_EXECUTABLE} ls-remote ${repository} HEAD
      TIMEOUT 20 RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(NOT failed)
      set(LLMTRAIN_REACHED_${name} ON CACHE INTERNAL "")
    endif()
  endif()
  if(NOT LLMTRAIN_REACHED_${name})
    message(FATAL_ERROR "${name} is not installed and ${repository} cannot be reached.\n"
      "Install it: cmake/install_dependencies.sh on Debian, spack.yaml or your site's modules elsewhere; "
      "give another location with -D${name}_ROOT=<prefix>.")
  endif()
endfunction()

macro(llmtrain_find_or_fetch name)
  if(NOT LLMTRAIN_FETCHED_${name})
    find_package(${name} ${ARGN} QUIET)
  endif()
  if(${name}_FOUND)
    message(STATUS "Found ${name} ${${name}_VERSION}")
  elseif(NOT LLMTRAIN_FETCH)
    find_package(${name} ${ARGN} REQUIRED)
  else()
    llmtrain_fetch(${name})
  endif()
endmacro()

function(llmtrain_fetch name)
  list(GET LLMTRAIN_RELEASE_${name} 0 repository)
  list(GET LLMTRAIN_RELEASE_${name} 1 commit)
  list(GET LLMTRAIN_RELEASE_${name} 2 version)
  string(TOUPPER ${name} upper)
  if(NOT FETCHCONTENT_SOURCE_DIR_${upper})
    llmtrain_require_network(${name} ${repository})
  endif()
  message(STATUS "${name} is not installed: building release ${version} from source")
  # A nonexistent folder: FetchContent provides the sources, and add_subdirectory below builds them.
  FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${commit} GIT_PROGRESS ON SOURCE_SUBDIR none)
  # Warnings in their code are disabled, and nothing of theirs is installed.
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
  set(BUILD_SHARED_LIBS OFF)
  set(INSTALL_GTEST OFF)
  set(Kokkos_ENABLE_OPENMP ON CACHE BOOL "")
  FetchContent_MakeAvailable(${name})
  string(TOLOWER ${name} lower)
  if(EXISTS ${${lower}_SOURCE_DIR}/CMakeLists.txt)
    add_subdirectory(${${lower}_SOURCE_DIR} ${${lower}_BINARY_DIR} EXCLUDE_FROM_ALL SYSTEM)
  else() # inih: one file
    add_library(inih STATIC ${inih_SOURCE_DIR}/ini.c)
    target_include_directories(inih SYSTEM PUBLIC ${inih_SOURCE_DIR})
    add_library(inih::inih ALIAS inih)
  endif()
  set(LLMTRAIN_FETCHED_${name} ON CACHE INTERNAL "Built from source, not installed")
endfunction()
