// coda/cuda/stream_address.cpp: where a row, a vector or an element lies, as expressions.
#include <algorithm>

#include "coda/cuda/stream_kernel.h"

namespace coda::cuda::streaming {

DType Kernel::dtype_of(int tensor) const {
  const auto t = static_cast<std::size_t>(tensor);
  const Program& program = space_.program();
  return t < program.params().size() ? program.params()[t].type.dtype
                                     : program.results()[t - program.params().size()].type.dtype;
}

std::string Kernel::owner_of(const View& view) const {
  const Program& program = space_.program();
  const auto t = static_cast<std::size_t>(view.tensor);
  if (view.tensor < 0) return "position";
  return t < program.params().size() ? program.params()[t].name
                                     : program.results()[t - program.params().size()].name;
}

// The rows' part of an offset, "" where there is none.
std::string Kernel::row_offset(const View& view, const std::string& owner) {
  std::string text;
  const auto add = [&](const std::string& term) {
    text += (text.empty() ? "" : " + ") + term;
  };
  std::vector<std::pair<std::size_t, std::int64_t>> own;  // place among rows, stride
  for (std::size_t f = 0; f < view.factors.size(); ++f) {
    const Factor& factor = view.factors[f];
    if (after_ && factor.kind() == Factor::Kind::blocks &&
        space_.is_row(factor.dim().factors.back())) {
      add("group_block * " + arguments_.number(owner + "_group", view.strides[f]));
      continue;
    }
    for (std::size_t r = 0; r < space_.rows().size(); ++r)
      if (space_.rows()[r].factor == factor) own.emplace_back(r, view.strides[f]);
  }
  if (own.empty()) return text;
  std::ranges::sort(own);
  bool whole = own.size() == space_.rows().size();
  for (std::size_t k = 1; whole && k < own.size(); ++k)
    whole = own[k - 1].second == own[k].second * space_.rows()[own[k].first].extent;
  if (after_) {
    if (own.size() != 1) throw Refused{"blocks of rows of several dimensions"};
    add("group_outer * " + arguments_.number(owner + "_outer", own[0].second));
    return text;
  }
  if (whole) {
    add("row * " + arguments_.number(owner + "_row", own.back().second));
    return text;
  }
  for (const auto& [r, stride] : own) {
    std::int64_t inside = 1;
    for (std::size_t k = r + 1; k < space_.rows().size(); ++k) inside *= space_.rows()[k].extent;
    const std::string name = space_.rows()[r].factor.text();
    std::string at = "row";
    if (inside != 1) at += " / Index(" + arguments_.number("rows_inside_" + name, inside) + ")";
    if (r != 0) {
      at += " % Index(" + arguments_.number("rows_" + name, space_.rows()[r].extent) + ")";
    }
    add("(" + at + ") * " + arguments_.number(owner + "_row_" + name, stride));
  }
  return text;
}

// Of the vector's first element.
std::string Kernel::offset(const Access& access, const std::string& owner) {
  std::string text = row_offset(access.view, owner);
  const auto add = [&](const std::string& term) {
    text += (text.empty() ? "" : " + ") + term;
  };
  const auto path_name = [&] {
    std::string name;
    for (const auto& [factor, piece] : access.path) name += "_" + factor + std::to_string(piece);
    return name;
  };
  if (access.base - access.part != 0)
    add(arguments_.number(owner + "_from" + path_name(), access.base - access.part));
  if (access.ids >= 0) {
    const View table = *space_.view(space_.node(Value{access.value}).args[0]);
    const std::string id = row_value(Value{access.ids}, Lane::i64);
    add(id + " * " + arguments_.number(owner + "_id", table.strides[0]));
  }
  const std::size_t last = in_->axes.size() - 1;
  for (std::size_t a = 0; a < in_->axes.size(); ++a) {
    const std::int64_t stride = access.strides[a];
    if (stride == 0 || (a != last && in_->axes[a].extent == 1)) continue;
    std::string at = a == last ? "c" : "at_" + identifier(in_->axes[a].factor.text());
    if (stride != 1) {
      at += " * " + arguments_.number(
                        owner + path_name() + "_" + in_->axes[a].factor.text() + "_stride", stride);
    }
    add(at);
  }
  if (access.block != 0) {
    add("c / " + std::to_string(access.block) + " * " +
        arguments_.number(owner + "_block_stride", access.block_stride));
  }
  return text.empty() ? "0" : text;
}

// Memory, read element by element, at the picked column or after the last row.
std::string Kernel::element(const Access& access) {
  const std::string owner = owner_of(access.view);
  std::string at;
  if (!picked_at_.empty()) {
    at = row_offset(access.view, owner);
    for (std::size_t f = 0; f < access.view.factors.size(); ++f) {
      if (space_.is_row(access.view.factors[f])) continue;
      at += (at.empty() ? "" : " + ") + picked_at_ + " * " +
            arguments_.number(owner + "_" + access.view.factors[f].text(), access.view.strides[f]);
    }
  } else {
    at = offset(access, owner);
    if (access.lanes) at += " + i * " + arguments_.number(owner + "_lane", access.strides.back());
  }
  return "value_at(" + arguments_.pointer(access.view.tensor) + " + " + at + ")";
}

}  // namespace coda::cuda::streaming
