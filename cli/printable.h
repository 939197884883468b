// cli/printable.h: bytes that a model wrote as text that may go to a terminal.
#pragma once

#include <string>

namespace coda {

// Valid UTF-8 whatever the bytes are, without control characters but newline and tab: these become
// `?`, and bytes that are no UTF-8 become U+FFFD, one for each longest piece of a character, as the
// Unicode standard recommends (section 3.9) and Python's errors="replace" does.
class PrintableText {
 public:
  // What can be shown once `byte` is known: nothing in the middle of a character.
  std::string add(char byte);
  // What is left at the end of the text.
  std::string finish();

 private:
  std::string begun_;     // of a character
  std::size_t left_ = 0;  // bytes that it still needs
};

}  // namespace coda
