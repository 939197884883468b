// coda/model/generate.cpp: the parts of a layer around cached attention, and sampling.
#include "coda/model/generate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "coda/core/error.h"
#include "coda/model/model.h"

namespace coda {

std::vector<Candidate> candidates(std::span<const double> logits, const SamplingOptions& options) {
  std::vector<Candidate> kept;
  for (const double logit : logits) {
    kept.push_back({static_cast<std::int64_t>(kept.size()), logit});
  }
  std::ranges::stable_sort(kept, std::greater(), &Candidate::probability);
  const bool greedy = options.temperature <= 0;
  const std::size_t k = greedy ? 1 : static_cast<std::size_t>(options.top_k);
  if (k > 0 && k < kept.size()) kept.resize(k);
  const double most = kept.front().probability;
  const auto normalize = [&] {
    double total = 0;
    for (const Candidate& each : kept) total += each.probability;
    for (Candidate& each : kept) each.probability /= total;
  };
  for (Candidate& each : kept) {
    each.probability = greedy ? 1 : std::exp((each.probability - most) / options.temperature);
  }
  normalize();
  double sum = 0;
  std::size_t few = 0;
  // NOTE: rounded probabilities may add up to 1 before the last.
  const double enough = options.top_p < 1 ? options.top_p : 2;
  while (few < kept.size() && sum < enough) sum += kept[few++].probability;
  kept.resize(std::max<std::size_t>(few, 1));
  normalize();
  return kept;
}

std::int64_t sample(std::span<const double> logits, const SamplingOptions& options,
                    Random& random) {
  const std::vector<Candidate> kept = candidates(logits, options);
  double rest = random.uniform();
  for (const Candidate& each : kept) {
    rest -= each.probability;
    if (rest < 0) return each.token;
  }
  return kept.back().token;
}

struct Reader::Blocks {
  std::int64_t length;
  CompiledBlock embedding, qkv, output, mlp, logits;
  OwnedTensor ids, x, h, q, o, z;

  Blocks(const ModelConfig& c, const Backend& backend, DType dtype, std::int64_t length)
      : length(length),
        embedding(standard_program("embedding.coda", "embedding", dtype), backend,
                  block_sizes(c, 1, length)),
        qkv(standard_program("attention.coda", "qkv", dtype), backend, block_sizes(c, 1, length)),
        output(standard_program("attention.coda", "attention_out", dtype), backend,
               block_sizes(c, 1, length)),
        mlp(standard_program("gated.coda", "mlp", dtype), backend, block_sizes(c, 1, length)),
        logits(standard_program("head.coda", "logits", dtype), backend, block_sizes(c, 1, 1)),
        ids(DType::i64, {length}),
        x(dtype, {length, c.width}),
        h(dtype, {length, c.width}),
        q(dtype, {length, c.heads * c.head_width}),
        o(dtype, {length, c.heads * c.head_width}),
        z(dtype == DType::f64 ? DType::f64 : DType::f32, {1, c.vocabulary}) {}

