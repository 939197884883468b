// coda/cuda/plan_json.cpp: plans as JSON. A word is ["number", 3], ["pointer", tensor, plus],
// ["workspace", plus] or ["table", table, plus]; an axis of a map [extent, stride, box].
#include "coda/cuda/plan_json.h"

#include <array>
#include <string_view>

#include "coda/core/error.h"

namespace coda::cuda {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kKinds = {"number", "pointer", "workspace", "table"};

json map_json(const MapSpec& map) {
  json axes = json::array();
  for (const MapSpec::Axis& axis : map.axes) axes.push_back({axis.extent, axis.stride, axis.box});
  json out = {{"tensor", map.tensor},    {"offset", map.offset},   {"dtype", name_of(map.dtype)},
              {"axes", std::move(axes)}, {"swizzle", map.swizzle}, {"promotion", map.promotion}};
  if (map.workspace) out["workspace"] = *map.workspace;
  return out;
}

json word_json(const Word& word) {
  json out = {kKinds[static_cast<std::size_t>(word.kind)]};
  const bool has_index = word.kind == Word::Kind::pointer || word.kind == Word::Kind::table;
  if (has_index) out.push_back(word.tensor);
  out.push_back(word.value);
  return out;
}

json launch_json(const Launch& launch) {
  json maps = json::array(), words = json::array();
  for (const MapSpec& map : launch.maps) maps.push_back(map_json(map));
  for (const Word& word : launch.words) words.push_back(word_json(word));
  return {{"entry", launch.entry},     {"maps", std::move(maps)}, {"words", std::move(words)},
          {"grid", launch.grid},       {"block", launch.block},   {"shared", launch.shared},
          {"cluster", launch.cluster}, {"zeroed", launch.zeroed}};
}

[[noreturn]] void refuse(const std::string& what) {
  throw ProgramError("a plan has " + what, "make it again with coda build");
}

int index(const json& from, std::size_t count, const char* what) {
  const auto i = from.get<std::int64_t>();
  if (i < 0 || static_cast<std::size_t>(i) >= count) {
    refuse("the " + std::string(what) + " " + std::to_string(i) + " of " + std::to_string(count));
  }
  return static_cast<int>(i);
}

MapSpec map_from(const json& from, std::size_t tensors) {
  MapSpec map;
  map.tensor = index(from.at("tensor"), tensors, "tensor");
  map.offset = from.at("offset");
  const auto dtype = dtype_from(from.at("dtype").get<std::string>());
  if (!dtype) refuse("the dtype " + from["dtype"].dump());
  map.dtype = *dtype;
  for (const json& axis : from.at("axes")) map.axes.push_back({axis.at(0), axis.at(1), axis.at(2)});
  map.swizzle = from.at("swizzle");
  map.promotion = from.at("promotion");
  if (from.contains("workspace")) map.workspace = from["workspace"].get<std::int64_t>();
  return map;
}

Word word_from(const json& from, std::size_t tensors, std::size_t tables) {
  const auto name = from.at(0).get<std::string>();
  for (std::size_t k = 0; k < kKinds.size(); ++k) {
    if (kKinds[k] != name) continue;
    Word word{.kind = static_cast<Word::Kind>(k)};
    if (word.kind == Word::Kind::pointer) word.tensor = index(from.at(1), tensors, "tensor");
    if (word.kind == Word::Kind::table) word.tensor = index(from.at(1), tables, "table");
    word.value = from.at(from.size() - 1);
    return word;
  }
  refuse("a word of the kind " + from.at(0).dump());
}

Launch launch_from(const json& from, std::size_t tensors, std::size_t tables) {
  Launch launch;
  launch.entry = from.at("entry");
  for (const json& map : from.at("maps")) launch.maps.push_back(map_from(map, tensors));
  for (const json& word : from.at("words")) {
    launch.words.push_back(word_from(word, tensors, tables));
  }
  launch.grid = from.at("grid");
  launch.block = from.at("block");
  launch.shared = from.at("shared");
  launch.cluster = from.at("cluster");
  launch.zeroed = from.value("zeroed", -1);
  const auto words = static_cast<int>(launch.words.size());
  if (launch.zeroed >= words ||
      (launch.zeroed >= 0 && launch.words[launch.zeroed].kind != Word::Kind::workspace)) {
    refuse("the word " + from["zeroed"].dump() + " to be zeroed");
  }
  for (const std::int64_t extent : launch.grid) {
    if (extent < 0) refuse("a grid of " + from["grid"].dump());
  }
  return launch;
}

}  // namespace

json plan_json(const Plan& plan) {
  json launches = json::array();
  for (const Launch& launch : plan.launches) launches.push_back(launch_json(launch));
  return {{"name", plan.name},     {"path", plan.path},
          {"page", plan.page},     {"launches", std::move(launches)},
          {"tables", plan.tables}, {"workspace", plan.workspace},
          {"notes", plan.notes}};
}

Plan plan_from_json(const json& from, std::size_t tensors) {
  Plan plan;
  plan.name = from.at("name");
  plan.path = from.at("path");
  plan.page = from.at("page");
  plan.tables = from.at("tables").get<std::vector<std::vector<std::uint32_t>>>();
  plan.workspace = from.at("workspace");
  plan.notes = from.at("notes").get<std::vector<std::string>>();
  for (const json& launch : from.at("launches")) {
    plan.launches.push_back(launch_from(launch, tensors, plan.tables.size()));
  }
  return plan;
}

json target_json(const Target& target) {
  return {{"architecture", target.architecture},
          {"processors", target.processors},
          {"shared", target.shared},
          {"exclusive", target.exclusive}};
}

Target target_from_json(const json& from) {
  return {.architecture = from.at("architecture"),
          .processors = from.at("processors"),
          .shared = from.at("shared"),
          .exclusive = from.value("exclusive", true)};
}

}  // namespace coda::cuda
