// tests/files_test.cpp: .npy and .safetensors: round trips, and a table of hostile files, all
// refused.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/npy.h"
#include "coda/core/safetensors.h"
#include "tests/refusal.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

constexpr DType kAll[] = {DType::f32,    DType::f64, DType::bf16, DType::f16, DType::f8e4m3,
                          DType::f8e5m2, DType::i32, DType::i64,  DType::u8,  DType::boolean};

// A folder of its own for each test, removed afterwards.
class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "coda-files-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }

  std::string with(const std::string& name, const std::string& bytes) const {
    write_file(path(name), bytes);
    return path(name);
  }

  std::size_t count() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

 private:
  fs::path folder_;
};

// What refuses must name the file, say `reason`, and say how to fix it.
void expect_refusal(const std::string& path, const std::string& reason,
                    const std::function<void()>& action) {
  const std::string text = refusal(action);
  EXPECT_NE(text.find(path), std::string::npos) << "want the path in: " << text;
  EXPECT_NE(text.find(reason), std::string::npos) << "want \"" << reason << "\" in: " << text;
  EXPECT_NE(text.find("fix: "), std::string::npos) << text;
}

OwnedTensor sample(DType dtype, std::vector<std::int64_t> shape) {
  OwnedTensor tensor(dtype, std::move(shape));
  for (std::int64_t i = 0; i < tensor.tensor().elements(); ++i) {
    store(dtype, tensor.tensor().data, i, static_cast<double>(i % 7) * 1.25);
  }
  return tensor;
}

void expect_equal(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.dtype, want.dtype);
  ASSERT_EQ(got.shape, want.shape);
  const OwnedTensor a = dense_copy(got);
  const OwnedTensor b = dense_copy(want);
  EXPECT_EQ(std::memcmp(a.as<char>(), b.as<char>(), b.bytes()), 0) << to_string(want);
}

// ---- files ----

TEST_F(Files, AppearWholeOrNotAtAll) {
  const std::string old = with("a", "old");
  {
    OutputFile file(old);
    file.write("new", 3);
    EXPECT_EQ(read_file(old), "old");
  }
  EXPECT_EQ(read_file(old), "old");
  EXPECT_EQ(count(), 1u);
  write_file(old, "new");
  EXPECT_EQ(read_file(old), "new");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, AreRefusedWhereTheyCannotBe) {
  const std::string missing = path("missing");
  expect_refusal(missing, "No such file", [&] { read_file(missing); });
  expect_refusal(path(""), "is a folder", [&] { read_file(path("")); });
  expect_refusal(path("no/a"), "No such file", [&] { write_file(path("no/a"), "x"); });
  fs::create_directory(path("sub"));
  expect_refusal(path("sub"), "is a folder", [&] { write_file(path("sub"), "x"); });
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refusal(path("pipe"), "no regular file", [&] { read_file(path("pipe")); });
  EXPECT_EQ(count(), 2u);
}

// ---- npy ----

TEST_F(Files, NpyRoundTripsEveryDtypeAndShape) {
  for (const DType dtype : kAll) {
    if (dtype == DType::f8e4m3 || dtype == DType::f8e5m2) continue;
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {5}, {2, 3}, {0}, {3, 0, 2}, {2, 1, 3, 2}}) {
      const OwnedTensor want = sample(dtype, shape);
      write_npy(path("a.npy"), want.tensor());
      expect_equal(read_npy(path("a.npy")).tensor(), want.tensor());
      EXPECT_EQ((fs::file_size(path("a.npy")) - want.bytes()) % 64, 0u);
    }
  }
  const OwnedTensor f8 = sample(DType::f8e4m3, {2});
  expect_refusal(path("f8.npy"), "f8e4m3", [&] { write_npy(path("f8.npy"), f8.tensor()); });
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, NpyWritesStridedViews) {
  const OwnedTensor whole = sample(DType::f32, {4, 6});
  const Tensor view{whole.as<float>() + 1, DType::f32, {3, 4}, {1, 6}};
  write_npy(path("a.npy"), view);
  expect_equal(read_npy(path("a.npy")).tensor(), view);
}