  std::size_t scratch_bytes() const {
    std::size_t most = 0;
    for (const CompiledBlock* block : {&embedding, &qkv, &output, &mlp, &logits}) {
      most = std::max(most, block->scratch_bytes());
    }
    return most;
  }
};

Reader::Reader(const ModelConfig& config, const Arena& parameters, const Backend& backend,
               DType dtype)
    : config_(config),
      parameters_(parameters),
      backend_(backend),
      dtype_(dtype),
      attend_(standard_program("attention.coda", "attend", dtype)),
      eps_(statistic_dtype(dtype), config.norm_eps) {
  keys_.resize(static_cast<std::size_t>(config.layers));
  values_.resize(keys_.size());
}

Reader::~Reader() = default;

Reader::Blocks& Reader::blocks_for(std::int64_t length) {
  const auto found =
      std::ranges::find_if(blocks_, [&](const auto& b) { return b->length == length; });
  if (found == blocks_.end()) {
    constexpr std::size_t kKept = 2;  // one byte at a time, and the last prompt's length
    if (blocks_.size() == kKept) blocks_.pop_back();
    blocks_.insert(blocks_.begin(), std::make_unique<Blocks>(config_, backend_, dtype_, length));
    scratch_.reserve(blocks_.front()->scratch_bytes());
  } else {
    std::rotate(blocks_.begin(), found, found + 1);
  }
  return *blocks_.front();
}

void Reader::reserve(std::int64_t tokens) {
  if (tokens <= reserved_) return;
  reserved_ = std::min(std::max(tokens, 2 * reserved_), config_.context);
  const std::vector<std::int64_t> shape = {reserved_, config_.key_heads * config_.head_width};
  for (std::vector<OwnedTensor>* caches : {&keys_, &values_}) {
    for (OwnedTensor& cache : *caches) {
      OwnedTensor larger(dtype_, shape);
      if (cache.bytes() > 0) {
        std::memcpy(larger.as<std::byte>(), cache.as<std::byte>(), cache.bytes());
      }
      cache = std::move(larger);
    }
  }
}

std::vector<double> Reader::read(std::span<const std::int64_t> ids) {
  if (ids.empty()) throw InternalError("nothing to read");
  const auto context = static_cast<std::size_t>(config_.context);
  if (history_.size() + ids.size() <= context) return read_chunk(ids);
  // Positions start again at 0, so the kept half is read anew.
  std::vector<std::int64_t> kept = history_;
  kept.insert(kept.end(), ids.begin(), ids.end());
  const std::size_t half = std::max<std::size_t>(context / 2, 1);
  history_.clear();
  return read_chunk(std::span(kept).last(std::min(half, kept.size())));
}

std::vector<double> Reader::read_chunk(std::span<const std::int64_t> ids) {
  const auto length = static_cast<std::int64_t>(ids.size());
  const auto before = static_cast<std::int64_t>(history_.size());
  reserve(before + length);
  Blocks& b = blocks_for(length);
  std::ranges::copy(ids, b.ids.as<std::int64_t>());
  history_.insert(history_.end(), ids.begin(), ids.end());

  const RotaryTables rotary(config_, before, length, statistic_dtype(dtype_));
  const std::int64_t width = config_.key_heads * config_.head_width;
  // Rows [first, first + count) of a cache.
  const auto rows = [&](const OwnedTensor& cache, std::int64_t first, std::int64_t count) {
    auto* data = cache.as<std::byte>() +
                 static_cast<std::size_t>(first * width) * size_of(cache.tensor().dtype);
    return dense(data, cache.tensor().dtype, {count, width});
  };
  b.embedding.run({{"table", parameters_["model.embed_tokens.weight"]},
                   {"ids", b.ids.tensor()},
                   {"x", b.x.tensor()}},
                  scratch_.span());
  Sizes sizes = block_sizes(config_, 1, length);
  sizes["T"] = before + length;
  const CompiledBlock attend(attend_, backend_, sizes);
  scratch_.reserve(attend.scratch_bytes());
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    TensorMap tensors{{"x", b.x.tensor()},   {"q", b.q.tensor()},       {"o", b.o.tensor()},
                      {"h", b.h.tensor()},   {"cos", rotary.cosines()}, {"sin", rotary.sines()},
                      {"eps", eps_.tensor()}};
    add_layer_weights(parameters_, i, "", tensors);
    tensors["gamma"] = tensors["gamma1"];
    tensors["k"] = rows(keys_[at], before, length);
    tensors["v"] = rows(values_[at], before, length);
    b.qkv.run(tensors, scratch_.span());
    tensors["k"] = rows(keys_[at], 0, before + length);
    tensors["v"] = rows(values_[at], 0, before + length);
    attend.run(tensors, scratch_.span());
    b.output.run(tensors, scratch_.span());
    tensors["gamma"] = tensors["gamma2"];
    tensors["x"] = b.h.tensor();
    tensors["out"] = b.x.tensor();
    b.mlp.run(tensors, scratch_.span());
  }
  const bool tied = config_.embeddings == Embeddings::tied;
  auto* last = b.x.as<std::byte>() +
               static_cast<std::size_t>((length - 1) * config_.width) * size_of(dtype_);
  b.logits.run({{"h", dense(last, dtype_, {1, config_.width})},
                {"gamma", parameters_["model.norm.weight"]},
                {"w", parameters_[tied ? "model.embed_tokens.weight" : "lm_head.weight"]},
                {"eps", eps_.tensor()},
                {"z", b.z.tensor()}},
               scratch_.span());
  std::vector<double> logits;
  for (std::int64_t i = 0; i < config_.vocabulary; ++i) {
    logits.push_back(load(b.z.tensor().dtype, b.z.tensor().data, i));
  }
  return logits;
}

void generate_ids(Reader& reader, std::span<const std::int64_t> prompt, std::int64_t tokens,
                  const SamplingOptions& options, const std::function<bool(std::int64_t)>& write) {
  Random random(options.seed);
  std::vector<double> logits = reader.read(prompt);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t next[] = {sample(logits, options, random)};
    if (!write(next[0])) return;
    if (i + 1 < tokens) logits = reader.read(next);
  }
}

void generate(Reader& reader, std::string_view prompt, std::int64_t bytes,
              const SamplingOptions& options, const std::function<bool(char)>& write) {
  std::vector<std::int64_t> ids;
  for (const char c : prompt) ids.push_back(static_cast<unsigned char>(c));
  if (ids.empty()) ids.push_back('\n');
  generate_ids(reader, ids, bytes, options,
               [&](std::int64_t id) { return write(static_cast<char>(id)); });
}

}  // namespace coda
