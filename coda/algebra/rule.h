// coda/algebra/rule.h: the algebra of whole blocks, one named identity a file.
//
// A rule is a function from Program to Program that applies its identity wherever its precondition
// holds and it pays. Rules know nothing of each other; rewrite/ says when each runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/program/program.h"

namespace coda {

enum class Level : std::uint8_t {
  bitwise,    // the same bits
  algebraic,  // the same over the reals; the order of roundings differs
};

// What rules ask about, and what they tell.
struct Situation {
  bool delay_f16 = false;            // a row scale may leave an operand that is stored in f16
  std::vector<std::string> notes{};  // places where a rule was not applied, and why
};

struct Rule {
  std::string_view name;
  std::string_view identity;
  std::string_view precondition;
  std::string_view buys;  // what it saves, in elements that are not moved
  Level level = Level::algebraic;
  Program (*apply)(const Program& program, Situation& situation) = nullptr;
};

// Of a block as its author wrote it.
std::span<const Rule> block_rules();
// Of a block and its gradient in one program.
std::span<const Rule> joint_rules();
// Of what is about to be cut into kernels.
std::span<const Rule> kernel_rules();

// The identities, each in the file of its name.
Program row_scale(const Program& program, Situation& situation);
Program shared_scale(const Program& program, Situation& situation);
Program packed_product(const Program& program, Situation& situation);
Program joined_products(const Program& program, Situation& situation);
Program other_operand(const Program& program, Situation& situation);
Program constant_scale(const Program& program, Situation& situation);
Program centred_sum(const Program& program, Situation& situation);
Program vanishing(const Program& program, Situation& situation);
Program merged_sums(const Program& program, Situation& situation);
Program row_sum(const Program& program, Situation& situation);
Program centred_squares(const Program& program, Situation& situation);

}  // namespace coda
