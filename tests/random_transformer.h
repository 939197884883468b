// tests/random_transformer.h: random blocks that look like Transformers, for properties of
// rewriting.
//
// A block is a stream of rows [tokens, D] that goes through a few random pieces: norms of every
// kind, products with and without biases and adapters, gates, residual adds, attention, heads. The
// mix is made so that every rule of the algebra often applies, and often almost does: a norm's
// result that a map reads, a scale along the contraction, a pin in between, sixteen bits of f16.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "coda/rewrite/grad.h"
#include "tests/random_text.h"

namespace coda::testing {

class RandomTransformer : public RandomText {
 public:
  // `pieces`: how many; 0: a random number of them.
  explicit RandomTransformer(std::uint64_t seed, int pieces = 0) : RandomText(seed) {
    draw_frame();
    start();
    // Rewriting takes longer than a block grows: most are short.
    is_short_ = pieces == 0 && chance(85);
    const int count = pieces > 0 ? pieces : is_short_ ? 1 : 1 + chance(25) + chance(8);
    for (int i = 0; i < count; ++i) piece();
    if (chance(is_short_ ? 5 : 12)) head();
    finish();
  }

  const GradOptions& gradients() const { return gradients_; }

 private:
  // ---- norms ----

  Text norm_weight(const Text& dims) {
    const Text g = vector("g", dims);
    if (has("1 + gamma", 20)) return "(1 + " + g + ")";
    if (has("scaled gamma", 5)) return "(" + g + " * 2)";
    return g;
  }
  Text mean_of(const Text& v, const Text& axis) {
    return chance(50) ? "mean(" + v + ", " + axis + ")"
                      : "sum(" + v + ", " + axis + ") / size(" + axis + ")";
  }

  // Of `v`, a name; along `axis`: its width, or the head's.
  Text norm(const Text& v, const Text& axis) {
    const Text outer = axis == "E" ? rows_ + ", " + v_heads(v) : rows_;
    const Text square = v + " * " + v;
    switch (one_of(12)) {
      case 0:
      case 1:
      case 2:
        features_.insert("rmsnorm");
        return "rmsnorm(" + v + ", " + norm_weight(axis) + ", " + eps_ + ")";
      case 3: {
        features_.insert("rmsnorm by hand");
        const Text r = let("r", outer, "rsqrt(" + mean_of(square, axis) + " + " + eps_ + ")");
        const Text g = norm_weight(axis);
        switch (one_of(5)) {
          case 0:
            return r + " * " + v + " * " + g;
          case 1:
            return v + " * " + g + " * " + r;
          case 2:
            return g + " * (" + v + " * " + r + ")";
          case 3:
            return v + " * (" + r + " * " + g + ")";
          default:
            return r + " * " + v;
        }
      }
      case 4: {
        features_.insert("norm by division");
        const Text root = "sqrt(" + mean_of(square, axis) + " + " + eps_ + ")";
        return v + " / " + root + (chance(50) ? " * " + norm_weight(axis) : "");
      }
      case 5:
      case 6:
      case 7:
        features_.insert("layernorm");
        return "layernorm(" + v + ", " + norm_weight(axis) + ", " + vector("b", axis) + ", " +
               eps_ + ")";
      case 8:
      case 9: {
        features_.insert("layernorm by hand");
        const Text c = let("c", dims_[v], v + " - " + mean_of(v, axis));
        const Text n = c + " * rsqrt(" + mean_of(c + " * " + c, axis) + " + " + eps_ + ")";
        return n + (chance(60) ? " * " + norm_weight(axis) : "") +
               (chance(30) ? " + " + vector("b", axis) : "");
      }
      case 10:
        features_.insert("norm without mean");
        return v + " * rsqrt(sum(" + square + ", " + axis + ") + " + eps_ + ")";
      default:
        features_.insert("softmax of a row");
        return "exp(" + v + " - logsumexp(" + v + ", " + axis + "))";
    }
  }
  static Text heads_of(const Text& width) { return width.substr(0, width.find('*')); }
  Text v_heads(const Text& v) { return heads_of(dims_[v].substr(dims_[v].find(", ") + 2)); }

  Text name_of(const Text& v, const Text& width) {
    return dims_.contains(v) ? v : let("v", rows_ + ", " + width, v);
  }

  // What the products of a branch read: mostly a norm of the stream.
  Text normed() {
    if (!norm_.empty() && norm_of_ == stream_ && has("norm used again", 35)) return norm_;
    if (has("no norm", 12)) return stream_;
    Text n = norm(stream_, "D");
    if (has("norm of a norm", 8)) n = norm(let("n", rows_ + ", D", n), "D");
    if (has("map of a norm", 8)) n = pick({"tanh", "sigmoid", "silu"}) + "(" + n + ")";
    n = cast(scaled(in_brackets(n), "D", 12), 20);
    norm_ = let("n", rows_ + ", D", n);
    norm_of_ = stream_;
    return norm_;
  }

