// coda/model/corpus.cpp: reads a text and cuts windows from it.
#include "coda/model/corpus.h"

#include <algorithm>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/sha256.h"

namespace coda {

Batch::Batch(std::int64_t batch, std::int64_t length)
    : sequences(batch),
      length(length),
      ids(DType::i64, {batch * length}),
      targets(DType::i64, {batch * length}) {}

Corpus::Corpus(std::string path, std::int64_t length)
    : path_(std::move(path)), text_(read_file(path_)), sha256_(hex(coda::sha256(text_))) {
  const std::int64_t window = length + 1;  // each byte and the one after it
  if (text_.empty()) {
    throw ProgramError("the text " + path_ + " is empty", "give a file with text to learn");
  }
  if (bytes() < 2 * window) {
    throw ProgramError(
        "the text " + path_ + " has " + std::to_string(bytes()) + " bytes, but sequences of " +
            std::to_string(length) + " need " + std::to_string(2 * window) +
            ": one window to learn and one held out, of " + std::to_string(window) + " bytes each",
        "give a longer text, or --seq " +
            std::to_string(std::max<std::int64_t>(bytes() / 2 - 1, 1)) + " or less");
  }
  learnt_ = bytes() - std::max(bytes() / 20, window);
}

void Corpus::copy(std::int64_t start, std::int64_t row, Batch& batch) const {
  auto* ids = batch.ids.as<std::int64_t>() + row * batch.length;
  auto* targets = batch.targets.as<std::int64_t>() + row * batch.length;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text_.data()) + start;
  for (std::int64_t i = 0; i < batch.length; ++i) {
    ids[i] = bytes[i];
    targets[i] = bytes[i + 1];
  }
}

void Corpus::sample(Random& random, Batch& batch) const {
  for (std::int64_t row = 0; row < batch.sequences; ++row) {
    copy(random.below(learnt_ - batch.length), row, batch);
  }
}

void Corpus::held_out(std::int64_t index, std::int64_t count, Batch& batch) const {
  const std::int64_t last = held_out_bytes() - batch.length - 1;  // start of the last window
  for (std::int64_t row = 0; row < batch.sequences; ++row) {
    const std::int64_t at = std::min(index + row, count - 1);
    copy(learnt_ + (count > 1 ? last * at / (count - 1) : 0), row, batch);
  }
}

}  // namespace coda
