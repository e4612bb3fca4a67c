# Defines liburing::liburing, the interface of Linux' io_uring; the static library if there is one, so that compute
# nodes need none.
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(liburing_PC QUIET liburing)
endif()
find_path(liburing_INCLUDE_DIR liburing.h HINTS ${liburing_PC_INCLUDE_DIRS})
find_library(liburing_LIBRARY NAMES liburing.a uring HINTS ${liburing_PC_LIBRARY_DIRS})
set(liburing_VERSION ${liburing_PC_VERSION})
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(liburing REQUIRED_VARS liburing_LIBRARY liburing_INCLUDE_DIR VERSION_VAR liburing_VERSION)
if(liburing_FOUND AND NOT TARGET liburing::liburing)
  add_library(liburing::liburing UNKNOWN IMPORTED)
  set_target_properties(liburing::liburing PROPERTIES
    IMPORTED_LOCATION "${liburing_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${liburing_INCLUDE_DIR}")
endif()
