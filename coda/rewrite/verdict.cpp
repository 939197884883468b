// coda/rewrite/verdict.cpp: a key for the structure of a kernel, and its message in other names.
#include "coda/rewrite/verdict.h"

#include <cctype>

#include "coda/check/graph.h"

namespace coda {
namespace {

constexpr int kInput = -1, kResults = -2, kCrossing = -3;  // marks between numbers

// `text` with each name of `from` replaced by that of `to` in the same place.
std::string renamed(const std::string& text, const std::vector<std::string>& from,
                    const std::vector<std::string>& to) {
  std::map<std::string_view, std::string_view> names;
  for (std::size_t i = 0; i < from.size() && i < to.size(); ++i) {
    if (!from[i].empty()) names.emplace(from[i], to[i]);
  }
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  };
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && is_name(text[end])) ++end;
    if (end == i) {
      result += text[i++];
      continue;
    }
    while (end > i + 1 && text[end - 1] == '.') --end;  // a sentence's end
    const std::string_view word = std::string_view(text).substr(i, end - i);
    const auto found = names.find(word);
    result += found == names.end() ? word : found->second;
    i = end;
  }
  return result;
}

// The parameters that `v` is computed from and that have the axis.
std::set<std::int32_t> inputs_behind(const Program& program, Value v, const Dim& axis) {
  std::set<std::int32_t> inputs;
  std::vector<Value> todo{v};
  std::set<std::int32_t> seen;
  while (!todo.empty()) {
    const Value next = todo.back();
    todo.pop_back();
    if (!seen.insert(next.id).second || find_axis(program, next, axis).count == 0) continue;
    if (program.is_param(next)) {
      inputs.insert(next.id);
    } else {
      const std::vector<Value>& args = program.node(next).args;
      todo.insert(todo.end(), args.begin(), args.end());
    }
  }
  return inputs;
}

}  // namespace

