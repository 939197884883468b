// coda/program/dims.cpp: canonical text of factors, their extents, and matching of declared dims
// against actual ones.
//
// A factor's identity is its text, so the text is computed once, when the factor is made.
#include "coda/program/dims.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "coda/core/error.h"

namespace coda {

struct Factor::Data {
  Kind kind = Kind::name;
  std::string text = {};
  std::int64_t number = 0;
  Dim dim = {};
  std::vector<Term> terms = {};
};

namespace {

bool is_compound(const Factor& factor) {
  return factor.kind() == Factor::Kind::sum || factor.kind() == Factor::Kind::quotient;
}

std::string bracketed(const std::string& text) {
  return "(" + text + ")";
}

}  // namespace

std::string Dim::text() const {
  if (factors.empty()) return "1";
  if (factors.size() == 1) return factors[0].text();
  std::string text;
  for (const Factor& factor : factors) {
    if (!text.empty()) text += "*";
    text += is_compound(factor) ? bracketed(factor.text()) : factor.text();
  }
  return text;
}

bool Dim::operator==(const Dim& other) const {
  return factors == other.factors;
}

// One Data for each kind and text.
Factor Factor::shared(Data&& data) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::unordered_map<std::string, std::unique_ptr<const Data>>;
  const std::string key = static_cast<char>('0' + static_cast<int>(data.kind)) + data.text;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Data>& entry = known[key];
  if (!entry) entry = std::make_unique<const Data>(std::move(data));
  return Factor(entry.get());
}

Factor Factor::name(std::string name) {
  return shared(Data{.kind = Kind::name, .text = std::move(name)});
}

Factor Factor::number(std::int64_t number) {
  return shared(Data{.kind = Kind::number, .text = std::to_string(number), .number = number});
}

Factor Factor::sum(std::vector<Term> terms) {
  std::vector<Term> flat;
  for (Term& term : terms) {
    if (term.dim.factors.size() == 1 && term.dim.factors[0].kind() == Kind::sum) {
      for (Term inner : term.dim.factors[0].terms()) {
        inner.sign *= term.sign;
        flat.push_back(std::move(inner));
      }
    } else {
      flat.push_back(std::move(term));
    }
  }
  std::string text;
  for (const Term& term : flat) {
    const char* joint = text.empty() ? (term.sign < 0 ? "-" : "") : (term.sign < 0 ? " - " : " + ");
    text += joint + term.dim.text();
  }
  return shared(Data{.kind = Kind::sum, .text = std::move(text), .terms = std::move(flat)});
}

Factor Factor::quotient(Dim dim, std::int64_t divisor) {
  const bool simple = dim.factors.size() == 1 && !is_compound(dim.factors[0]);
  std::string text = simple ? dim.text() : bracketed(dim.text());
  text += "/" + std::to_string(divisor);
  return shared(Data{
      .kind = Kind::quotient, .text = std::move(text), .number = divisor, .dim = std::move(dim)});
}

Factor Factor::blocks(Dim dim, std::int64_t block) {
  std::string text = "blocks(" + dim.text();
  if (block != 64) text += ", " + std::to_string(block);
  text += ")";
  return shared(
      Data{.kind = Kind::blocks, .text = std::move(text), .number = block, .dim = std::move(dim)});
}

Factor::Kind Factor::kind() const {
  return data_->kind;
}
const std::string& Factor::text() const {
  return data_->text;
}
std::int64_t Factor::number() const {
  return data_->number;
}
const Dim& Factor::dim() const {
  return data_->dim;
}
const std::vector<Factor::Term>& Factor::terms() const {
  return data_->terms;
}

Dim dim_of(Factor factor) {
  return Dim{{std::move(factor)}};
}

Dim dim_of(std::string name) {
  return Dim{{Factor::name(std::move(name))}};
}

Dim operator*(Dim a, const Dim& b) {
  a.factors.insert(a.factors.end(), b.factors.begin(), b.factors.end());
  return a;
}

namespace {

[[noreturn]] void too_large(const std::string& what) {
  throw ProgramError("the dimension `" + what + "` would have more than 2^63 elements",
                     "give smaller sizes");
}

}  // namespace

