// coda/core/safetensors.h: .safetensors files: named tensors, and named strings beside them.
//
// f64 f32 f16 bf16 f8e4m3 f8e5m2 i64 i32 u8 bool. Any thread may call both functions.
#pragma once

#include <map>
#include <string>

#include "coda/core/tensor.h"

namespace coda {

class OutputFile;  // core/file.h

struct Safetensors {
  std::map<std::string, OwnedTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Reads all tensors. Throws ProgramError, which names the file and the tensor, for a file that is
// missing, truncated or damaged: every offset is checked, tensors neither overlap nor leave gaps.
Safetensors read_safetensors(const std::string& path);

// Any strides. The file appears complete or not at all, and equal inputs give equal bytes. Throws
// ProgramError where it cannot be written.
void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// The same bytes into a file that the caller commits.
void write_safetensors(OutputFile& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace coda