std::string npy(const std::string& header, const std::string& data) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  return file + header + data;
}

TEST_F(Files, NpyReadsFortranOrderAndLaterVersions) {
  const float values[] = {0, 1, 2, 3, 4, 5};
  const std::string data(reinterpret_cast<const char*>(values), sizeof(values));
  const std::string fortran =
      with("f.npy", npy("{\"shape\":(2,3),'fortran_order':True , 'descr': '<f4'}\n", data));
  const OwnedTensor tensor = read_npy(fortran);
  EXPECT_EQ(tensor.tensor().shape, (std::vector<std::int64_t>{2, 3}));
  const float want[] = {0, 2, 4, 1, 3, 5};
  EXPECT_EQ(std::memcmp(tensor.as<float>(), want, sizeof(want)), 0);

  const std::string header = "{'descr': '|V2', 'fortran_order': False, 'shape': (12,), }\n";
  std::string second("\x93NUMPY\x02\x00", 8);
  second += static_cast<char>(header.size());
  second += std::string(3, '\0');
  EXPECT_EQ(read_npy(with("2.npy", second + header + data)).tensor().dtype, DType::bf16);
}

TEST_F(Files, NpyMakesBooleansZeroOrOne) {
  const std::string header = "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }\n";
  const OwnedTensor tensor = read_npy(with("b.npy", npy(header, std::string("\0\x02\xff", 3))));
  EXPECT_EQ(std::memcmp(tensor.as<char>(), "\0\1\1", 3), 0);
}

TEST_F(Files, NpyRefusesHostileFiles) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
  const std::string data(8, 'x');
  const auto shape = [](const std::string& text) {
    return "{'descr': '<f4', 'fortran_order': False, 'shape': " + text + ", }\n";
  };
  const auto descr = [](const std::string& text) {
    return "{'descr': " + text + ", 'fortran_order': False, 'shape': (2,), }\n";
  };
  std::string many = "(";
  for (int i = 0; i < 65; ++i) many += "1,";
  struct Case {
    std::string name, bytes, reason;
  };
  const Case cases[] = {
      {"empty", "", "no .npy file"},
      {"text", "hello, this is a text file", "no .npy file"},
      {"magic only", npy("", "").substr(0, 8), "no .npy file"},
      {"version 9", "\x93NUMPY\x09" + npy(good, data).substr(7), "version 9"},
      {"header past the end", npy(good, data).substr(0, 30), "claims a header of"},
      {"huge header", std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12) + data, "4294967295"},
      {"truncated", npy(good, data.substr(1)), "holds 7 bytes"},
      {"too long", npy(good, data + "y"), "holds 9 bytes"},
      {"empty header", npy("\n", data), "expected '{'"},
      {"no closing", npy("{'descr': '<f4'", data), "its end"},
      {"no shape", npy("{'descr': '<f4', 'fortran_order': False}", data), "lacks one of"},
      {"twice", npy("{'descr': '<f4', 'descr': '<f4'}", data), "'descr' is unknown or there"},
      {"unknown key", npy("{'other': 1}", data), "'other' is unknown"},
      {"text after", npy(good + "__import__('os')", data), "text after"},
      {"no string", npy(descr("12"), data), "expected '''"},
      {"open string", npy("{'descr", data), "a string does not end"},
      {"order", npy("{'fortran_order': 1}", data), "neither True nor False"},
      {"negative", npy(shape("(-2,)"), data), "no size"},
      {"past 64 bits", npy(shape("(99999999999999999999,)"), data), "no size"},
      {"overflow", npy(shape("(4611686018427387904, 4)"), data), "more than a file can have"},
      {"overflow to small", npy(shape("(2147483648, 2147483648, 4)"), data), "more than a file"},
      {"no tuple", npy(shape("2"), data), "expected '('"},
      {"rank", npy(shape(many + ")"), data), "more than 64"},
      {"big-endian", npy(descr("'>f4'"), data), "big-endian"},
      {"complex", npy(descr("'<c8'"), data), "'<c8'"},
      {"objects", npy(descr("'|O'"), data), "'|O'"},
      {"fields", npy(descr("[('a', '<f4')]"), data), "fields"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const std::string file = with("bad.npy", each.bytes);
    expect_refusal(file, each.reason, [&] { read_npy(file); });
  }
  EXPECT_EQ(refusal([&] { read_npy(with("good.npy", npy(good, data))); }), "");
}

