// coda/model/corpus.h: a text as bytes, cut into what is learnt and what is held out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coda/core/tensor.h"
#include "coda/model/random.h"

namespace coda {

// Token ids and the ids that follow them, i64[batch * length] each.
struct Batch {
  Batch(std::int64_t batch, std::int64_t length);

  std::int64_t sequences, length;
  OwnedTensor ids, targets;
};

class Corpus {
 public:
  // The last twentieth of the file, at least one sequence, is held out. Throws ProgramError for a
  // file that is missing, a folder, empty, or too short for a sequence of `length` bytes in each
  // part.
  Corpus(std::string path, std::int64_t length);

  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(text_.size()); }
  std::int64_t held_out_bytes() const { return bytes() - learnt_; }
  const std::string& sha256() const { return sha256_; }  // of the text, in hexadecimal

  // Random contiguous windows of the learnt part.
  void sample(Random& random, Batch& batch) const;
  // Window `index` of `count` that lie evenly over the held-out part, and so on to fill the batch.
  void held_out(std::int64_t index, std::int64_t count, Batch& batch) const;

 private:
  void copy(std::int64_t start, std::int64_t row, Batch& batch) const;

  std::string path_;
  std::string text_;
  std::string sha256_;
  std::int64_t learnt_ = 0;  // bytes
};

}  // namespace coda
