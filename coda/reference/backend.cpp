// coda/reference/backend.cpp: the rounded mode as a Backend, for `coda run` without another one.
#include "coda/reference/reference.h"

namespace coda::reference {
namespace {

class Reference final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }

  std::optional<std::string> refusal(const Checked&, const Sizes&) const override {
    return std::nullopt;
  }

  Kernel compile(const Checked& checked, const Sizes& sizes) const override {
    auto run = [checked, sizes](std::span<const Tensor> params, std::span<const Tensor> results,
                                std::span<std::byte>) {
      const std::vector<Array> values =
          evaluate(checked.program(), sizes, params, Mode::rounded, results);
      for (std::size_t r = 0; r < values.size(); ++r) store(values[r], results[r], sizes);
    };
    return Kernel(std::move(run), 0, "plain loops, one thread");
  }
};

}  // namespace

std::unique_ptr<Backend> backend() {
  return std::make_unique<Reference>();
}

}  // namespace coda::reference
