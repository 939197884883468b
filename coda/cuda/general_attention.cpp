// coda/cuda/general_attention.cpp: attention and its gradient, a row of one head a thread.
//
// First the logsumexp of each row of scores by a running maximum (the gradient: the sum of do · o),
// then the results in chunks of the head: each thread computes the scores again and adds up its
// chunk in registers. Memory is linear in the sequences.
#include <algorithm>
#include <cmath>
#include <optional>

#include "coda/core/error.h"
#include "coda/cuda/general_phases.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kChunk = 32;  // elements of a head that a thread holds

// The dims [batch · sequence, heads · size] of an operand, taken apart.
struct Parts {
  Dim batch, position, heads, element;

  explicit Parts(const Type& type) {
    batch = type.dims.at(0);
    position.factors = {batch.factors.back()};
    batch.factors.pop_back();
    heads = type.dims.at(1);
    element.factors = {heads.factors.back()};
    heads.factors.pop_back();
  }
};

}  // namespace

// The call's operands, and what emits their elements at (batch, position, head, element).
class AttentionWriter {
 public:
  AttentionWriter(const Program& program, const Node& call)
      : call_(call),
        first_(call.op == Op::attention_grad ? 1 : 0),
        q_(program.type(operand(0))),
        k_(program.type(operand(1))),
        v_(program.type(operand(2))) {}

  bool is_gradient() const { return first_ == 1; }
  Value operand(std::size_t i) const { return call_.args[first_ + i]; }
  const Parts& q() const { return q_; }
  const Parts& k() const { return k_; }
  const Parts& v() const { return v_; }
  // Of the statistics of each row of scores.
  Dim rows() const { return q_.batch * q_.position * q_.heads; }
  Dim key_rows() const { return k_.batch * k_.position * k_.heads; }

  // Names of a thread's row, and the options; all but `row` are of scope 0.
  struct Row {
    Coordinate batch, position, head;
  };
  Row row(ElementEmitter& emitter, const Parts& parts, const Coordinates& at) const {
    const std::span<const Coordinate> all(at);
    const std::size_t outer = parts.batch.factors.size();
    return {emitter.flat(parts.batch, all.first(outer)), at[outer],
            emitter.flat(parts.heads, all.subspan(outer + 1))};
  }
  // The inverse: coordinates in rows() or key_rows().
  Coordinates statistic(ElementEmitter& emitter, const Parts& parts, const Row& row) const {
    Coordinates at = emitter.divide(row.batch, parts.batch);
    at.push_back(row.position);
    const Coordinates heads = emitter.divide(row.head, parts.heads);
    at.insert(at.end(), heads.begin(), heads.end());
    return at;
  }
  Coordinates element(ElementEmitter& emitter, const Parts& parts, const Row& row,
                      const Coordinate& e) const {
    Coordinates at = statistic(emitter, parts, row);
    at.push_back(e);
    return at;
  }
  std::string load(ElementEmitter& emitter, Value value, const Parts& parts, const Row& row,
                   const Coordinate& e) const {
    return emitter.value(value, element(emitter, parts, row, e), emitter.real()).text;
  }

  std::optional<Emitted> option(ElementEmitter& emitter, std::string_view name, Lane lane) const {
    const std::size_t options = call_.args.size() - call_.attr.keywords.size();
    for (std::size_t i = 0; i < call_.attr.keywords.size(); ++i) {
      if (call_.attr.keywords[i] == name) return emitter.value(call_.args[options + i], {}, lane);
    }
    return std::nullopt;
  }
  // "visible_keys(position, …)"
  std::string visible(ElementEmitter& emitter, const std::string& function,
                      const Coordinate& position) const {
    const auto causal = option(emitter, "causal", Lane::truth);
    const auto window = option(emitter, "window", Lane::i64);
    return function + "(" + position.text + ", " + emitter.arguments().extent(q_.position) + ", " +
           emitter.arguments().extent(k_.position) + ", " + (causal ? causal->text : "false") +
           ", " + (window ? window->text : "0LL") + ")";
  }
  Coordinate key_head(ElementEmitter& emitter, const Coordinate& head) const {
    return emitter.coordinate("key_head", head.text + " / (" + group(emitter) + ")", head.depth);
  }
  std::string group(ElementEmitter& emitter) const {
    return emitter.arguments().extent(q_.heads) + " / " + emitter.arguments().extent(k_.heads);
  }

