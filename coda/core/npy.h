// coda/core/npy.h: NumPy's .npy files.
//
// f32 f64 f16 i32 i64 u8 bool as NumPy has them. bf16, which NumPy lacks, is two raw bytes ('<V2'),
// as ml_dtypes writes it. Little-endian only; versions 1, 2 and 3 are read, 1 is written. Any
// thread may call both.
#pragma once

#include <string>

#include "coda/core/tensor.h"

namespace coda {

// The array in row-major order, whatever order the file has. Throws ProgramError, which names the
// file, for one that is missing, damaged, truncated, longer than its header says, or of another
// dtype.
OwnedTensor read_npy(const std::string& path);

// Any strides. The file appears complete or not at all. Throws ProgramError where it cannot be
// written, and for f8, which .npy has no name for.
void write_npy(const std::string& path, const Tensor& tensor);

}  // namespace coda
