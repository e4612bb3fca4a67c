# llmtrain_protobuf(LAYER): the messages of src/LAYER/proto/*.proto as part of the layer, which includes them as <x.pb.h>.
# They are generated at every configuration, so that checks of the sources find them without a build.
function(llmtrain_protobuf layer)
  file(GLOB messages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/proto/*.proto)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${messages})
  set(folder ${PROJECT_BINARY_DIR}/proto/${layer})
  file(MAKE_DIRECTORY ${folder}/new)
  get_target_property(protoc protobuf::protoc LOCATION)
  execute_process(COMMAND ${protoc} --cpp_out=${folder}/new --proto_path=${PROJECT_SOURCE_DIR}/src/${layer}/proto ${messages}
    COMMAND_ERROR_IS_FATAL ANY)
  set(sources "")
  foreach(message IN LISTS messages)
    cmake_path(GET message STEM name)
    foreach(file ${name}.pb.h ${name}.pb.cc) # unchanged contents leave the file's time alone
      file(COPY_FILE ${folder}/new/${file} ${folder}/${file} ONLY_IF_DIFFERENT)
    endforeach()
    list(APPEND sources ${folder}/${name}.pb.cc)
  endforeach()
  add_library(llmtrain_${layer}_messages STATIC ${sources})
  target_compile_options(llmtrain_${layer}_messages PRIVATE -w) # generated code
  target_include_directories(llmtrain_${layer}_messages SYSTEM PUBLIC ${folder})
  target_link_libraries(llmtrain_${layer}_messages PUBLIC protobuf::libprotobuf-lite)
  target_link_libraries(llmtrain_${layer} PUBLIC llmtrain_${layer}_messages)
endfunction()
