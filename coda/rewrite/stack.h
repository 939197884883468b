// coda/rewrite/stack.h: a whole model from one layer: its block repeated, an embedding before and a
// head behind, inlined into one block so that rewriting crosses the borders.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "coda/program/text.h"

namespace coda {

struct StackOptions {
  std::string layer = "layer";  // the block that is repeated
  // What stands before and behind, by name; empty: nothing. A file that lacks it has a stack
  // without it; `embed` also finds `embedding`.
  std::string embed = "embed";
  std::string head = "head";
  // Parameters of the stack that are another one: {"head.w", "embed.table"} ties the embeddings.
  std::map<std::string, std::string> tied = {};
};

// `layers` times the block `layer` of a file. Its first parameter is the residual stream, its first
// result the next one, of the same type. The first dim of the stream counts the tokens.
//
// Parameters:
//   i.wq         a layer's own, i from 0: tensors that have none of the tokens' dimensions, and
//                integer scalars (seeds and windows differ by layer); so are further results
//   cos, eps     what all layers share: tensors over tokens, floating-point scalars
//   embed.table  a tensor of the embedding's or the head's own, without the tokens' dimensions
//   ids, target  everything else of theirs, shared with whatever has the same name and type
// Without an embedding the stream is a parameter under its own name, without a head the stream is a
// result under its own name; else the head's results are the stack's. Values have the same prefixes
// as parameters. In the embedding and the head the dimensions of the stream have the layer's names
// (M becomes B*S); any other dimension that two of them name alike is one dimension.
//
// Throws ProgramError where there is no such layer, the types do not follow each other, or `layers`
// is below 1 or absurd.
Program stack(const Module& module, int layers, const StackOptions& options = {});

// The layer in a name of a stack: "3.wq", "d_3.wq" → 3; nullopt for what belongs to none.
std::optional<int> layer_of(std::string_view name);

}  // namespace coda
