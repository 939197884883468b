// coda/core/safetensors.cpp: a .safetensors file is the length of a header (8 bytes,
// little-endian), the header (a JSON object), and the tensors' bytes, row-major, one after the
// other.
//
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"key":
//   "text"}}
//
// Offsets count from the end of the header. Nothing of the file is trusted before it is checked.
#include "coda/core/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "coda/core/error.h"
#include "coda/core/file.h"

namespace coda {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kLongestHeader = 100'000'000;
constexpr int kDeepestHeader = 4;  // the deepest that a header needs is 3
constexpr std::string_view kMetadata = "__metadata__";
constexpr const char* kDamaged = "the file is damaged: write or download it again";

struct Spelling {
  DType dtype;
  std::string_view name;
};

constexpr Spelling kSpellings[] = {
    {DType::f64, "F64"},      {DType::f32, "F32"},        {DType::f16, "F16"},
    {DType::bf16, "BF16"},    {DType::f8e4m3, "F8_E4M3"}, {DType::f8e5m2, "F8_E5M2"},
    {DType::i64, "I64"},      {DType::i32, "I32"},        {DType::u8, "U8"},
    {DType::boolean, "BOOL"},
};

std::string_view spelling(DType dtype) {
  for (const Spelling& each : kSpellings) {
    if (each.dtype == dtype) return each.name;
  }
  throw InternalError("safetensors: no name for " + std::string(name_of(dtype)));
}

// What the header says of one tensor: its elements are bytes [begin, end) after the header.
struct Entry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw ProgramError(path + ": " + what, kDamaged);
}

// The header as JSON, with each name there once and no deep nesting.
Json parse_header(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>>
      open;  // the names so far of each object that is not closed yet
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepestHeader) refuse(path, "its header is nested too deep");
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
      refuse(path, "its header names \"" + value.get<std::string>() + "\" twice");
    }
    return true;
  };
  try {
    Json header = Json::parse(text, watch);
    if (!header.is_object()) refuse(path, "its header is no JSON object");
    return header;
  } catch (const Json::exception& error) {
    refuse(path, std::string("its header is no JSON: ") + error.what());
  }
}

// A whole number from 0 to 2^63 - 1; anything else is refused.
std::int64_t whole_number(const Json& value, const std::string& path, const std::string& what) {
  // NOTE: 1e3 and -1 are JSON numbers too, and a conversion would take them.
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
    refuse(path, what + " is " + value.dump() + ", which is no size");
  }
  return value.get<std::int64_t>();
}

Entry parse_entry(const std::string& path, const std::string& name, const Json& value) {
  const std::string tensor = "tensor \"" + name + "\"";
  const bool complete = value.is_object() && value.contains("dtype") &&
                        value["dtype"].is_string() && value.contains("shape") &&
                        value["shape"].is_array() && value.contains("data_offsets") &&
                        value["data_offsets"].is_array() && value["data_offsets"].size() == 2;
  if (!complete) refuse(path, tensor + " lacks a dtype, a shape or two data_offsets");
  Entry entry{.name = name};
  const std::string dtype = value["dtype"].get<std::string>();
  const auto* known = std::find_if(std::begin(kSpellings), std::end(kSpellings),
                                   [&](const Spelling& each) { return each.name == dtype; });
  if (known == std::end(kSpellings)) {
    throw ProgramError(
        path + ": " + tensor + " has the dtype " + dtype + ", which CODA has no type for",
        "cast it to one of F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 U8 BOOL");
  }
  entry.dtype = known->dtype;
  for (const Json& extent : value["shape"])
    entry.shape.push_back(whole_number(extent, path, tensor + ": a shape"));
  entry.begin = whole_number(value["data_offsets"][0], path, tensor + ": an offset");
  entry.end = whole_number(value["data_offsets"][1], path, tensor + ": an offset");
  return entry;
}