std::size_t Verdicts::Hash::operator()(const std::vector<int>& key) const {
  std::size_t hash = key.size();
  for (const int each : key) {
    hash = (hash ^ static_cast<std::size_t>(static_cast<unsigned>(each))) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

int& Verdicts::local(Value v) {
  const auto i = static_cast<std::size_t>(v.id);
  if (i >= locals_.size()) {
    locals_.resize(working_->work().values().size());
    stamps_.resize(locals_.size());
  }
  if (stamps_[i] != stamp_) {
    stamps_[i] = stamp_;
    locals_[i] = -1;
  }
  return locals_[i];
}

void Verdicts::make_key(const Part& part) {
  ++stamp_;
  key_.clear();
  values_.clear();
  const auto introduce = [&](Value v) {
    local(v) = static_cast<int>(values_.size());
    values_.push_back(v);
  };
  const auto refer = [&](Value v) {
    if (local(v) < 0) {
      key_.push_back(kInput);
      key_.push_back(working_->crossing_type(v));
      introduce(v);
    } else {
      key_.push_back(local(v));
    }
  };
  for (const int n : part.nodes) {
    const Node& node = working_->node(n);
    key_.push_back(working_->form(n));
    key_.push_back(static_cast<int>(node.args.size()));
    for (const Value v : node.args) refer(v);
    for (const Value v : node.results) introduce(v);
  }
  if (result_types_.empty()) {
    for (const Result& result : working_->block().results()) {
      result_types_.push_back(working_->number_of(result.type));
    }
  }
  key_.push_back(kResults);
  for (const Value v : part.results) {
    refer(v);
    for (const int r : working_->results_of(v)) {
      key_.push_back(result_types_[static_cast<std::size_t>(r)]);
      key_.push_back(static_cast<int>(working_->result(r).store));
    }
  }
  key_.push_back(kCrossing);
  for (const Value v : part.crossing) {
    refer(v);
    key_.push_back(working_->crossing_type(v));
  }
}

// By local number: what messages call the values; then what they call the results.
std::vector<std::string> Verdicts::names(const Part& part) {
  std::vector<std::string> names;
  for (const Value v : values_) {
    const bool made = !working_->work().is_param(v) && in_sorted(part.nodes, working_->producer(v));
    const std::string& name = working_->work().value(v).name;
    names.push_back(!made ? working_->crossing(v).name : name.empty() ? working_->name(v) : name);
  }
  for (const Value v : part.results) {
    for (const int r : working_->results_of(v)) names.push_back(working_->result(r).name);
  }
  for (const Value v : part.crossing) names.push_back(working_->crossing(v).name);
  return names;
}

// Stream: inputs that several spaces read. Gemm: what is summed along factors that no tile has.
std::vector<std::pair<int, bool>> Verdicts::find_again(const Part& part, const Checked& checked) {
  std::vector<std::pair<int, bool>> again;
  const Program& program = checked.program();
  const auto read = [&](Value param) {  // by local number
    return local(part.reads[static_cast<std::size_t>(param.id)]);
  };
  std::vector<int> times(program.params().size());
  for (std::size_t s = 0; s < checked.spaces().size(); ++s) {
    std::set<std::int32_t> seen;
    for (const int n : checked.spaces()[s].nodes) {
      const Node& node = program.nodes()[static_cast<std::size_t>(n)];
      for (const Value v : node.args) {
        if (program.is_param(v)) seen.insert(v.id);
      }
      if (checked.kind() != KernelKind::gemm || class_of(node.op) != OpClass::reduce) continue;
      const auto blocks = [](const Factor& factor) {
        return factor.kind() == Factor::Kind::blocks;
      };
      const FactorRange axis = find_axis(program, node.args[0], node.attr.axis);
      if (axis.count == 0 || std::ranges::all_of(node.attr.axis.factors, blocks)) continue;
      if (checked.roles(s, node.args[0])[axis.first] != Role::local) continue;
      for (const std::int32_t input : inputs_behind(program, node.args[0], node.attr.axis)) {
        again.emplace_back(read({input}), true);
      }
    }
    for (const std::int32_t v : seen) ++times[static_cast<std::size_t>(v)];
  }
  if (checked.kind() != KernelKind::stream) return again;
  for (std::size_t p = 0; p < times.size(); ++p) {
    for (int t = 1; t < times[p]; ++t) {
      again.emplace_back(read({static_cast<std::int32_t>(p)}), false);
    }
  }
  return again;
}

std::vector<Again> Verdicts::again(const Part& part) {
  std::vector<Again> again;
  for (const auto& [number, whole_rows] : of(part).again) {
    again.push_back({values_[static_cast<std::size_t>(number)], whole_rows});
  }
  return again;
}

const Verdicts::Verdict& Verdicts::of(const Part& part) {
  make_key(part);
  const auto known = verdicts_->find(key_);
  if (known != verdicts_->end()) return known->second;
  Verdict verdict;
  if (part.nodes.size() <= kLargest && has_input_operands(part)) {
    if (const auto checked = try_check(working_->step("candidate", part).program)) {
      verdict.again = find_again(part, *checked);
      verdict.accepted = true;
    }
  }
  return verdicts_->emplace(key_, std::move(verdict)).first->second;
}

// Rule 1, which most candidates break: a product sees inputs through casts, ranges and renames.
bool Verdicts::has_input_operands(const Part& part) const {
  for (const int n : part.nodes) {
    if (working_->node(n).op != Op::product) continue;
    for (Value v : working_->node(n).args) {
      while (!working_->work().is_param(v) && in_sorted(part.nodes, working_->producer(v))) {
        const Node& node = working_->node(working_->producer(v));
        if (class_of(node.op) != OpClass::cast && node.op != Op::split && node.op != Op::as) {
          return false;
        }
        v = node.args[0];
      }
    }
  }
  return true;
}

std::optional<std::string> Verdicts::refusal(const Part& part) {
  of(part);
  Verdict& verdict = verdicts_->at(key_);
  if (verdict.accepted) return std::nullopt;
  if (verdict.message.empty()) {
    verdict.names = names(part);
    if (part.nodes.size() > kLargest) {
      verdict.message = "a kernel has at most " + std::to_string(kLargest) + " statements";
    } else {
      try {
        check(working_->step("candidate", part).program);
      } catch (const ProgramError& error) {
        verdict.message = error.diagnostics().front().message;
      }
    }
  }
  return renamed(verdict.message, verdict.names, names(part));
}

}  // namespace coda
