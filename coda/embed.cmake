# Writes OUTPUT from TEMPLATE with @rows@, a row {"name", R"…(text)…"} for each file of FILES, and
# @count@. Run as:
#   cmake -DOUTPUT=… -DTEMPLATE=… -DFILES=… -P embed.cmake
list(SORT FILES)
list(LENGTH FILES count)
set(rows "")
foreach(path IN LISTS FILES)
  get_filename_component(name "${path}" NAME)
  file(SIZE "${path}" size)
  # NOTE: C++ promises no more than 65,536 characters in one string literal.
  if(size GREATER 65000)
    message(FATAL_ERROR
      "${path} has ${size} bytes, but at most 65000 fit in one string literal: split the file")
  endif()
  file(READ "${path}" text)
  string(APPEND rows "    {\"${name}\", R\"coda~(${text})coda~\"},\n")
endforeach()
configure_file("${TEMPLATE}" "${OUTPUT}.part" @ONLY)
file(RENAME "${OUTPUT}.part" "${OUTPUT}")
