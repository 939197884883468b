// coda/program/typing_layout.h: the type rules of the layout ops, for typing.cpp. Each may complete
// its Attr; throws TypeError.
#pragma once

#include <span>
#include <vector>

#include "coda/program/program.h"

namespace coda {

std::vector<Type> infer_split(const Type& operand, const Attr& attr);
Type infer_join(std::span<const Type> args, Attr& attr);
Type infer_as(const Type& operand, const Attr& attr);
Type infer_spread(const Type& operand, Attr& attr);

}  // namespace coda
