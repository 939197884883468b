// coda/cuda/arguments.cpp: fields by name, words by value.
#include "coda/cuda/arguments.h"

#include <algorithm>
#include <cctype>

#include "coda/core/error.h"
#include "coda/cuda/maps.h"

namespace coda::cuda {
namespace {

// Words of C++ and names of device code that a tensor may have.
constexpr std::string_view kReserved[] = {
    "alignas",   "alignof",  "and",   "asm",      "auto",     "bool",     "break",     "case",
    "catch",     "char",     "class", "const",    "continue", "default",  "delete",    "do",
    "double",    "else",     "enum",  "explicit", "export",   "extern",   "false",     "float",
    "for",       "friend",   "goto",  "if",       "inline",   "int",      "long",      "mutable",
    "namespace", "new",      "not",   "operator", "or",       "private",  "protected", "public",
    "register",  "return",   "short", "signed",   "sizeof",   "static",   "struct",    "switch",
    "template",  "this",     "throw", "true",     "try",      "typedef",  "typeid",    "typename",
    "union",     "unsigned", "using", "virtual",  "void",     "volatile", "while",     "xor",
    "coda",      "exact",    "fast",  "lane",     "infinity"};

}  // namespace

std::string identifier(std::string_view text) {
  std::string name;
  const auto word = [&](std::string_view replacement) {
    if (!name.empty() && name.back() != '_') name += '_';
    name += replacement;
  };
  bool gap = false;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      if (gap && !name.empty() && name.back() != '_') name += '_';
      gap = false;
      name += c;
    } else {
      if (c == '/') word("over");
      if (c == '-') word("less");
      if (c == '+') word("plus");
      gap = true;
    }
  }
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) name = "v" + name;
  if (std::ranges::find(kReserved, name) != std::end(kReserved)) name += '_';
  return name;
}

Arguments::Arguments(const Program& program, const Sizes& sizes, std::span<const Layout> layouts,
                     std::string object)
    : program_(&program), sizes_(&sizes), layouts_(layouts), object_(std::move(object)) {}

const std::string& Arguments::tensor_name(int tensor) const {
  const auto t = static_cast<std::size_t>(tensor);
  const std::size_t params = program_->params().size();
  return t < params ? program_->params()[t].name : program_->results()[t - params].name;
}

const Type& Arguments::tensor_type(int tensor) const {
  const auto t = static_cast<std::size_t>(tensor);
  const std::size_t params = program_->params().size();
  return t < params ? program_->params()[t].type : program_->results()[t - params].type;
}

std::string Arguments::free_name(std::string_view name) {
  const std::string wanted = identifier(name);
  std::string unique = wanted;
  for (int i = 2; !taken_.insert(unique).second; ++i) unique = wanted + "_" + std::to_string(i);
  return unique;
}

std::string Arguments::field(const std::string& key, std::string_view name, std::string_view type,
                             Word word) {
  const auto [entry, fresh] = fields_.emplace(key, "");
  if (fresh) {
    entry->second = free_name(name);
    declarations_.push_back(std::string(type) + " " + entry->second + ";");
    words_.push_back(word);
  }
  return object_ + "." + entry->second;
}

std::string Arguments::map(std::string_view name, MapSpec spec) {
  const std::string own = free_name("map_" + std::string(name));
  map_names_.push_back(own);
  maps_.push_back(std::move(spec));
  return object_ + "." + own;
}

std::string Arguments::pointer(int tensor) {
  const bool result = static_cast<std::size_t>(tensor) >= program_->params().size();
  const std::string type =
      (result ? "" : "const ") + std::string(element_of(tensor_type(tensor).dtype)) + "*";
  return field("pointer " + std::to_string(tensor), tensor_name(tensor), type,
               {Word::Kind::pointer, tensor, 0});
}

bool Arguments::has_whole_elements(int tensor) const {
  return layouts_[static_cast<std::size_t>(tensor)].alignment >=
         static_cast<std::int64_t>(size_of(tensor_type(tensor).dtype));
}

std::string Arguments::stride(int tensor, std::size_t factor) {
  const Factor axis = factors_of(tensor_type(tensor)).at(factor);
  const std::int64_t value = layouts_[static_cast<std::size_t>(tensor)].strides.at(factor);
  return field("stride " + std::to_string(tensor) + " " + std::to_string(factor),
               tensor_name(tensor) + "_stride_" + axis.text(), "long long",
               {Word::Kind::number, 0, value});
}

std::string Arguments::extent(const Dim& dim) {
  std::set<std::string> names;
  collect_names(dim, names);
  const std::int64_t value = require_extent(dim, *sizes_);
  if (names.empty()) return std::to_string(value) + "LL";
  return field("extent " + dim.text(), "size_" + dim.text(), "long long",
               {Word::Kind::number, 0, value});
}

std::string Arguments::extent(const Factor& factor) {
  return extent(dim_of(factor));
}

std::string Arguments::number(std::string_view name, std::int64_t value) {
  return field("number " + std::string(name), name, "long long", {Word::Kind::number, 0, value});
}

std::string Arguments::workspace(std::string_view name, std::string_view type,
                                 std::int64_t offset) {
  return field("workspace " + std::string(type) + " " + std::to_string(offset), name,
               std::string(type) + "*", {Word::Kind::workspace, 0, offset});
}

std::string Arguments::table(std::string_view name, int table) {
  return field("table " + std::to_string(table), name, "const unsigned*",
               {Word::Kind::table, table, 0});
}

std::string Arguments::declaration(std::string_view name) const {
  std::string text = "struct " + std::string(name) + " {\n";
  for (const std::string& map : map_names_) text += "  TensorMap " + map + ";\n";
  for (const std::string& declaration : declarations_) text += "  " + declaration + "\n";
  return text + "};\n";
}

}  // namespace coda::cuda