// ---- safetensors ----

TEST_F(Files, SafetensorsRoundTripEveryDtypeAndTheMetadata) {
  std::map<std::string, OwnedTensor> owned;
  for (const DType dtype : kAll) owned["t." + std::string(name_of(dtype))] = sample(dtype, {3, 5});
  owned["scalar"] = sample(DType::f32, {});
  owned["empty"] = sample(DType::f32, {4, 0});
  owned["name with \"quotes\" and ü"] = sample(DType::u8, {3});
  std::map<std::string, Tensor> views;
  for (const auto& [name, tensor] : owned) views[name] = tensor.tensor();
  views["transposed"] = {owned["t.f32"].as<float>(), DType::f32, {5, 3}, {1, 5}};
  const std::map<std::string, std::string> metadata = {{"format", "coda"}, {"step", "12"}};

  write_safetensors(path("a.safetensors"), views, metadata);
  const Safetensors got = read_safetensors(path("a.safetensors"));
  EXPECT_EQ(got.metadata, metadata);
  ASSERT_EQ(got.tensors.size(), views.size());
  for (const auto& [name, view] : views) expect_equal(got.tensors.at(name).tensor(), view);

  write_safetensors(path("b.safetensors"), views, metadata);
  EXPECT_EQ(read_file(path("a.safetensors")), read_file(path("b.safetensors")));
  write_safetensors(path("none.safetensors"), {});
  EXPECT_TRUE(read_safetensors(path("none.safetensors")).tensors.empty());
}

TEST_F(Files, SafetensorsThatCannotBeWrittenLeaveNoFile) {
  const OwnedTensor tensor = sample(DType::f32, {2});
  expect_refusal("__metadata__", "cannot be named",
                 [&] { write_safetensors(path("a"), {{"__metadata__", tensor.tensor()}}); });
  expect_refusal(path("a"), "not UTF-8",
                 [&] { write_safetensors(path("a"), {{"\xff", tensor.tensor()}}); });
  EXPECT_EQ(count(), 0u);
}

