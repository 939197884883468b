// coda/cuda/general_scatter.cpp: scatter_sum by sorting.
//
// Every position gets the key id · n + position; the keys are sorted by merging runs, and an
// element of the result adds up the run of its own id, in the order of positions. No atomics: the
// order of a sum is a function of the ids alone.
#include "coda/core/error.h"
#include "coda/cuda/general_phases.h"

namespace coda::cuda {

void GeneralPlanner::scatter() {
  const Node& node = program_.nodes()[0];
  if (program_.nodes().size() != 1) throw InternalError("scatter_sum does not stand alone");
  const Value values = node.args[0], ids = node.args[1], value = node.results[0];
  const Dim positions{factors_of(program_.type(ids))};
  const std::int64_t count = require_extent(positions, sizes_);
  const Dim each_position = positions;

  std::int64_t from = allocate(count * 8), to = allocate(count * 8);
  each("keys", "the id of each position, and the position", positions,
       [&](Phase& phase, const Coordinates& at) {
         ElementEmitter& emitter = phase.emitter;
         const std::string size = phase.arguments.extent(node.attr.axis);
         const std::string id = emitter.value(ids, at, Lane::i64).text;
         const std::string valid = id + " >= 0 && " + id + " < " + size;
         emitter.line(phase.arguments.workspace("keys", "long long", from) + "[i] = (" + valid +
                      " ? " + id + " : " + size + ") * " + phase.arguments.number("count", count) +
                      " + i;");
       });
  // One kernel, launched until a single run is left. Its words: count, width, from, to.
  for (std::int64_t width = 1; width < count; width *= 2) {
    if (width == 1) {
      each_of("merge", "every two runs of `width` sorted keys become one", count,
              [&](Phase& phase, const Coordinates&) {
                Arguments& arguments = phase.arguments;
                const std::string size = arguments.number("count", count);
                const std::string run = arguments.number("width", width);
                const std::string keys = arguments.workspace("from", "long long", from);
                phase.emitter.line(arguments.workspace("to", "long long", to) + "[merged_place(" +
                                   keys + ", " + size + ", " + run + ", i)] = " + keys + "[i];");
              });
    } else {
      Launch launch = plan_.launches.back();
      launch.words.at(1).value = width;
      launch.words.at(2).value = from;
      launch.words.at(3).value = to;
      plan_.launches.push_back(std::move(launch));
    }
    std::swap(from, to);
  }

  const std::vector<Factor> factors = factors_of(program_.type(value));
  const auto sum = [&](Phase& phase, const Coordinates& at) {
    ElementEmitter& emitter = phase.emitter;
    const ElementEmitter::Named here{factors, at};
    ElementEmitter::Named own = here;
    Coordinates digits;
    for (const Factor& factor : node.attr.axis.factors) {
      for (std::size_t f = 0; f < factors.size(); ++f) {
        if (factors[f] == factor) digits.push_back(at[f]);
      }
    }
    const Coordinate id = emitter.flat(node.attr.axis, digits);
    const std::string n = phase.arguments.number("positions", count);
    const std::string keys = phase.arguments.workspace("keys", "long long", from);
    const auto bound = [&](const std::string& first, const std::string& key) {
      return emitter
          .coordinate("bound", "lower_bound(" + keys + ", " + first + ", " + n + ", " + key + ")",
                      id.depth)
          .text;
    };
    const std::string first = bound("0", id.text + " * " + n);
    const std::string last = bound(first, "(" + id.text + " + 1) * " + n);
    const Lane lane = lane_of(program_, value, real_);
    return emitter.sum("total", lane, depth_of(at), first, last, [&](const Coordinate& k) {
      const Coordinate position = emitter.coordinate(
          "position", keys + "[" + k.text + "] - " + id.text + " * " + n, k.depth);
      ElementEmitter::Named all = here;
      all.add(positions.factors, emitter.divide(position, positions));
      return emitter.value(values, emitter.by_name(values, all), lane);
    });
  };
  if (program_.results().size() == 1) {
    const Result& result = program_.results()[0];
    each("store_" + result.name, text_of(value), Dim{factors},
         [&](Phase& phase, const Coordinates& at) {
           const Emitted total = sum(phase, at);
           store_result(phase, result, static_cast<int>(program_.params().size()), at, total);
         });
    return;
  }
  const Stored stored = this->stored("sums", factors, lane_of(program_, value, real_));
  each("sums", text_of(value), Dim{factors},
       [&](Phase& phase, const Coordinates& at) { write(phase, stored, at, sum(phase, at).text); });
  keep(value, stored);
  results();
}

}  // namespace coda::cuda