  // ---- products ----

  Text weight_of(const Text& out, const Text& in) {
    const bool turned = has("weight [in, out]", 25);
    const Text dims = turned ? in + ", " + out : out + ", " + in;
    if (!weights_[dims].empty() && has("weight used twice", 15)) return weights_[dims][0];
    Text w = weight("w", dims);
    if (has("scaled weight", 8)) {
      w = "(" + w + " * " + (chance(50) ? vector("c", in) : vector("c", out)) + ")";
    }
    if (has("weight norm", 4)) w = "rmsnorm(" + w + ", " + vector("g", in) + ", " + eps_ + ")";
    return w;
  }
  // v @ w; `v` is a name or in brackets, [rows, in]. The same width twice is a rename.
  Text bare_product(const Text& v, const Text& in, const Text& out) {
    if (in == out) {
      return "(" + v + " @ " + weight_of("C", in) + ") as [" + rows_ + ", " + out + "]";
    }
    const Text at = in.find('*') == Text::npos ? " @ " : " @[" + in + "] ";
    return v + at + weight_of(out, in);
  }
  Text product(const Text& v, const Text& in, const Text& out) {
    Text z = bare_product(v, in, out);
    if (in != "R" && out != "R" && has("adapter", 10)) {
      z += " + " + bare_product("(" + bare_product(v, in, "R") + ")", "R", out);
      if (chance(40)) z += " * 0.5";
    }
    if (has("summed products", 5)) z += " + " + bare_product(v, in, out);
    if (has("bias", 35)) z += " + " + vector("b", out);
    return scaled(in_brackets(z), out, 8);
  }

  Text gate(const Text& v) {
    switch (one_of(16)) {
      case 0:
        return "gelu(" + v + ")";
      case 1:
        return "gelu_tanh(" + v + ")";
      case 2: {
        const Text relu = "relu(" + v + ")";
        return relu + " * " + relu;
      }
      case 3:
      case 4:
      case 5:
        return "tanh(" + v + ")";
      case 6:
      case 7:
      case 8:
        return v;
      default:
        return "silu(" + v + ")";
    }
  }

  // ---- the stream ----

  void set_stream(const Text& expression) { stream_ = let("h", rows_ + ", D", expression); }

  void start() {
    if (has("embedding", 15)) {
      const Text ids = param("ids", rows_, "i64");
      Text x = weight("table", "V, D") + "[" + ids + "]";
      if (batched_ && chance(40)) x += " + " + weight("positions", "P, D") + "[index(S)]";
      set_stream(scaled(in_brackets(x), "D", 30));
    } else if (has("product first", 40)) {
      const Text a = param("a", rows_ + ", F", dtype_);
      const Text x = param("x", rows_ + ", D", dtype_);
      set_stream(x + " + " + product(a, "F", "D"));
    } else {
      const Text x = param("x", rows_ + ", D", dtype_);
      stream_ = x;
      dims_[x] = rows_ + ", D";
    }
  }

  // Back to the stream with a branch's [rows, D].
  void join_stream(Text branch) {
    branch = scaled(in_brackets(branch), "D", 8);
    if (has("LayerScale", 10)) branch = vector("scale", "D") + " * " + branch;
    if (has("dropout", 8)) {
      branch = "dropout(" + branch + ", " + scalar("rate") + ", " + seed_param() + ")";
    }
    if (has("post-norm of the branch", 12)) {
      branch = norm(let("y", rows_ + ", D", branch), "D");
      if (chance(50)) branch = in_brackets(branch);
    }
    if (has("no residual", 10)) return set_stream(branch);
    const Text sum =
        chance(80) ? stream_ + " + " + in_brackets(branch) : in_brackets(branch) + " + " + stream_;
    if (has("post-norm of the stream", 10)) {
      return set_stream(norm(let("y", rows_ + ", D", sum), "D"));
    }
    set_stream(sum);
  }
  Text seed_param() {
    if (scalars_.insert("seed").second) params_.push_back({"seed", "i64"});
    return "seed";
  }

  // ---- pieces ----

  void piece() {
    if (is_short_) return short_piece();
    switch (one_of(16)) {
      case 0:
      case 1:
      case 2:
        return join_stream(gated_branch());
      case 3:
      case 4:
        return join_stream(plain_branch());
      case 5:
      case 6:
      case 7:
        return attention_branch();
      case 8:
        return linear_attention();
      case 9:
        features_.insert("product of a product");
        return join_stream(
            bare_product(value("z", "F", bare_product(normed(), "D", "F")), "F", "D"));
      case 10:
        features_.insert("parallel branches");
        return join_stream(gated_branch() + " + " + plain_branch());
      case 11:
        features_.insert("map of the stream");
        return set_stream(cast(odd(stream_, "D"), 40));
      case 12:
        features_.insert("norm in the stream");
        return set_stream(norm(stream_, "D"));
      case 13:
        return router();
      case 14:
        features_.insert("norm is a result");
        results_.insert(normed());
        return;
      default:
        return side_by_side();
    }
  }

