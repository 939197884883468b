// cli/inputs.cpp: reads, makes and binds the tensors that a command line names.
#include "cli/inputs.h"

#include <charconv>
#include <cmath>
#include <map>

#include "cli/sources.h"
#include "coda/check/bind.h"
#include "coda/core/npy.h"
#include "coda/core/safetensors.h"
#include "coda/reference/verify.h"

namespace coda {
namespace {

OwnedTensor read_tensor(const std::string& name, const std::string& source) {
  if (source.ends_with(".npy")) return read_npy(source);
  const std::string_view kEnding = ".safetensors";
  const std::size_t ending = source.find(kEnding);
  if (ending != std::string::npos) {
    const std::size_t end = ending + kEnding.size();
    const std::string path = source.substr(0, end);
    std::string key = end < source.size() && source[end] == ':' ? source.substr(end + 1) : name;
    Safetensors file = read_safetensors(path);
    const auto found = file.tensors.find(key);
    if (found != file.tensors.end()) return std::move(found->second);
    std::vector<std::string> keys;
    for (const auto& entry : file.tensors) keys.push_back(entry.first);
    throw ProgramError("`" + path + "` has no tensor `" + key + "`",
                       suggestion(key, keys, "name one: " + name + "=" + path + ":TENSOR"));
  }
  throw ProgramError("`" + name + "=" + source + "` is not an input",
                     "give a .npy or .safetensors file, a number for a scalar, or `random`");
}

bool number_from(const std::string& text, double& number) {
  if (text == "true" || text == "false") {
    number = text == "true" ? 1 : 0;
    return true;
  }
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size();
}

OwnedTensor scalar(const std::string& name, DType dtype, double number) {
  if (is_integer(dtype) && number != std::trunc(number)) {
    throw ProgramError("the input `" + name + "` is " + std::string(name_of(dtype)) +
                           ", which holds whole numbers only",
                       "give a whole number");
  }
  OwnedTensor tensor(dtype, {});
  store(dtype, tensor.tensor().data, 0, number);
  return tensor;
}

// What the shapes of the given tensors say about plain names; bind() checks all of it afterwards.
void sizes_from_shape(const Type& type, const Tensor& tensor, Sizes& sizes) {
  if (type.dims.size() != tensor.shape.size()) return;
  for (std::size_t d = 0; d < type.dims.size(); ++d) {
    std::int64_t known = 1;
    const Factor* unknown = nullptr;
    for (const Factor& factor : type.dims[d].factors) {
      const auto size = extent(Dim{{factor}}, sizes);
      if (size) {
        known *= *size;
      } else if (factor.kind() == Factor::Kind::name && unknown == nullptr) {
        unknown = &factor;
      } else {
        known = 0;
      }
    }
    if (unknown != nullptr && known > 0 && tensor.shape[d] % known == 0) {
      sizes[unknown->text()] = tensor.shape[d] / known;
    }
  }
}

template <class Names>
std::string listed(const Names& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all.empty() ? "none" : all;
}

}  // namespace

std::pair<std::string, std::string> assignment_from(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw ProgramError("`" + text + "` does not assign anything", "write name=value, like x=x.npy");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

DType dtype_from_flag(const std::string& text) {
  const auto dtype = dtype_from(text);
  if (dtype && is_float(*dtype)) return *dtype;
  throw ProgramError("`" + text + "` is not a floating-point dtype",
                     "give --dtype f32, f64, f16 or bf16");
}

void copy_into(const Tensor& from, const Tensor& to) {
  if (from.shape != to.shape || from.dtype != to.dtype) {
    throw ProgramError("an initial value is " + to_string(from) + ", its result " + to_string(to),
                       "give a tensor of the result's dtype and shape");
  }
  for (std::int64_t i = 0; i < from.elements(); ++i) {
    store(to.dtype, to.data, i, load(from.dtype, from.data, i));
  }
}

BoundInputs bind_inputs(const Program& program, const std::vector<std::string>& entries,
                        const Sizes& given, std::uint64_t seed) {
  std::vector<std::string> known;
  for (const Param& param : program.params()) known.push_back(param.name);
  for (const Result& result : program.results()) {
    if (result.store == Store::accumulate) known.push_back(result.name);
  }
  std::map<std::string, std::string> sources;
  bool rest_is_random = false;
  for (const std::string& entry : entries) {
    if (entry == "random") {
      rest_is_random = true;
      continue;
    }
    auto [name, source] = assignment_from(entry);
    if (std::ranges::find(known, name) == known.end()) {
      throw ProgramError("`" + program.name() + "` has no parameter or dimension `" + name + "`",
                         suggestion(name, known,
                                    "name one of: " + listed(known) +
                                        "; dimensions: " + listed(dimensions_of(program))));
    }
    if (!sources.emplace(name, source).second) {
      throw ProgramError("the input `" + name + "` is given twice", "give it once");
    }
  }

  BoundInputs inputs;
  inputs.views.resize(program.params().size());
  inputs.before.resize(program.results().size());
  Sizes sizes = given;
  std::vector<std::size_t> random;
  std::string missing;
  for (std::size_t p = 0; p < program.params().size(); ++p) {
    const auto& [name, type] = program.params()[p];
    const auto found = sources.find(name);
    if (found == sources.end() && !rest_is_random) {
      missing += (missing.empty() ? "`" : ", `") + name + "`";
    } else if (found == sources.end() || found->second == "random") {
      random.push_back(p);
    } else if (double number = 0; number_from(found->second, number)) {
      if (!type.is_scalar()) {
        throw ProgramError(
            "the input `" + name + "` is a number, but the program wants " + type.text(),
            "give a .npy or .safetensors file, or `random`");
      }
      inputs.owned.push_back(scalar(name, type.dtype, number));
      inputs.views[p] = inputs.owned.back().tensor();
    } else {
      inputs.owned.push_back(read_tensor(name, found->second));
      inputs.views[p] = inputs.owned.back().tensor();
      sizes_from_shape(type, inputs.views[p], sizes);
    }
  }
  if (!missing.empty()) {
    throw ProgramError("the inputs " + missing + " of `" + program.name() + "` are not given",
                       "give each as name=FILE.npy, or say `random` for all that are not named");
  }
  if (!random.empty()) {
    sizes = bind_sizes(program, sizes);
    std::vector<OwnedTensor> drawn = random_inputs(program, sizes, seed);
    for (const std::size_t p : random) {
      inputs.owned.push_back(std::move(drawn[p]));
      inputs.views[p] = inputs.owned.back().tensor();
    }
  }
  for (std::size_t i = 0; i < program.results().size(); ++i) {
    const auto found = sources.find(program.results()[i].name);
    if (found == sources.end() || program.results()[i].store != Store::accumulate) continue;
    if (double number = 0; found->second == "random" || number_from(found->second, number)) {
      throw ProgramError("the accumulating result `" + found->first + "` starts from a file or 0",
                         "give a .npy or .safetensors file, or leave it out: it starts from 0");
    }
    inputs.owned.push_back(read_tensor(found->first, found->second));
    inputs.before[i] = inputs.owned.back().tensor();
  }
  inputs.sizes = bind(program, inputs.views, {}, given);
  return inputs;
}

}  // namespace coda