std::string safetensors(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

TEST_F(Files, SafetensorsRefuseHostileFiles) {
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const auto one = [&](const std::string& shape, const std::string& offsets) {
    return R"({"a":)" + tensor("F32", shape, offsets) + "}";
  };
  const auto two = [&](const std::string& first, const std::string& second) {
    return R"({"a":)" + tensor("F32", "[2]", first) + R"(,"b":)" + tensor("F32", "[2]", second) +
           "}";
  };
  const std::string data(8, 'x');
  const std::string data16(16, 'x');
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += R"({"a":)";
  struct Case {
    std::string name, bytes, reason;
  };
  const Case cases[] = {
      {"empty", "", "0 bytes"},
      {"short", "\x05\0\0", "no .safetensors"},
      {"header past the end", safetensors("{}", "").substr(0, 9), "header of 2 bytes"},
      {"huge header", std::string(8, '\xff') + data, "18446744073709551615"},
      {"negative header", std::string("\0\0\0\0\0\0\0\x80", 8) + data, "9223372036854775808"},
      {"no JSON", safetensors("{\"a\":", ""), "no JSON"},
      {"a list", safetensors("[1]", ""), "no JSON object"},
      {"text after", safetensors("{} {}", ""), "no JSON"},
      {"no UTF-8", safetensors("{\"\xff\":1}", ""), "no JSON"},
      {"deep", safetensors(std::string(100000, '['), ""), "nested too deep"},
      {"deep objects", safetensors(deep, ""), "nested too deep"},
      {"twice", safetensors(R"({"a":1,"a":2})", ""), "\"a\" twice"},
      {"twice, escaped", safetensors(R"({"a":1,"\u0061":2})", ""), "\"a\" twice"},
      {"key twice", safetensors(R"({"a":{"dtype":"F32","dtype":"F32"}})", ""), "\"dtype\" twice"},
      {"no tensor", safetensors(R"({"a":3})", ""), "\"a\" lacks"},
      {"no offsets", safetensors(R"({"a":{"dtype":"F32","shape":[2]}})", data), "\"a\" lacks"},
      {"one offset", safetensors(one("[2]", "[0]"), data), "\"a\" lacks"},
      {"dtype", safetensors(R"({"a":)" + tensor("I7", "[2]", "[0,8]") + "}", data), "I7"},
      {"negative size", safetensors(one("[-2]", "[0,8]"), data), "-2, which is no size"},
      {"float size", safetensors(one("[2.0]", "[0,8]"), data), "2.0, which is no size"},
      {"size past 63 bits", safetensors(one("[18446744073709551615]", "[0,8]"), data), "no size"},
      {"size overflow", safetensors(one("[4294967296,4294967296]", "[0,8]"), data), "more than a"},
      {"negative offset", safetensors(one("[2]", "[-8,0]"), data), "an offset is -8"},
      {"fractional offset", safetensors(one("[2]", "[0.5,8.5]"), data), "an offset is 0.5"},
      {"exponent", safetensors(one("[2]", "[0,8e0]"), data), "an offset is 8"},
      {"offset of text", safetensors(one("[2]", R"([0,"8"])"), data), "an offset is \"8\""},
      {"offset past 64 bits", safetensors(one("[2]", "[0,18446744073709551624]"), data), "no size"},
      {"bool size", safetensors(one("[true]", "[0,8]"), data), "true, which is no size"},
      {"overflow to 0", safetensors(one("[2147483648,2147483648,4]", "[0,0]"), ""), "more than a"},
      {"dtype of others", safetensors(R"({"a":)" + tensor("C64", "[1]", "[0,8]") + "}", data),
       "C64"},
      {"empty inside",
       safetensors(R"({"a":)" + tensor("F32", "[2]", "[0,8]") + R"(,"b":)" +
                       tensor("F32", "[0]", "[4,4]") + "}",
                   data),
       "overlap"},
      {"half a surrogate", safetensors(R"({"\ud800":1})", ""), "no JSON"},
      {"backwards", safetensors(one("[2]", "[8,0]"), data), "ends before it begins"},
      {"past the end", safetensors(one("[3]", "[0,12]"), data), "only 8 bytes"},
      {"wrong size", safetensors(one("[3]", "[0,8]"), data), "need 12"},
      {"overlap", safetensors(two("[0,8]", "[4,12]"), data16), "overlap"},
      {"same bytes", safetensors(two("[0,8]", "[0,8]"), data16), "overlap"},
      {"gap", safetensors(two("[0,8]", "[9,17]"), data16 + "x"), "nothing has the bytes before"},
      {"bytes left", safetensors(one("[2]", "[0,8]"), data + "x"), "9 bytes of tensors"},
      {"metadata", safetensors(R"({"__metadata__":3})", ""), "__metadata__"},
      {"metadata value", safetensors(R"({"__metadata__":{"k":3}})", ""), "\"k\""},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const std::string file = with("bad.safetensors", each.bytes);
    expect_refusal(file, each.reason, [&] { read_safetensors(file); });
  }
  const std::string good = safetensors(two("[0,8]", "[8,16]"), data16);
  EXPECT_EQ(refusal([&] { read_safetensors(with("good.safetensors", good)); }), "");
  // No prefix of a good file is a good file.
  for (std::size_t length = 0; length < good.size(); ++length) {
    const std::string file = with("cut.safetensors", good.substr(0, length));
    EXPECT_NE(refusal([&] { read_safetensors(file); }), "") << length;
  }
}

}  // namespace
}  // namespace coda