  void short_piece() {
    switch (one_of(12)) {
      case 0:
        return join_stream(product(normed(), "D", "D"));
      case 1:
      case 2:
      case 3:
      case 4:
        features_.insert("product alone");
        let("z", rows_ + ", F", gate(in_brackets(product(normed(), "D", "F"))));
        return;
      case 5:
      case 6: {
        features_.insert("head norm");
        const Text z = let("z", rows_ + ", H*E", product(normed(), "D", "H*E"));
        let("q", rows_ + ", H*E", chance(50) ? rope(z, one_of(3)) : norm(z, "E"));
        return;
      }
      case 7:
        return set_stream(product(name_of(norm(stream_, "D"), "D"), "D", "D"));
      case 8:
        return linear_attention();
      case 9:
        return router();
      case 10:
        return join_stream(plain_branch());
      default:
        return side_by_side();
    }
  }

  Text gated_branch() {
    features_.insert("gate");
    const Text n = normed();
    if (has("packed weight", 20)) {
      const Text g = "g" + std::to_string(++count_), u = "up" + std::to_string(++count_);
      const Text z = in_brackets(product(n, "D", "U"));
      read(z);
      body_ += "  " + g + ", " + u + " = split(" + z + ", U: F, F)\n";
      declare(g, rows_ + ", F");
      declare(u, rows_ + ", F");
      return product(value("y", "F", gate(g) + " * " + u), "F", "D");
    }
    const Text g = value("g", "F", product(n, "D", "F"));
    const Text u = value("up", "F", product(n, "D", "F"));
    return product(cast(value("y", "F", gate(g) + " * " + u), 8), "F", "D");
  }
  Text plain_branch() {
    const Text g = let("z", rows_ + ", F", product(normed(), "D", "F"));
    return product(value("y", "F", gate(g)), "F", "D");
  }

  // Kinds as in the prelude; 3: none.
  Text rope(const Text& v, int kind) {
    if (kind == 3) return v;
    const Text half = kind == 2 ? "T/2" : "E/2", end = kind == 2 ? "_partial" : "";
    for (const char* each : {"cos", "sin"}) {
      if (!scalars_.insert(each + end).second) continue;
      params_.push_back({each + end, "f32[" + sequence_ + ", " + half + "]"});
    }
    const Text name = kind == 0 ? "rope" : kind == 1 ? "rope_adjacent" : "rope_partial";
    return name + "(" + v + ", cos" + end + ", sin" + end + ")";
  }

  // q, k and v from one norm, by three weights or a packed one.
  std::vector<Text> projections() {
    const Text n = normed();
    std::vector<Text> made;
    if (has("packed weight", 25)) {
      Text z =
          in_brackets(bare_product(n, "D", "N") + (chance(40) ? " + " + vector("b", "N") : ""));
      read(z);
      for (const char* base : {"q", "k", "v"}) made.push_back(base + std::to_string(++count_));
      body_ += "  " + made[0] + ", " + made[1] + ", " + made[2] + " = split(" + z +
               ", N: H*E, G*E, G*E)\n";
      declare(made[0], rows_ + ", H*E");
      declare(made[1], rows_ + ", G*E");
      declare(made[2], rows_ + ", G*E");
    } else {
      made.push_back(let("q", rows_ + ", H*E", product(n, "D", "H*E")));
      made.push_back(let("k", rows_ + ", G*E", product(n, "D", "G*E")));
      made.push_back(let("v", rows_ + ", G*E", product(n, "D", "G*E")));
    }
    if (has("head norm", 30)) {
      made[0] = let("q", rows_ + ", H*E", norm(made[0], "E"));
      made[1] = let("k", rows_ + ", G*E", norm(made[1], "E"));
    } else if (has("norm over all heads", 20)) {
      made[0] = let("q", rows_ + ", H*E", norm(made[0], "H*E"));
    }
    const int kind = one_of(4);
    if (kind == 3) return made;
    features_.insert(kind == 2 ? "partial rope" : "rope");
    made[0] = let("q", rows_ + ", H*E", rope(made[0], kind));
    made[1] = let("k", rows_ + ", G*E", rope(made[1], kind));
    return made;
  }