std::optional<std::int64_t> extent(const Factor& factor, const Sizes& sizes) {
  switch (factor.kind()) {
    case Factor::Kind::name: {
      const auto found = sizes.find(factor.text());
      if (found == sizes.end()) return std::nullopt;
      return found->second;
    }
    case Factor::Kind::number:
      return factor.number();
    case Factor::Kind::sum: {
      std::int64_t total = 0;
      for (const Factor::Term& term : factor.terms()) {
        const auto size = extent(term.dim, sizes);
        if (!size) return std::nullopt;
        total += term.sign * *size;
      }
      if (total < 0) {
        throw ProgramError("the dimension `" + factor.text() + "` would have " +
                               std::to_string(total) + " elements",
                           "give sizes for which it is 0 or more");
      }
      return total;
    }
    case Factor::Kind::quotient: {
      const auto size = extent(factor.dim(), sizes);
      if (!size) return std::nullopt;
      if (*size % factor.number() != 0) {
        throw ProgramError(
            "the dimension `" + factor.text() + "` is not whole: " + factor.dim().text() + " = " +
                std::to_string(*size),
            "give " + factor.dim().text() + " a multiple of " + std::to_string(factor.number()));
      }
      return *size / factor.number();
    }
    case Factor::Kind::blocks: {
      const auto size = extent(factor.dim(), sizes);
      if (!size) return std::nullopt;
      return (*size + factor.number() - 1) / factor.number();
    }
  }
  throw InternalError("unknown factor kind");
}

std::optional<std::int64_t> extent(const Dim& dim, const Sizes& sizes) {
  std::int64_t product = 1;
  for (const Factor& factor : dim.factors) {
    const auto size = extent(factor, sizes);
    if (!size) return std::nullopt;
    if (__builtin_mul_overflow(product, *size, &product)) too_large(dim.text());
  }
  return product;
}

namespace {

template <class T>
std::int64_t require(const T& dim, const Dim& whole, const Sizes& sizes) {
  if (const auto size = extent(dim, sizes)) return *size;
  std::set<std::string> names;
  collect_names(whole, names);
  std::string missing;
  for (const std::string& name : names) {
    if (!sizes.contains(name)) missing += (missing.empty() ? "`" : ", `") + name + "`";
  }
  throw ProgramError("the size of " + missing + " is not known: no input determines it",
                     "give it: --size NAME=NUMBER");
}

}  // namespace

std::int64_t require_extent(const Factor& factor, const Sizes& sizes) {
  return require(factor, Dim{{factor}}, sizes);
}

std::int64_t require_extent(const Dim& dim, const Sizes& sizes) {
  return require(dim, dim, sizes);
}

void collect_names(const Dim& dim, std::set<std::string>& names) {
  for (const Factor& factor : dim.factors) {
    if (factor.kind() == Factor::Kind::name) names.insert(factor.text());
    collect_names(factor.dim(), names);
    for (const Factor::Term& term : factor.terms()) collect_names(term.dim, names);
  }
}

Dim substitute(const Dim& dim, const Substitution& substitution) {
  Dim result;
  for (const Factor& factor : dim.factors) {
    switch (factor.kind()) {
      case Factor::Kind::name: {
        const auto found = substitution.find(factor.text());
        result = std::move(result) * (found == substitution.end() ? Dim{{factor}} : found->second);
        break;
      }
      case Factor::Kind::number:
        result.factors.push_back(factor);
        break;
      case Factor::Kind::sum: {
        std::vector<Factor::Term> terms = factor.terms();
        for (Factor::Term& term : terms) term.dim = substitute(term.dim, substitution);
        result.factors.push_back(Factor::sum(std::move(terms)));
        break;
      }
      case Factor::Kind::quotient:
        result.factors.push_back(
            Factor::quotient(substitute(factor.dim(), substitution), factor.number()));
        break;
      case Factor::Kind::blocks:
        result.factors.push_back(
            Factor::blocks(substitute(factor.dim(), substitution), factor.number()));
        break;
    }
  }
  return result;
}

namespace {

bool unify_factor(const Factor& pattern, const Factor& actual, Substitution& substitution) {
  if (pattern.kind() == Factor::Kind::name)
    return unify(Dim{{pattern}}, Dim{{actual}}, substitution);
  if (pattern.kind() != actual.kind() || pattern.number() != actual.number()) return false;
  if (pattern.kind() == Factor::Kind::sum) {
    if (pattern.terms().size() != actual.terms().size()) return false;
    for (std::size_t i = 0; i < pattern.terms().size(); ++i) {
      if (pattern.terms()[i].sign != actual.terms()[i].sign) return false;
      if (!unify(pattern.terms()[i].dim, actual.terms()[i].dim, substitution)) return false;
    }
    return true;
  }
  return unify(pattern.dim(), actual.dim(), substitution);
}

}  // namespace

