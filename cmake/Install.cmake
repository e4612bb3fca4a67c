# Programs are installed by llmtrain_program; here is what travels with them.
set(data_directory ${CMAKE_INSTALL_DATADIR}/llmtrain)
install(DIRECTORY inputs jobs DESTINATION ${data_directory} USE_SOURCE_PERMISSIONS)
install(DIRECTORY modules DESTINATION ${data_directory})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
