// tests/refusal.h: what a refusal says.
#pragma once

#include <functional>
#include <string>

#include "coda/core/error.h"

namespace coda {

// The text of the ProgramError that the action throws; "" where it throws none.
inline std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const ProgramError& error) {
    return error.what();
  }
  return "";
}

}  // namespace coda