  // Σ over the head of a · b.
  std::string dot(ElementEmitter& emitter, std::string_view stem, const Dim& size, int depth,
                  const std::function<std::string(const Coordinate&)>& a,
                  const std::function<std::string(const Coordinate&)>& b) const {
    return emitter
        .sum(stem, emitter.real(), depth, "0LL", emitter.arguments().extent(size),
             [&](const Coordinate& e) {
               return Emitted{emitter.call(Op::mul, {a(e), b(e)}), emitter.real(), e.depth};
             })
        .text;
  }
  std::string scale(ElementEmitter& emitter) const {
    if (const auto given = option(emitter, "scale", emitter.real())) return given->text;
    const std::string type(type_of(emitter.real()));
    return emitter.define(
        type, "scale",
        "exact::rsqrt(lane<" + type + ">(" + emitter.arguments().extent(q_.element) + "))", 0);
  }
  // In the innermost scope: scale, then cap.
  std::string score(ElementEmitter& emitter, const Row& query, const Row& key) const {
    const int depth = emitter.depth();
    const std::string product = dot(
        emitter, "product", q_.element, depth,
        [&](const Coordinate& e) { return load(emitter, operand(0), q_, query, e); },
        [&](const Coordinate& e) { return load(emitter, operand(1), k_, key, e); });
    const std::string type(type_of(emitter.real()));
    const std::string scaled =
        emitter.define(type, "score", emitter.call(Op::mul, {scale(emitter), product}), depth);
    const auto cap = option(emitter, "softcap", emitter.real());
    if (!cap) return scaled;
    const std::string capped = emitter.call(
        Op::mul, {cap->text, emitter.call(Op::tanh, {emitter.call(Op::div, {scaled, cap->text})})});
    return emitter.define(type, "score", cap->text + " == 0 ? " + scaled + " : " + capped, depth);
  }
  // d score / d (scale · q · k), from the score.
  std::string slope(ElementEmitter& emitter, const std::string& score) const {
    const auto cap = option(emitter, "softcap", emitter.real());
    if (!cap) return literal(1, emitter.real());
    const std::string ratio = "(" + score + " / " + cap->text + ")";
    return "(" + cap->text + " == 0 ? 1 : 1 - " + ratio + " * " + ratio + ")";
  }

 private:
  const Node& call_;
  std::size_t first_;
  Parts q_, k_, v_;
};

