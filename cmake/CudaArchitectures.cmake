# llmtrain_default_architectures(VARIABLE VERSION): the GPU architectures that are compiled for where the user names none,
# by a CUDA compiler of that version: Ampere, Hopper and, where the compiler knows it, Blackwell. Of the last one the
# intermediate code (PTX) stays in the programs, too, which drivers compile for later GPUs.
function(llmtrain_default_architectures variable version)
  if(version VERSION_GREATER_EQUAL 12.8)
    set(${variable} 80-real 90-real 100 PARENT_SCOPE)
  else()
    set(${variable} 80-real 90 PARENT_SCOPE)
  endif()
endfunction()
