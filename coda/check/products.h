// coda/check/products.h: the products of a program, and the accumulators that they sum into.
#pragma once

#include <span>
#include <vector>

#include "coda/check/check.h"
#include "coda/check/report.h"

namespace coda {

// One accumulator with the dims of its value: rows first, then columns.
struct Product {
  Accumulator accumulator;
  std::vector<Dim> rows, columns;
};

struct Products {
  std::vector<Product> all;   // in the order of their first products
  std::vector<int> of_value;  // for each value, the accumulator that it is, or -1
  bool operands_are_inputs = true;
};

// Rule 1 (operands are inputs) and rule 2 (products that are added up are one accumulator).
Products find_products(const Program& program, std::span<const char> inputs, Mistakes& report);

// Rows become columns: the operands of every term change sides.
void turn(Product& product);

}  // namespace coda
