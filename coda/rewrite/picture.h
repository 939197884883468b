// coda/rewrite/picture.h: a schedule to look at, as SVG.
#pragma once

#include <string>

#include "coda/rewrite/explain.h"
#include "coda/rewrite/svg.h"

namespace coda {

// Forward runs down on the left, backward up on the right, the layers of a stack side by side. A
// box is a kernel, a line a tensor as thick as its bytes; those between the columns are what
// forward keeps for backward. A bar compares the bytes moved with those of the unfused sequence.
std::string picture(const Report& report, Svg::Form form = Svg::Form::file);

// The picture as a file, replaced as a whole. Throws ProgramError where it cannot be written.
void write_picture(const Report& report, const std::string& path);

}  // namespace coda
