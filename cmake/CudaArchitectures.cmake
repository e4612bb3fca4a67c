# llmtrain_default_architectures(VARIABLE VERSION): the default GPU architectures for a CUDA compiler of that version:
# Ampere, Hopper and, if the compiler supports it, Blackwell. The programs also contain the intermediate code (PTX) of
# the last one, which drivers compile for later GPUs.
function(llmtrain_default_architectures variable version)
  if(version VERSION_GREATER_EQUAL 12.8)
    set(${variable} 80-real 90-real 100 PARENT_SCOPE)
  else()
    set(${variable} 80-real 90 PARENT_SCOPE)
  endif()
endfunction()
