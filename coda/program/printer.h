// coda/program/printer.h: pieces of canonical syntax trees, for whole texts.
#pragma once

#include <string_view>
#include <vector>

#include "coda/program/ast.h"
#include "coda/program/program.h"

namespace coda::ast {

// A program or block.
Item item_of(const Program& program);
TypeExpr type_of(const Type& type);
// Lines of text, as comments above an item.
std::vector<Comment> comments_of(std::string_view text);

}  // namespace coda::ast
