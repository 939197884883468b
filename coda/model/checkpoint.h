// coda/model/checkpoint.h: a run of training on the disk: the model, and what going on needs.
//
//   FOLDER/config.json, model.safetensors   the model, as transformers reads it; weights in f32
//   FOLDER/training-STEP.safetensors        AdamW's moments (f32), and as metadata: the step, the
//                                           batches' random state, the options, the text's SHA-256
//
// The metadata of model.safetensors names its training file. So the one rename that replaces
// model.safetensors moves the folder from one checkpoint to the next: whoever is killed before it
// leaves the old one, whoever is killed after it the new one.
#pragma once

#include <string>

#include "coda/core/safetensors.h"
#include "coda/model/trainer.h"

namespace coda {

struct Checkpoint {
  std::string folder;
  ModelConfig config;
  TrainerOptions options;
  std::string data;  // the SHA-256 of the text
  Trainer::Position position;
  std::string training_path;
  Safetensors model, training;
};

// Replaces the folder's checkpoint, and removes files of older ones. The folder's lock is the
// caller's (core/file.h). Throws ProgramError where a file cannot be written; then the old one is
// as it was.
void save_checkpoint(const std::string& folder, const Trainer& trainer);

// Throws ProgramError for a folder without a checkpoint that training could go on from.
Checkpoint load_checkpoint(const std::string& folder);

// Puts a trainer of the checkpoint's config and options where that one was: the next steps give the
// same bits. Throws ProgramError where the trainer's text is another.
void restore(const Checkpoint& checkpoint, Trainer& trainer);

// Removes what a process that was killed while it saved left half written. The folder's lock is the
// caller's.
void remove_temporaries(const std::string& folder);

}  // namespace coda