  void attention_branch() {
    const std::vector<Text> made = projections();
    if (has("q, k and v are results", 25)) {
      results_.insert(made.begin(), made.end());
      return;
    }
    features_.insert("attention");
    Text options;
    if (chance(60)) options += ", causal: true";
    if (chance(15)) options += ", scale: 0.5";
    if (chance(15)) options += ", softcap: 20";
    const Text o = "o" + std::to_string(++count_);
    const Text call = "attention(" + made[0] + ", " + made[1] + ", " + made[2] + options + ")";
    read(call);
    body_ += "  " + o + ", _ = " + call + "\n";
    declare(o, rows_ + ", H*E");
    join_stream(product(o, "H*E", "D"));
  }

  // Products that contract the tokens: a row scale lies along their contraction.
  void linear_attention() {
    features_.insert("transposed contraction");
    const Text n = normed();
    const Text k = chance(50) ? n : let("k", rows_ + ", F", product(n, "D", "F"));
    const Text inner = k == n ? "D" : "F";
    const Text v = let("v", rows_ + ", L", product(n, "D", "L"));
    const Text kv = let("kv", inner + ", L", k + " @[" + rows_ + "] " + v);
    if (chance(30)) return;
    const Text q = inner == "D" ? normed() : let("q", rows_ + ", F", product(n, "D", "F"));
    join_stream(product(let("o", rows_ + ", L", q + " @ " + kv), "L", "D"));
  }

  // A row scale that is a product itself.
  void router() {
    features_.insert("router");
    const Text n = normed();
    const Text p = let("p", rows_, "sigmoid(" + n + " @ " + weight("w", "D") + ")");
    join_stream(p + " * " + in_brackets(plain_branch()));
  }

  void side_by_side() {
    features_.insert("side by side");
    const Text n = normed();
    for (const char* width : {"F", "L"}) {
      const Text z = let("z", rows_ + ", " + width, product(n, "D", width));
      if (chance(40)) let("t", rows_ + ", " + width, gate(z));
      if (chance(20)) let("t", rows_, "sum(" + z + " * " + z + ", " + width + ")");
    }
  }

  void head() {
    features_.insert("head");
    if (has("several chunks of a vocabulary", 50)) sizes_["V"] = pick({300, 520});
    const Text target = param("target", rows_, "i64");
    Text logits = bare_product(normed(), "D", "V");
    if (chance(20)) logits += " + " + vector("b", "V");
    if (chance(20)) logits = "softcap(" + logits + ", 5)";
    const Text z = let("z", rows_ + ", V", logits);
    const Text rows = let("loss", rows_, "cross_entropy(" + z + ", " + target + ", -100)");
    if (chance(30)) results_.insert(let("lse", rows_, "logsumexp(" + z + ", V)"));
    if (chance(70)) {
      let("loss", "",
          "sum(" + rows + ", " + rows_ + ")" +
              (chance(50) ? " / (1 + sum(where(" + target + " == -100, 0, 1), " + rows_ + "))"
                          : ""));
    }
  }

  // ---- the whole ----

  void finish() {
    results_.insert(unread_.begin(), unread_.end());
    if (results_.empty() || chance(30)) results_.insert(stream_);
    std::erase_if(results_, [&](const Text& name) { return is_param(name); });
    if (results_.empty()) results_.insert(let("h", rows_ + ", D", stream_ + " + 1"));
    Text signature, results;
    for (const auto& [name, type] : params_) {
      signature += (signature.empty() ? "" : ", ") + name + ": " + type;
    }
    for (const Text& name : results_) {
      const Text& dims = dims_[name];
      Text type = chance(80) ? dtype_ : dtype_ == "f64" ? "f64" : "f32";
      const std::size_t comma = dims.find(", ");
      if (comma != Text::npos && has("result stored transposed", 5)) {
        type += "[" + dims.substr(comma + 2) + ", " + dims.substr(0, comma) + "]";
      } else if (!dims.empty()) {
        type += "[" + dims + "]";
      }
      results += (results.empty() ? "" : ", ") + name + ": " + type;
    }
    text_ = "use \"prelude.coda\"\nblock random" + std::to_string(seed_) + "(" + signature +
            ") -> (" + results + ") {\n" + body_ + "}\n";
    choose_gradients();
  }
  bool is_param(const Text& name) const {
    for (const auto& [each, type] : params_) {
      if (each == name) return true;
    }
    return false;
  }

  // Every parameter's, or those that training asks for, or a few: others are frozen.
  void choose_gradients() {
    const int kind = one_of(3);
    if (kind == 0) return;
    if (kind == 2) features_.insert("frozen weights");
    for (const auto& [name, type] : params_) {
      const bool is_tensor = type.find('[') != Text::npos && type[0] != 'i';
      if (is_tensor && (kind == 1 || chance(50))) gradients_.wrt.push_back(name);
    }
  }

  bool is_short_ = false;
  Text stream_, norm_, norm_of_;
  std::set<Text> results_;
  GradOptions gradients_;
};

}  // namespace coda::testing
