// coda/cuda/bundle.h: a schedule compiled ahead of time: one file that runs where there is no
// compiler.
//
// The file holds the schedule's text, and for each of its kernels the plan, for dense tensors of
// the sizes and what it puts between steps, and the cubin. A magic line, the SHA-256 of what
// follows it, the length of the manifest (JSON), the manifest, the cubins.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coda/backend/backend.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/cuda.h"
#include "coda/program/schedule.h"

namespace coda::cuda {

struct Bundle {
  // One for each program and sizes: those of loops too, full chunks and last ones.
  struct Kernel {
    Program program;
    Sizes sizes;
    std::vector<Layout> layouts = {};  // canonical, of parameters, then results
    Plan plan = {};                    // its page is not kept
    std::size_t cubin = 0;  // index into `cubins`; meaningless where there are no launches
  };
  std::string version, toolkit;  // of coda, and of the compiler
  Target target;
  Schedule schedule;
  Sizes sizes;
  std::vector<Kernel> kernels;
  std::vector<std::string> cubins;
};

// Plans and compiles; needs a compiler, no device. Throws as check, choose_plan and compile.
Bundle build_bundle(const Schedule& schedule, const Sizes& sizes, const Target& target,
                    const PlanOptions& options = {});

// Written under another name and renamed.
void write_bundle(const Bundle& bundle, const std::string& path);

// Whether a file begins as bundles do. False where it cannot be read.
bool is_bundle(const std::string& path);

// Throws ProgramError where the file is none, is damaged, or is of a format that this coda does not
// read. Needs neither a compiler nor a device.
Bundle read_bundle(const std::string& path);

// Why a device cannot run it; nullopt: it can.
std::optional<std::string> bundle_refusal(const Bundle& bundle, const Target& device);

// Runs the bundle's kernels, and no others: compile throws Unsupported for another program or other
// sizes, run for tensors that are not dense or not 16-byte aligned. An Executable of the bundle's
// schedule on it is the whole. Throws Unsupported where this process has no such device.
std::unique_ptr<Backend> bundle_backend(std::shared_ptr<const Bundle> bundle,
                                        const Allocator& allocator = {});

// The same of a file.
struct OpenBundle {
  std::shared_ptr<const Bundle> bundle;
  std::unique_ptr<Backend> backend;
};
OpenBundle open_bundle(const std::string& path, const Allocator& allocator = {});

}  // namespace coda::cuda
