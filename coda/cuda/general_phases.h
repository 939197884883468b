// coda/cuda/general_phases.h: the kernels of the predicated path, one after the other.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coda/cuda/element.h"
#include "coda/cuda/general.h"

namespace coda::cuda {

inline constexpr int kThreads = 256;  // of a block

// What an earlier kernel stored: dense over `factors`, at a place in the workspace.
struct Stored {
  std::string name;
  std::vector<Factor> factors;
  Lane lane = Lane::f32;
  std::int64_t offset = 0;  // bytes
};

class GeneralPlanner {
 public:
  GeneralPlanner(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
                 const Target& target);
  Plan run();

 private:
  // One kernel while it is written.
  struct Phase {
    Arguments arguments;
    ElementEmitter emitter;
  };
  using Body = std::function<void(Phase&, const Coordinates&)>;

  // A kernel of one thread for each element of `domain`, which `body` is given the coordinates of.
  void each(const std::string& stem, const std::string& comment, const Dim& domain,
            const Body& body);
  // The same with a count of its own: `body` is given the position.
  void each_of(const std::string& stem, const std::string& comment, std::int64_t count,
               const Body& body);
  std::int64_t allocate(std::int64_t bytes);
  Stored stored(const std::string& name, std::vector<Factor> factors, Lane lane);
  std::string pointer(Phase& phase, const Stored& stored) const;
  Emitted read(ElementEmitter& emitter, const Stored& stored, const Coordinates& coordinates) const;
  void write(Phase& phase, const Stored& stored, const Coordinates& coordinates,
             const std::string& value) const;
  void keep(Value value, Stored stored);
  std::string text_of(Value value) const;
  Value representative(Value value) const { return equal_[static_cast<std::size_t>(value.id)]; }
  // `value`, at these coordinates of its factors, into result `result`.
  void store_result(Phase& phase, const Result& result, int tensor, const Coordinates& coordinates,
                    const Emitted& value) const;

  // general_products.cpp
  void products();
  void product(std::size_t space, const Accumulator& accumulator);
  std::vector<std::string> sum_products(
      ElementEmitter& emitter, const Accumulator& accumulator, std::size_t rows,
      std::size_t columns,
      const std::function<ElementEmitter::Named(std::size_t, std::size_t)>& named) const;
  // general_tiles.cpp
  struct TileOperand {
    std::string declaration, value;
  };
  std::optional<TileOperand> tile_operand(Arguments& arguments, const Operand& operand,
                                          const Dim& side, const Dim& depth,
                                          const std::string& name) const;
  // False: the product is small, or of f64, or of more than strided memory.
  bool tiled_product(const Accumulator& accumulator, const Dim& rows, const Dim& columns,
                     const Stored& to, const std::string& stem);
  // general_reduce.cpp
  void reductions();
  void reduce(Value value);
  // Element k of what is reduced into the element of a value at `here`.
  using Term =
      std::function<Emitted(Phase&, const ElementEmitter::Named& here, const Coordinate& k)>;
  // `op` (sum, reduce_max) over the axis that `value` reduces.
  Stored tree(Value value, Op op, const Term& element);
  void materialise(Value value);
  void results();
  void scatter();    // general_scatter.cpp
  void attention();  // general_attention.cpp

  const Checked& checked_;
  const Program& program_;
  const Sizes& sizes_;
  std::span<const Layout> layouts_;
  const Target& target_;
  Lane real_;
  Precision precision_;
  Plan plan_;
  std::vector<Value> equal_;
  std::map<std::int32_t, Stored> kept_;  // by value
};

}  // namespace coda::cuda
