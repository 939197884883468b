// coda/check/check.cpp: Program → Checked: which kind of kernel, its spaces, every broken rule.

#include "coda/check/check.h"

#include <algorithm>
#include <utility>

#include "coda/check/products.h"
#include "coda/check/report.h"
#include "coda/check/spaces.h"

namespace coda {
namespace {

// Nothing but one opaque call on parameters and constants, stored as it is.
void check_opaque(const Program& program, Mistakes& report) {
  const std::string rule = "an opaque call is a program of its own";
  int call = -1;
  const auto is_other = [&](const Node& node) {
    return node.op != Op::constant && &node != &program.nodes()[static_cast<std::size_t>(call)];
  };
  for (std::size_t i = 0; i < program.nodes().size() && call < 0; ++i)
    if (class_of(program.nodes()[i].op) == OpClass::opaque) call = static_cast<int>(i);
  if (std::ranges::any_of(program.nodes(), is_other)) {
    report.refuse(call, "`" + report.text(call) + "` stands beside other work",
                  program.nodes()[static_cast<std::size_t>(call)].args, rule,
                  "make this a block: `coda rewrite` cuts it into programs");
    return;
  }
  for (const Result& result : program.results()) {
    const bool stored =
        !program.is_param(result.value) && program.value(result.value).node == call &&
        result.store == Store::overwrite && result.type.dims == program.type(result.value).dims;
    if (!stored)
      report.refuse(call,
                    "the result `" + result.name + ": " + result.type.text() +
                        "` is not stored as the call gives it",
                    {result.value}, rule, "store it as it is and go on in the next program");
  }
}

}  // namespace

const std::vector<Role>& Checked::roles(std::size_t s, Value v) const {
  return roles_[s][static_cast<std::size_t>(v.id)];
}

const std::vector<Dim>& Checked::row_inner(std::size_t s, Value v) const {
  return row_inner_[s][static_cast<std::size_t>(v.id)];
}

std::optional<Checked> check_into(const Program& program, Mistakes& report) {
  Checked checked;
  checked.program_ = std::make_shared<const Program>(program);
  const auto any = [&](const auto& holds) {
    return std::ranges::any_of(program.nodes(), holds);
  };
  std::vector<Draft> drafts;
  if (any([](const Node& node) { return class_of(node.op) == OpClass::opaque; })) {
    checked.kind_ = KernelKind::opaque;
    check_opaque(program, report);
  } else {
    const std::vector<char> inputs = find_inputs(program);
    if (any([](const Node& node) { return node.op == Op::product; })) {
      checked.kind_ = KernelKind::gemm;
      const Products products = find_products(program, inputs, report);
      drafts = gemm_spaces(program, inputs, products, report);
    } else {
      checked.kind_ = KernelKind::stream;
      drafts = stream_spaces(program, inputs, report);
    }
  }
  if (!report.empty()) return std::nullopt;
  for (Draft& draft : drafts) {
    checked.spaces_.push_back(std::move(draft.space));
    checked.roles_.push_back(std::move(draft.roles));
    checked.row_inner_.push_back(std::move(draft.row_inner));
  }
  return checked;
}

Checked check(const Program& program) {
  Mistakes report(program);
  std::optional<Checked> checked = check_into(program, report);
  if (!checked) throw ProgramError(report.diagnostics());
  return *std::move(checked);
}

std::optional<Checked> try_check(const Program& program) {
  Mistakes report(program, Wording::none);
  return check_into(program, report);
}

}  // namespace coda