// The entries tile the data exactly: in range, of the size that the shape needs, no overlap, no
// gap.
void check_layout(const std::string& path, std::vector<Entry>& entries, std::int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::int64_t at = 0;
  for (const Entry& entry : entries) {
    const std::string range = "tensor \"" + entry.name + "\" has the bytes " +
                              std::to_string(entry.begin) + " to " + std::to_string(entry.end);
    if (entry.end < entry.begin) refuse(path, range + ", which ends before it begins");
    if (entry.end > data_bytes) {
      refuse(path,
             range + ", but the file has only " + std::to_string(data_bytes) + " bytes of tensors");
    }
    const std::optional<std::int64_t> needed = bytes_of(entry.dtype, entry.shape);
    if (needed != entry.end - entry.begin) {
      refuse(path, range + ", but its dtype and shape need " +
                       (needed ? std::to_string(*needed) : "more than a file can have"));
    }
    if (entry.begin < at) refuse(path, range + ", which overlap another tensor's");
    if (entry.begin > at)
      refuse(path, range + ", and nothing has the bytes before, from " + std::to_string(at));
    at = entry.end;
  }
  if (at != data_bytes) {
    refuse(path, "its tensors end at byte " + std::to_string(at) + ", but the file has " +
                     std::to_string(data_bytes) + " bytes of tensors");
  }
}

}  // namespace

Safetensors read_safetensors(const std::string& path) {
  const InputFile file(path);
  unsigned char length[kLengthBytes] = {};
  if (file.bytes() < kLengthBytes)
    refuse(path, "with " + std::to_string(file.bytes()) + " bytes it is no .safetensors file");
  file.read(0, length, sizeof(length));
  std::uint64_t header_bytes = 0;
  for (int i = 0; i < kLengthBytes; ++i) header_bytes |= std::uint64_t{length[i]} << (8 * i);
  const std::int64_t longest = std::min(kLongestHeader, file.bytes() - kLengthBytes);
  if (header_bytes > static_cast<std::uint64_t>(longest)) {
    refuse(path, "it claims a header of " + std::to_string(header_bytes) + " bytes, but at most " +
                     std::to_string(longest) + " are possible here");
  }
  std::string text(header_bytes, '\0');
  file.read(kLengthBytes, text.data(), text.size());
  const Json header = parse_header(path, text);

  Safetensors result;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadata) {
      entries.push_back(parse_entry(path, name, value));
      continue;
    }
    if (!value.is_object()) refuse(path, "its __metadata__ is no JSON object");
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string())
        refuse(path, "its __metadata__ has \"" + key + "\", which is no string");
      result.metadata[key] = text_value.get<std::string>();
    }
  }
  const std::int64_t data_at = kLengthBytes + static_cast<std::int64_t>(header_bytes);
  check_layout(path, entries, file.bytes() - data_at);
  for (Entry& entry : entries) {
    OwnedTensor tensor(entry.dtype, std::move(entry.shape));
    file.read(data_at + entry.begin, tensor.as<std::byte>(), tensor.bytes());
    if (entry.dtype == DType::boolean) {
      std::uint8_t* values = tensor.as<std::uint8_t>();
      for (std::size_t i = 0; i < tensor.bytes(); ++i) values[i] = values[i] != 0 ? 1 : 0;
    }
    result.tensors.emplace(std::move(entry.name), std::move(tensor));
  }
  return result;
}

void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  OutputFile file(path);
  write_safetensors(file, tensors, metadata);
  file.commit();
}

void write_safetensors(OutputFile& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  // Wide elements first, so that every tensor is aligned to its elements.
  std::vector<std::pair<std::string, const Tensor*>> order;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata) throw ProgramError("a tensor cannot be named __metadata__", "rename it");
    order.emplace_back(name, &tensor);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return size_of(a.second->dtype) > size_of(b.second->dtype);
  });

  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::int64_t at = 0;
  for (const auto& [name, tensor] : order) {
    const std::optional<std::int64_t> bytes = bytes_of(tensor->dtype, tensor->shape);
    if (!bytes) throw InternalError("a tensor of impossible size: " + name);
    header[name] = {{"dtype", spelling(tensor->dtype)},
                    {"shape", tensor->shape},
                    {"data_offsets", {at, at + *bytes}}};
    at += *bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    throw ProgramError(file.path() + ": a name or a metadata text is not UTF-8: " + error.what(),
                       "use UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (int i = 0; i < kLengthBytes; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xff);

  file.write(length.data(), length.size());
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : order) {
    const OwnedTensor copy = tensor->is_dense() ? OwnedTensor() : dense_copy(*tensor);
    const void* data = tensor->is_dense() ? tensor->data : copy.tensor().data;
    file.write(data, static_cast<std::size_t>(tensor->elements()) * size_of(tensor->dtype));
  }
}

}  // namespace coda
