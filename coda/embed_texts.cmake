# coda_embed(TEMPLATE FILE…): TEMPLATE, x.cpp.in of coda/, with the texts of the files → x.cpp in
# the build folder, which is added to `sources`.
function(coda_embed template)
  set(here "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  cmake_path(GET template STEM LAST_ONLY name)
  set(embedded "${PROJECT_BINARY_DIR}/${name}")
  add_custom_command(
    OUTPUT "${embedded}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${embedded}" "-DTEMPLATE=${here}/${template}"
      "-DFILES=${ARGN}" -P "${here}/embed.cmake"
    DEPENDS ${ARGN} "${here}/${template}" "${here}/embed.cmake"
    COMMENT "Embedding texts: ${name}"
    VERBATIM)
  set(sources ${sources} "${embedded}" PARENT_SCOPE)
endfunction()
