// coda/program/library.h: the texts of programs/, built into the library.
//
// So `use "prelude.coda"` works wherever the command stands. The build makes the definitions from
// programs/*.coda; what is returned lives as long as the process.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace coda {

// The text of the standard library's `file` ("prelude.coda"); nullopt where there is no such file.
std::optional<std::string_view> embedded_program(std::string_view file);

// The names of all files, sorted.
std::vector<std::string_view> embedded_programs();

}  // namespace coda
