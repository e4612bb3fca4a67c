# llmtrain_protobuf(LAYER): the messages of src/LAYER/proto/*.proto, generated at build time, as part of the layer, which
# includes them as <x.pb.h>.
function(llmtrain_protobuf layer)
  file(GLOB messages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/proto/*.proto)
  set(folder ${PROJECT_BINARY_DIR}/proto/${layer})
  file(MAKE_DIRECTORY ${folder})
  set(sources "")
  foreach(message IN LISTS messages)
    cmake_path(GET message STEM name)
    add_custom_command(OUTPUT ${folder}/${name}.pb.cc ${folder}/${name}.pb.h
      COMMAND protobuf::protoc --cpp_out=${folder} --proto_path=${PROJECT_SOURCE_DIR}/src/${layer}/proto ${message}
      DEPENDS ${message} protobuf::protoc VERBATIM)
    list(APPEND sources ${folder}/${name}.pb.cc)
  endforeach()
  add_library(llmtrain_${layer}_messages STATIC ${sources})
  target_compile_options(llmtrain_${layer}_messages PRIVATE -w) # generated code
  target_include_directories(llmtrain_${layer}_messages SYSTEM PUBLIC ${folder})
  target_link_libraries(llmtrain_${layer}_messages PUBLIC protobuf::libprotobuf-lite)
  add_dependencies(llmtrain_${layer} llmtrain_${layer}_messages) # the headers come first
  target_link_libraries(llmtrain_${layer} PUBLIC llmtrain_${layer}_messages)
endfunction()
