// coda/cuda/tile_merge.cpp: texts compared with their own names numbered.
#include "coda/cuda/tile_merge.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>

namespace coda::cuda {
namespace {

template <class Space>
auto texts_of(Space& space) {
  std::vector<decltype(&space.chunk)> texts = {
      &space.column_fields, &space.column_code, &space.state_fields, &space.before,
      &space.loads,         &space.chunk,       &space.stores,       &space.after,
      &space.finish,        &space.finish_once, &space.head_sum,     &space.leave_head};
  for (auto& slot : space.slots) {
    texts.insert(texts.end(), {&slot.load, &slot.store, &slot.drain});
  }
  return texts;
}

// Identifiers and single characters, without blanks and comments.
std::vector<std::string> tokens_of(const std::string& text) {
  std::vector<std::string> tokens;
  const auto word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else if (word(text[i])) {
      const std::size_t first = i;
      while (i < text.size() && word(text[i])) ++i;
      tokens.push_back(text.substr(first, i - first));
    } else {
      if (text[i] != ' ' && text[i] != '\n') tokens.emplace_back(1, text[i]);
      ++i;
    }
  }
  return tokens;
}

bool is_word(const std::string& token) {
  return std::isalpha(static_cast<unsigned char>(token[0])) || token[0] == '_';
}

// What a space computes, its own names and its arguments as numbers; and these arguments.
struct Canonical {
  std::vector<std::string> tokens;
  std::vector<std::string> arguments;
};

Canonical canonical(const SpaceText& space) {
  std::vector<std::string> all;
  for (const std::string* text : texts_of(space)) {
    const std::vector<std::string> tokens = tokens_of(*text);
    all.insert(all.end(), tokens.begin(), tokens.end());
    all.emplace_back("\n");
  }
  // `type name =`, `type name;`, `type name[`
  std::set<std::string> declared;
  for (std::size_t i = 1; i + 1 < all.size(); ++i) {
    const bool typed = is_word(all[i - 1]) || all[i - 1] == ">";
    if (typed && is_word(all[i]) && std::string("=;[").find(all[i + 1]) != std::string::npos) {
      declared.insert(all[i]);
    }
  }
  Canonical out;
  std::map<std::string, std::size_t> names, arguments;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool member = i >= 2 && all[i - 1] == ".";
    const std::string object = member ? all[i - 2] : "";
    if (object == "args") {
      const auto [entry, fresh] = arguments.emplace(all[i], arguments.size());
      if (fresh) out.arguments.push_back(all[i]);
      out.tokens.push_back("@" + std::to_string(entry->second));
    } else if (declared.contains(all[i]) &&
               (!member || object == "state" || object == "columns" || object == "out")) {
      const auto entry = names.emplace(all[i], names.size()).first;
      out.tokens.push_back("$" + std::to_string(entry->second));
    } else {
      out.tokens.push_back(all[i]);
    }
  }
  return out;
}

bool same_slots(const SpaceText& a, const SpaceText& b) {
  if (a.maps != b.maps || a.slots.size() != b.slots.size()) return false;
  for (std::size_t i = 0; i < a.slots.size(); ++i) {
    if (a.slots[i].bytes != b.slots[i].bytes) return false;
  }
  return true;
}

// `args.x` becomes choices["x"].
std::string chosen(const std::string& text, const std::map<std::string, std::string>& choices) {
  const std::string prefix = "args.";
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, from)) {
    std::size_t end = at + prefix.size();
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) {
      ++end;
    }
    const auto found = choices.find(text.substr(at + prefix.size(), end - at - prefix.size()));
    out += text.substr(from, at - from) +
           (found == choices.end() ? text.substr(at, end - at) : found->second);
    from = end;
  }
  return out + text.substr(from);
}

}  // namespace

std::vector<std::size_t> merge_spaces(std::vector<SpaceText>& spaces) {
  std::vector<Canonical> forms;
  std::vector<std::size_t> kinds;
  for (std::size_t s = 0; s < spaces.size(); ++s) {
    forms.push_back(canonical(spaces[s]));
    std::size_t kind = 0;
    while (kind < s && !(kinds[kind] == kind && forms[kind].tokens == forms[s].tokens &&
                         same_slots(spaces[kind], spaces[s]))) {
      ++kind;
    }
    kinds.push_back(kind);
  }
  for (std::size_t kind = 0; kind < spaces.size(); ++kind) {
    std::map<std::string, std::string> choices;
    for (std::size_t a = 0; a < forms[kind].arguments.size(); ++a) {
      const std::string& own = forms[kind].arguments[a];
      std::string choice;
      for (std::size_t s = kind + 1; s < spaces.size(); ++s) {
        if (kinds[s] != kind || forms[s].arguments[a] == own) continue;
        choice += "s == " + std::to_string(s) + " ? args." + forms[s].arguments[a] + " : ";
      }
      if (!choice.empty()) choices[own] = "(" + choice + "args." + own + ")";
    }
    if (choices.empty()) continue;
    for (std::string* text : texts_of(spaces[kind])) *text = chosen(*text, choices);
  }
  return kinds;
}

}  // namespace coda::cuda
