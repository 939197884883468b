// coda/core/npy.cpp: a .npy file is a magic, a version, the length of a header, the header (a
// Python dict of three keys, in text), and the elements.
//
// The header is read by a parser for exactly that dict: nothing is guessed, every number is
// bounded.
#include "coda/core/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "coda/core/error.h"
#include "coda/core/file.h"

namespace coda {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY", 6};
constexpr std::int64_t kLongestHeader = 1 << 16;
constexpr std::size_t kMostDimensions = 64;
constexpr std::size_t kAlignment = 64;  // of the elements in the file, as NumPy pads it
constexpr const char* kRewrite = "write the array again with numpy.save";

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

struct Spelling {
  DType dtype;
  std::string_view written;
  std::string_view also;  // another spelling that is read
};

constexpr Spelling kSpellings[] = {
    {DType::f32, "<f4", ""},     {DType::f64, "<f8", ""},        {DType::f16, "<f2", ""},
    {DType::bf16, "<V2", "|V2"}, {DType::i32, "<i4", ""},        {DType::i64, "<i8", ""},
    {DType::u8, "|u1", "<u1"},   {DType::boolean, "|b1", "<b1"},
};

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(std::string path, std::string_view text) : path_(std::move(path)), text_(text) {}

  Header parse() {
    Header header;
    bool descr = false;
    bool order = false;
    bool shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !std::exchange(descr, true)) {
        header.descr = string();
      } else if (key == "fortran_order" && !std::exchange(order, true)) {
        header.fortran_order = boolean();
      } else if (key == "shape" && !std::exchange(shape, true)) {
        header.shape = tuple();
      } else {
        fail("the key '" + key + "' is unknown or there twice");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (!text_.empty()) fail("there is text after its '}'");
    if (!descr || !order || !shape) fail("it lacks one of descr, fortran_order and shape");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ProgramError(path_ + ": its header is no .npy header: " + what, kRewrite);
  }

  void skip_spaces() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) text_.remove_prefix(1);
  }

  bool accept(char c) {
    skip_spaces();
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (accept(c)) return;
    const std::string found =
        text_.empty() ? "its end" : "\"" + std::string(text_.substr(0, 12)) + "\"";
    fail(std::string("expected '") + c + "' and found " + found);
  }

  std::string string() {
    skip_spaces();
    const char quote = text_.empty() ? '\0' : text_[0];
    // NOTE: the dtype of a record array is a list here.
    if (quote == '[') fail("the array has fields; a tensor has one dtype");
    if (quote != '\'' && quote != '"') expect('\'');
    const std::size_t end = text_.find(quote, 1);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }

  bool boolean() {
    skip_spaces();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return word == "True";
    }
    fail("fortran_order is neither True nor False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0) fail("shape holds what is no size");
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      values.push_back(value);
      if (values.size() > kMostDimensions) fail("more than 64 dimensions");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  std::string path_;
  std::string_view text_;
};

DType dtype_of(const std::string& path, const std::string& descr) {
  for (const Spelling& each : kSpellings) {
    if (descr == each.written || (!each.also.empty() && descr == each.also)) return each.dtype;
  }
  if (descr.starts_with(">")) {
    throw ProgramError(path + " is big-endian (dtype '" + descr + "')",
                       "save it little-endian: array.astype(array.dtype.newbyteorder('<'))");
  }
  throw ProgramError(
      path + " has the dtype '" + descr + "', which CODA has no type for",
      "save one of float32, float64, float16, int32, int64, uint8, bool, or bfloat16 as '<V2'");
}

std::uint32_t little_endian(const unsigned char* bytes, int count) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) value |= std::uint32_t{bytes[i]} << (8 * i);
  return value;
}

}  // namespace

