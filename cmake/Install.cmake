# Installs decks, jobs, module files and documents (llmtrain_program installs the programs). No path of the build is in
# them, so that the installed folder can be moved as a whole; the libraries stay where they are.
set(data_directory ${CMAKE_INSTALL_DATADIR}/llmtrain)
foreach(folder inputs jobs)
  install(DIRECTORY ${folder} DESTINATION ${data_directory} USE_SOURCE_PERMISSIONS)
endforeach()
# As in the tree, so that links between the pages hold.
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} USE_SOURCE_PERMISSIONS)
install(DIRECTORY benchmarks/results DESTINATION ${CMAKE_INSTALL_DOCDIR}/benchmarks)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)

# Module files derive the prefix from their own location: modules/tcl/llmtrain/VERSION-DEVICE and
# modules/lua/llmtrain/VERSION-DEVICE.lua.
set(module_directory ${data_directory}/modules)
file(RELATIVE_PATH module_to_prefix /${module_directory}/tcl/llmtrain /)
string(REGEX MATCHALL "[^/]+" parts ${module_directory}/lua/llmtrain/file)
list(LENGTH parts module_depth)
foreach(kind tcl lua)
  set(name ${PROJECT_VERSION}-${LLMTRAIN_DEVICE}) # a cluster may have builds for both devices
  if(kind STREQUAL "lua")
    string(APPEND name .lua)
  endif()
  configure_file(modules/llmtrain.${kind}.in ${PROJECT_BINARY_DIR}/modules/${kind}/${name} @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/modules/${kind}/${name} DESTINATION ${module_directory}/${kind}/llmtrain)
endforeach()

# `cpack` in the build folder makes a relocatable tarball.
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME llmtrain)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_FILE_NAME llmtrain-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}-${LLMTRAIN_DEVICE})
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
