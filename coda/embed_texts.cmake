# coda_embed(TEMPLATE FILE…): TEMPLATE, x.cpp.in, with the texts of the files → x.cpp in the build
# folder, one of the caller's ${sources}.
function(coda_embed template)
  cmake_path(GET template STEM LAST_ONLY name)
  cmake_path(ABSOLUTE_PATH template BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
  set(script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/embed.cmake")
  set(embedded "${PROJECT_BINARY_DIR}/${name}")
  add_custom_command(
    OUTPUT "${embedded}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${embedded}" "-DTEMPLATE=${template}" "-DFILES=${ARGN}"
      -P "${script}"
    DEPENDS ${ARGN} "${template}" "${script}"
    COMMENT "Embedding texts: ${name}"
    VERBATIM)
  set(sources ${sources} "${embedded}" PARENT_SCOPE)
endfunction()
