// tests/picture_test.cpp: the picture shows every kernel, every kept value and the bar, in text
// that any viewer reads.
#include "coda/rewrite/picture.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "coda/core/file.h"
#include "coda/program/text.h"
#include "coda/rewrite/excerpt.h"
#include "coda/rewrite/stack.h"

namespace coda {
namespace {

const Sizes kSizes = {{"B", 1}, {"S", 64}, {"D", 128}, {"H", 4},
                      {"G", 2}, {"E", 32}, {"F", 256}, {"V", 512}};

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

// Tags that open close, in turn, and nothing else looks like one.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)([^<>]*?)(/?)>");
  std::string rest;
  auto at = svg.cbegin();
  for (std::sregex_iterator it(svg.begin(), svg.end(), tag), end; it != end; ++it) {
    rest.append(at, svg.cbegin() + it->position());
    at = svg.cbegin() + it->position() + it->length();
    if ((*it)[1].length() > 0) {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), (*it)[2]);
      open.pop_back();
    } else if ((*it)[4].length() == 0) {
      open.push_back((*it)[2]);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(rest.find_first_of("<>"), std::string::npos);
  EXPECT_FALSE(std::regex_search(svg, std::regex("&(?!amp;|lt;|gt;)")));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  int follow = 0;  // bytes of a UTF-8 sequence
  for (const char c : svg) {
    const auto byte = static_cast<unsigned char>(c);
    ASSERT_EQ((byte & 0xc0) == 0x80, follow > 0);
    follow = follow > 0 ? follow - 1 : byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
  }
}

Report llama(int layers) {
  const Module module = parse_file("llama.coda");
  Sizes sizes = kSizes;
  if (layers == 0) sizes.erase("V");
  return report(layers == 0 ? module.find("layer") : stack(module, layers),
                {.of = {layers == 0 ? "out" : "loss"}}, sizes);
}

TEST(Picture, ShowsEveryKernelAndEveryKeptValue) {
  for (const int layers : {0, 3}) {
    SCOPED_TRACE(layers);
    const Report made = llama(layers);
    const std::string svg = picture(made);
    expect_well_formed(svg);
    for (const Half& half : made.halves) {
      const std::string letter = half.phase == "forward" ? "F" : "B";
      for (std::size_t i = 0; i < half.fused.steps.size(); ++i) {
        EXPECT_EQ(count(svg, ">" + letter + std::to_string(i + 1) + "  "), 1u) << i;
      }
    }
    EXPECT_FALSE(made.saved.empty());
    for (const std::string& name : made.saved) {
      EXPECT_NE(svg.find(": " + name + "<"), std::string::npos) << name;
    }
    EXPECT_NE(svg.find(amount(bytes_moved(made.total), "B")), std::string::npos);
    EXPECT_NE(svg.find(amount(bytes_moved(made.unfused), "B")), std::string::npos);
    for (int i = 0; i < layers; ++i) {
      EXPECT_EQ(count(svg, ">layer " + std::to_string(i) + "<"), 1u);
    }
    EXPECT_EQ(count(svg, ">head<"), layers == 0 ? 0u : 1u);
    EXPECT_EQ(picture(made), svg);
  }
}

// Of a layer between others: what crosses its borders becomes parameters and results, so that the
// text of the excerpt parses, and every count of its kernels is as among the others.
TEST(Picture, ShowsOneLayerOfAStackOnItsOwn) {
  const Report whole = llama(3);
  const Report layer = excerpt(whole, 1);
  ASSERT_EQ(layer.halves.size(), 2u);
  std::int64_t moved = 0;
  for (std::size_t h = 0; h < 2; ++h) {
    const Half &all = whole.halves[h], &mine = layer.halves[h];
    std::vector<std::string> names;
    for (std::size_t i = 0; i < all.fused.steps.size(); ++i) {
      if (all.layers[i] != 1) continue;
      names.push_back(all.fused.steps[i].step);
      moved += bytes_moved(all.fused.steps[i]);
    }
    ASSERT_EQ(mine.fused.steps.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(mine.fused.steps[i].step, names[i]);
    EXPECT_GT(mine.plain.steps.size(), 4 * names.size());
    for (const Schedule* schedule : {&mine.partition.schedule, &mine.plain}) {
      const Module module = parse(print(*schedule), "");
      ASSERT_EQ(module.schedules.size(), 1u);
      EXPECT_TRUE(module.schedules[0] == *schedule);
    }
  }
  EXPECT_EQ(bytes_moved(layer.total), moved);
  EXPECT_LT(3 * moved, bytes_moved(whole.total));
  const std::string svg = picture(layer);
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, ">layer 1<"), 1u);
}

TEST(Picture, IsAnElementOfAPageWithoutPaper) {
  const Report made = llama(0);
  const std::string file = picture(made), element = picture(made, Svg::Form::element);
  expect_well_formed(element);
  EXPECT_EQ(count(file, "xmlns"), 1u);
  EXPECT_EQ(count(element, "xmlns"), 0u);
  EXPECT_EQ(count(element, "fill=\"white\""), 0u);
  EXPECT_EQ(count(element, "<text"), count(file, "<text"));
}

TEST(Picture, MarksWhatAccumulates) {
  const Program program =
      parse("program p(x: bf16[M, K], d: bf16[M, N]) -> (w: +f32[N, K]) {\n  w += d @ x\n}\n", "")
          .find("");
  const Report made = report(program, {{"M", 4}, {"K", 4}, {"N", 4}});
  EXPECT_EQ(count(picture(made), ">+=  gemm<"), 1u);
}

TEST(Picture, IsWrittenAsAWhole) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "coda_picture_test";
  std::filesystem::create_directories(folder);
  const Report made = llama(0);
  write_picture(made, folder / "a.svg");
  EXPECT_EQ(read_file(folder / "a.svg"), picture(made));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  EXPECT_THROW(write_picture(made, folder / "missing" / "a.svg"), ProgramError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace coda