OwnedTensor read_npy(const std::string& path) {
  const InputFile file(path);
  unsigned char start[12] = {};
  file.read(0, start,
            static_cast<std::size_t>(std::min<std::int64_t>(file.bytes(), sizeof(start))));
  if (file.bytes() < 10 || std::memcmp(start, kMagic.data(), kMagic.size()) != 0) {
    throw ProgramError(path + " is no .npy file: it does not start with \\x93NUMPY", kRewrite);
  }
  const int version = start[6];
  if (version < 1 || version > 3) {
    throw ProgramError(
        path + " has .npy version " + std::to_string(version) + "; 1, 2 and 3 are known", kRewrite);
  }
  const int length_bytes = version == 1 ? 2 : 4;
  const std::int64_t header_at = 8 + length_bytes;
  const std::int64_t header_bytes = little_endian(start + 8, length_bytes);
  if (header_bytes > kLongestHeader || header_at + header_bytes > file.bytes()) {
    throw ProgramError(path + " claims a header of " + std::to_string(header_bytes) +
                           " bytes, but the file has " + std::to_string(file.bytes()) +
                           " and a header at most " + std::to_string(kLongestHeader),
                       kRewrite);
  }
  std::string text(static_cast<std::size_t>(header_bytes), '\0');
  file.read(header_at, text.data(), text.size());
  Header header = HeaderParser(path, text).parse();

  const DType dtype = dtype_of(path, header.descr);
  const std::int64_t data_at = header_at + header_bytes;
  const std::int64_t data_bytes = file.bytes() - data_at;
  const std::optional<std::int64_t> needed = bytes_of(dtype, header.shape);
  if (needed != data_bytes) {
    throw ProgramError(path + " holds " + std::to_string(data_bytes) +
                           " bytes of elements, but its header, " +
                           text.substr(0, text.find('}') + 1) + ", needs " +
                           (needed ? std::to_string(*needed) : "more than a file can have"),
                       "the file is truncated or damaged: " + std::string(kRewrite));
  }

  if (header.fortran_order) std::reverse(header.shape.begin(), header.shape.end());
  OwnedTensor tensor(dtype, std::move(header.shape));
  file.read(data_at, tensor.as<std::byte>(), tensor.bytes());
  if (dtype == DType::boolean) {
    std::uint8_t* values = tensor.as<std::uint8_t>();
    for (std::size_t i = 0; i < tensor.bytes(); ++i) values[i] = values[i] != 0 ? 1 : 0;
  }
  if (!header.fortran_order) return tensor;
  Tensor transposed = tensor.tensor();
  std::reverse(transposed.shape.begin(), transposed.shape.end());
  std::reverse(transposed.strides.begin(), transposed.strides.end());
  return dense_copy(transposed);
}

void write_npy(const std::string& path, const Tensor& tensor) {
  const auto* spelling =
      std::find_if(std::begin(kSpellings), std::end(kSpellings),
                   [&](const Spelling& each) { return each.dtype == tensor.dtype; });
  if (spelling == std::end(kSpellings)) {
    throw ProgramError(path + ": .npy has no dtype for " + std::string(name_of(tensor.dtype)),
                       "write a .safetensors file, or cast to f32 first");
  }
  std::string header =
      "{'descr': '" + std::string(spelling->written) + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t extent : tensor.shape) header += std::to_string(extent) + ", ";
  header += "), }";
  const std::size_t prefix = kMagic.size() + 4;
  const std::size_t padded = (prefix + header.size() + kAlignment) / kAlignment * kAlignment;
  header.resize(padded - prefix - 1, ' ');
  header += '\n';
  if (header.size() > std::numeric_limits<std::uint16_t>::max())
    throw InternalError("a .npy header of " + std::to_string(header.size()) + " bytes");

  std::string start(kMagic);
  start +=
      {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  const OwnedTensor copy = tensor.is_dense() ? OwnedTensor() : dense_copy(tensor);
  const void* data = tensor.is_dense() ? tensor.data : copy.tensor().data;
  OutputFile file(path);
  file.write((start + header).data(), start.size() + header.size());
  file.write(data, static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype));
  file.commit();
}

}  // namespace coda