bool unify(const Dim& pattern, const Dim& actual, Substitution& substitution) {
  if (pattern.factors.size() == 1 && pattern.factors[0].kind() == Factor::Kind::name) {
    const auto [found, fresh] = substitution.try_emplace(pattern.factors[0].text(), actual);
    return fresh || found->second == actual;
  }
  if (pattern.factors.size() <= 1) {
    if (pattern.factors.size() != actual.factors.size()) return false;
    return pattern.factors.empty() ||
           unify_factor(pattern.factors[0], actual.factors[0], substitution);
  }
  std::size_t end = actual.factors.size();
  for (std::size_t i = pattern.factors.size() - 1; i > 0; --i) {
    const Factor& factor = pattern.factors[i];
    std::size_t count = 1;
    if (factor.kind() == Factor::Kind::name) {
      const auto bound = substitution.find(factor.text());
      if (bound != substitution.end()) count = bound->second.factors.size();
    }
    if (end < count) return false;
    const auto first = actual.factors.begin() + static_cast<std::ptrdiff_t>(end - count);
    const Dim tail{{first, first + static_cast<std::ptrdiff_t>(count)}};
    if (!unify(Dim{{factor}}, tail, substitution)) return false;
    end -= count;
  }
  if (end == 0) return false;
  const Dim rest{
      {actual.factors.begin(), actual.factors.begin() + static_cast<std::ptrdiff_t>(end)}};
  return unify(Dim{{pattern.factors[0]}}, rest, substitution);
}

namespace {

struct Ratio {
  std::int64_t over = 0, under = 1;
};

Ratio operator+(Ratio a, Ratio b) {
  Ratio sum{a.over * b.under + b.over * a.under, a.under * b.under};
  if (const std::int64_t common = std::gcd(sum.over, sum.under); common > 1) {
    sum.over /= common;
    sum.under /= common;
  }
  return sum;
}

// Sorted atom texts → coefficient.
using Polynomial = std::map<std::vector<std::string>, Ratio>;

Polynomial polynomial(const Dim& dim);

Polynomial polynomial(const Factor& factor) {
  switch (factor.kind()) {
    case Factor::Kind::name:
    case Factor::Kind::blocks:
      return {{{factor.text()}, {1, 1}}};
    case Factor::Kind::number:
      return {{{}, {factor.number(), 1}}};
    case Factor::Kind::sum: {
      Polynomial total;
      for (const Factor::Term& term : factor.terms()) {
        for (const auto& [atoms, ratio] : polynomial(term.dim)) {
          total[atoms] = total[atoms] + Ratio{term.sign * ratio.over, ratio.under};
        }
      }
      return total;
    }
    case Factor::Kind::quotient: {
      Polynomial scaled = polynomial(factor.dim());
      for (auto& [atoms, ratio] : scaled) {
        ratio = Ratio{} + Ratio{ratio.over, ratio.under * factor.number()};
      }
      return scaled;
    }
  }
  throw InternalError("unknown factor kind");
}

Polynomial polynomial(const Dim& dim) {
  Polynomial product = {{{}, {1, 1}}};
  for (const Factor& factor : dim.factors) {
    Polynomial next;
    for (const auto& [left, a] : product) {
      for (const auto& [right, b] : polynomial(factor)) {
        std::vector<std::string> atoms = left;
        atoms.insert(atoms.end(), right.begin(), right.end());
        std::ranges::sort(atoms);
        next[atoms] = next[atoms] + Ratio{a.over * b.over, a.under * b.under};
      }
    }
    product = std::move(next);
  }
  return product;
}

}  // namespace

std::optional<bool> same_extent(const Dim& a, const Dim& b) {
  Polynomial difference = polynomial(a);
  for (const auto& [atoms, ratio] : polynomial(b)) {
    difference[atoms] = difference[atoms] + Ratio{-ratio.over, ratio.under};
  }
  std::erase_if(difference, [](const auto& entry) { return entry.second.over == 0; });
  if (difference.empty()) return true;
  // One sign throughout: equal only where something is empty.
  const auto positive = [](const auto& entry) {
    return entry.second.over > 0;
  };
  const auto count = std::ranges::count_if(difference, positive);
  if (count == 0 || count == std::ssize(difference)) return false;
  return std::nullopt;
}

}  // namespace coda
