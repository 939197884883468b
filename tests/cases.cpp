// tests/cases.cpp: reads the case table.
#include "tests/cases.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coda/program/text.h"

namespace coda::testing {
namespace {

// "M=128 N=64" → sizes.
Sizes sizes_from(const std::string& text) {
  Sizes sizes;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    sizes[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
  }
  return sizes;
}

Layouts layout_from(const std::string& name) {
  for (const Layouts layout :
       {Layouts::dense, Layouts::padded, Layouts::transposed, Layouts::broadcast}) {
    if (name_of(layout) == name) return layout;
  }
  throw std::invalid_argument("cases.json: no layout is called " + name);
}

CaseTable read() {
  std::ifstream file(CODA_SOURCE_DIR "/tests/cases.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  CaseTable table;
  for (const std::string name : json["dtypes"]) table.dtypes.push_back(dtype_from(name).value());
  for (const std::string name : json["layouts"]) table.layouts.push_back(layout_from(name));
  for (const nlohmann::json& row : json["cases"]) {
    const std::string program = row["program"];
    const std::size_t colon = program.find(':');
    Case entry{program.substr(0, colon),
               program.substr(colon + 1),
               {},
               row.value("no_gradient_bound", "")};
    for (const std::string sizes : row["sizes"]) entry.sizes.push_back(sizes_from(sizes));
    table.cases.push_back(std::move(entry));
  }
  return table;
}

}  // namespace

Program Case::load() const {
  return parse_file(CODA_SOURCE_DIR "/programs/" + file).find(name);
}

const CaseTable& case_table() {
  static const CaseTable table = read();
  return table;
}

std::string test_name(const Case& entry) {
  return entry.file.substr(0, entry.file.find('.')) + "_" + entry.name;
}

std::ostream& operator<<(std::ostream& out, const Case& entry) {
  return out << entry.file << ":" << entry.name;
}

}  // namespace coda::testing
