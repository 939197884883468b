# Writes OUTPUT, a C++ file with the text of every file of PROGRAMS. Run as:
#   cmake -DOUTPUT=… -DPROGRAMS=… -P embed.cmake
list(SORT PROGRAMS)
list(LENGTH PROGRAMS count)
set(rows "")
foreach(path IN LISTS PROGRAMS)
  get_filename_component(name "${path}" NAME)
  file(SIZE "${path}" size)
  # NOTE: C++ promises no more than 65,536 characters in one string literal.
  if(size GREATER 65000)
    message(FATAL_ERROR
      "${path} has ${size} bytes, but at most 65000 fit in one string literal: split the file")
  endif()
  file(READ "${path}" text)
  string(APPEND rows "    Entry{\"${name}\", R\"coda~(${text})coda~\"},\n")
endforeach()
file(WRITE "${OUTPUT}.part" "// Made from programs/ by the build: the standard library's texts.
#include \"coda/program/library.h\"

#include <array>

namespace coda {
namespace {

struct Entry {
  std::string_view file;
  std::string_view text;
};

constexpr std::array<Entry, ${count}> entries{
${rows}};

}  // namespace

std::optional<std::string_view> embedded_program(std::string_view file) {
  for (const Entry& entry : entries) {
    if (entry.file == file) return entry.text;
  }
  return std::nullopt;
}

std::vector<std::string_view> embedded_programs() {
  std::vector<std::string_view> files;
  for (const Entry& entry : entries) files.push_back(entry.file);
  return files;
}

}  // namespace coda
")
file(RENAME "${OUTPUT}.part" "${OUTPUT}")