void GeneralPlanner::attention() {
  const Node* call = nullptr;
  for (const Node& node : program_.nodes()) {
    if (class_of(node.op) == OpClass::opaque) call = &node;
  }
  if (call == nullptr) throw InternalError(program_.name() + " holds no attention");
  const AttentionWriter writer(program_, *call);
  using Row = AttentionWriter::Row;
  const std::string type(type_of(real_));
  const auto results_of = [&](std::size_t slot) {
    std::vector<std::size_t> results;
    for (std::size_t r = 0; r < program_.results().size(); ++r) {
      if (program_.results()[r].value == call->results[slot]) results.push_back(r);
    }
    return results;
  };
  const auto store = [&](Phase& phase, std::size_t slot, const Coordinates& at,
                         const std::string& value) {
    for (const std::size_t r : results_of(slot)) {
      store_result(phase, program_.results()[r], static_cast<int>(program_.params().size() + r), at,
                   {value, real_, phase.emitter.depth()});
    }
  };
  const auto name = [&](const std::string& stem, ElementEmitter& emitter) {
    return emitter.fresh(stem);
  };

  // A chunk of a row of result `slot`: `terms` opens loops and adds by `add(weight, element)`.
  using Element = std::function<std::string(const Coordinate&)>;
  using Add = std::function<void(const std::string&, const Element&)>;
  const auto chunked = [&](std::size_t slot, const std::string& stem, const std::string& comment,
                           const Parts& parts, const Dim& size,
                           const std::function<void(Phase&, const Row&, const Add&)>& terms) {
    if (results_of(slot).empty()) return;
    const Dim rows = parts.batch * parts.position * parts.heads;
    const Dim domain = rows * dim_of(Factor::blocks(size, kChunk));
    each(stem, comment, domain, [&](Phase& phase, const Coordinates& at) {
      ElementEmitter& emitter = phase.emitter;
      const Row row = writer.row(emitter, parts, {at.begin(), at.end() - 1});
      const std::string sums = emitter.fresh("sums");
      const std::string first =
          emitter.coordinate("first", at.back().text + " * " + std::to_string(kChunk), 1).text;
      const std::string count =
          emitter
              .coordinate("count",
                          "exact::minimum(" + phase.arguments.extent(size) + " - " + first + ", " +
                              std::to_string(kChunk) + "LL)",
                          1)
              .text;
      emitter.line(type + " " + sums + "[" + std::to_string(kChunk) + "] = {};");
      const auto loop = [&](const std::function<void(const std::string&)>& body) {
        const std::string e = emitter.fresh("e");
        emitter.line("#pragma unroll");
        emitter.open("for (int " + e + " = 0; " + e + " < " + std::to_string(kChunk) + "; ++" + e +
                     ")");
        emitter.open("if (" + e + " < " + count + ")");
        body(e);
        emitter.close();
        emitter.close();
      };
      const auto place = [&](const std::string& e) {
        return emitter.coordinate("element", first + " + " + e, emitter.depth());
      };
      terms(phase, row, [&](const std::string& weight, const Element& element) {
        loop([&](const std::string& e) {
          const std::string term = emitter.call(Op::mul, {weight, element(place(e))});
          emitter.line(sums + "[" + e +
                       "] = " + emitter.call(Op::add, {sums + "[" + e + "]", term}) + ";");
        });
      });
      loop([&](const std::string& e) {
        store(phase, slot, writer.element(emitter, parts, row, place(e)), sums + "[" + e + "]");
      });
    });
  };
  // Loops over what a row sees; gives the index.
  const auto loop_over = [&](Phase& phase, const std::string& function, const Coordinate& position,
                             const std::string& index) {
    ElementEmitter& emitter = phase.emitter;
    const std::string seen = emitter.define(
        "Visible", "seen", writer.visible(emitter, function, position), emitter.depth());
    const std::string j = emitter.fresh(index);
    emitter.open("for (long long " + j + " = " + seen + ".first; " + j + " < " + seen +
                 ".last; ++" + j + ")");
    return Coordinate{j, emitter.depth()};
  };

  const Dim rows = writer.rows();
  const Stored kept = stored(writer.is_gradient() ? "mean" : "lse", rows.factors, real_);
  const auto kept_at = [&](Phase& phase, const Row& row) {
    return read(phase.emitter, kept, writer.statistic(phase.emitter, writer.q(), row)).text;
  };
  if (!writer.is_gradient()) {
    each(
        "lse", "the logsumexp of each row of scores", rows,
        [&](Phase& phase, const Coordinates& at) {
          ElementEmitter& emitter = phase.emitter;
          const Row query = writer.row(emitter, writer.q(), at);
          const Coordinate head = writer.key_head(emitter, query.head);
          const std::string largest = name("largest", emitter), total = name("total", emitter);
          const std::string least = "-" + literal(HUGE_VAL, real_);
          emitter.line(type + " " + largest + " = " + least + ", " + total + " = 0;");
          const Coordinate j = loop_over(phase, "visible_keys", query.position, "key");
          const std::string score = writer.score(emitter, query, {query.batch, j, head});
          const std::string next = emitter.fresh("next");
          emitter.line("const " + type + " " + next + " = " +
                       emitter.call(Op::maximum, {largest, score}) + ";");
          // NOTE: while all scores are -inf, -inf - -inf would be a NaN.
          emitter.open("if (" + next + " != " + least + ")");
          const auto share = [&](const std::string& x) {
            return emitter.call(Op::exp, {x + " - " + next});
          };
          emitter.line(total + " = " + total + " * " + share(largest) + " + " + share(score) + ";");
          emitter.close();
          emitter.line(largest + " = " + next + ";");
          emitter.close();
          const std::string lse = emitter.fresh("lse");
          emitter.line("const " + type + " " + lse + " = " + largest + " + exact::log(" + total +
                       ");");
          write(phase, kept, at, lse);
          store(phase, 1, at, lse);
        });
    chunked(0, "o", text_of(call->results[0]), writer.q(), writer.v().element,
            [&](Phase& phase, const Row& query, const Add& add) {
              ElementEmitter& emitter = phase.emitter;
              const Coordinate head = writer.key_head(emitter, query.head);
              const std::string lse = kept_at(phase, query);
              const Coordinate j = loop_over(phase, "visible_keys", query.position, "key");
              const Row key{query.batch, j, head};
              const std::string score = writer.score(emitter, query, key);
              const std::string p = emitter.define(
                  type, "p", emitter.call(Op::exp, {score + " - " + lse}), emitter.depth());
              add(p, [&](const Coordinate& e) {
                return writer.load(emitter, writer.operand(2), writer.v(), key, e);
              });
              emitter.close();
            });
    return;
  }

  const Value d_o = call->args[0], o = call->args[4], lse_value = call->args[5];
  Parts output = writer.q();
  output.element = writer.v().element;
  each("mean", "the sum of p · dp of each row of scores: do · o", rows,
       [&](Phase& phase, const Coordinates& at) {
         ElementEmitter& emitter = phase.emitter;
         const Row query = writer.row(emitter, writer.q(), at);
         const auto side = [&](Value value) {
           return [&, value](const Coordinate& e) {
             return writer.load(emitter, value, output, query, e);
           };
         };
         write(phase, kept, at,
               writer.dot(emitter, "mean", output.element, emitter.depth(), side(d_o), side(o)));
       });
  // In the innermost scope: the probability, and the gradient of scale · q · k times the scale.
  const auto probability = [&](Phase& phase, const Row& query, const Row& key) {
    ElementEmitter& emitter = phase.emitter;
    const std::string score = writer.score(emitter, query, key);
    Coordinates at = writer.statistic(emitter, writer.q(), query);
    at.resize(factors_of(program_.type(lse_value)).size());
    const std::string lse = emitter.value(lse_value, at, real_).text;
    const std::string p =
        emitter.define(type, "p", emitter.call(Op::exp, {score + " - " + lse}), emitter.depth());
    return std::pair(score, p);
  };
  const auto gradient = [&](Phase& phase, const Row& query, const Row& key) {
    ElementEmitter& emitter = phase.emitter;
    const auto [score, p] = probability(phase, query, key);
    const std::string dp = writer.dot(
        emitter, "dp", output.element, emitter.depth(),
        [&](const Coordinate& e) { return writer.load(emitter, d_o, output, query, e); },
        [&](const Coordinate& e) {
          return writer.load(emitter, writer.operand(2), writer.v(), key, e);
        });
    const std::string text = p + " * (" + dp + " - " + kept_at(phase, query) + ") * " +
                             writer.slope(emitter, score) + " * " + writer.scale(emitter);
    return emitter.define(type, "ds", text, emitter.depth());
  };
  chunked(0, "dq", "dq", writer.q(), writer.q().element,
          [&](Phase& phase, const Row& query, const Add& add) {
            ElementEmitter& emitter = phase.emitter;
            const Coordinate head = writer.key_head(emitter, query.head);
            const Coordinate j = loop_over(phase, "visible_keys", query.position, "key");
            const Row key{query.batch, j, head};
            add(gradient(phase, query, key), [&](const Coordinate& e) {
              return writer.load(emitter, writer.operand(1), writer.k(), key, e);
            });
            emitter.close();
          });
  // Over the query heads of a key's head, then over the queries that see it.
  const auto over_queries = [&](Phase& phase, const Row& key,
                                const std::function<void(const Row&)>& body) {
    ElementEmitter& emitter = phase.emitter;
    const std::string group = emitter.coordinate("group", writer.group(emitter), 0).text;
    const std::string head = emitter.fresh("head");
    emitter.open("for (long long " + head + " = " + key.head.text + " * " + group + "; " + head +
                 " < (" + key.head.text + " + 1) * " + group + "; ++" + head + ")");
    const Coordinate own{head, emitter.depth()};
    const Coordinate i = loop_over(phase, "visible_queries", key.position, "query");
    body({key.batch, i, own});
    emitter.close();
    emitter.close();
  };
  chunked(1, "dk", "dk", writer.k(), writer.k().element,
          [&](Phase& phase, const Row& key, const Add& add) {
            over_queries(phase, key, [&](const Row& query) {
              add(gradient(phase, query, key), [&](const Coordinate& e) {
                return writer.load(phase.emitter, writer.operand(0), writer.q(), query, e);
              });
            });
          });
  chunked(2, "dv", "dv", writer.v(), writer.v().element,
          [&](Phase& phase, const Row& key, const Add& add) {
            over_queries(phase, key, [&](const Row& query) {
              add(probability(phase, query, key).second, [&](const Coordinate& e) {
                return writer.load(phase.emitter, d_o, output, query, e);
              });
            });
          });
}

}  // namespace coda::cuda
