// coda/cuda/arguments.h: the one struct that a kernel takes: its fields, and the words that fill
// them.
//
// Whoever emits a kernel asks for what it needs and gets the C expression that reads it; equal
// requests share a field. Fields stand in the order of their first use, after the tensor maps.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/cuda/plan.h"

namespace coda::cuda {

// `text` as a C name: letters, digits and `_`, no word of the language.
std::string identifier(std::string_view text);

class Arguments {
 public:
  // `object` is the name of the kernel's parameter.
  Arguments(const Program& program, const Sizes& sizes, std::span<const Layout> layouts,
            std::string object = "a");

  const Sizes& sizes() const { return *sizes_; }

  // A tensor map: `a.map_x`.
  std::string map(std::string_view name, MapSpec spec);
  // A parameter (const) or, after these, a result: `a.x`.
  std::string pointer(int tensor);
  // Whether every element lies at a multiple of its size.
  bool has_whole_elements(int tensor) const;
  // In elements, of factor `factor` of the tensor's declared type: `a.x_stride_M`.
  std::string stride(int tensor, std::size_t factor);
  // `a.size_M`; a number where the dim has no name.
  std::string extent(const Dim& dim);
  std::string extent(const Factor& factor);
  // A number of the kernel's own: `a.count`. Two of one name have one value.
  std::string number(std::string_view name, std::int64_t value);
  // Memory between launches, as a `type*`: `a.sums`.
  std::string workspace(std::string_view name, std::string_view type, std::int64_t offset);
  // tables[table] of the plan: `a.order`.
  std::string table(std::string_view name, int table);

  // `struct <name> { … };`
  std::string declaration(std::string_view name = "Arguments") const;
  const std::vector<Word>& words() const { return words_; }
  const std::vector<MapSpec>& maps() const { return maps_; }

 private:
  std::string field(const std::string& key, std::string_view name, std::string_view type,
                    Word word);
  std::string free_name(std::string_view name);
  const std::string& tensor_name(int tensor) const;
  const Type& tensor_type(int tensor) const;

  const Program* program_;
  const Sizes* sizes_;
  std::span<const Layout> layouts_;
  std::string object_;
  std::map<std::string, std::string> fields_;  // what was asked for → the field's name
  std::set<std::string> taken_;
  std::vector<std::string> map_names_, declarations_;
  std::vector<Word> words_;
  std::vector<MapSpec> maps_;
};

}  // namespace coda::cuda
