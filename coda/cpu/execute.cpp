// coda/cpu/execute.cpp: the loops over rows, and the statements that stay on chip.
#include "coda/cpu/execute.h"

#include <algorithm>
#include <cstring>

#include "coda/core/error.h"

namespace coda::cpu {
namespace {

// Calls body with the arguments moved along the extra loops.
template <class Body>
void for_each_extra(const std::vector<Statement::Extra>& extra, std::size_t level, Arg* args,
                    int count, std::int64_t bytes, const Body& body) {
  if (level == extra.size()) return body();
  Arg before[4];
  std::copy(args, args + count, before);
  for (std::int64_t i = 0; i < extra[level].n; ++i) {
    for (int a = 0; a < count; ++a)
      args[a].data = before[a].data + i * extra[level].step[a] * bytes;
    for_each_extra(extra, level + 1, args, count, bytes, body);
  }
  std::copy(before, before + count, args);
}

// Index of the block that a row is in, counted over all periods.
std::int64_t block_index(std::int64_t row, std::int64_t block, std::int64_t period) {
  const std::int64_t in_period = (period + block - 1) / block;
  return row / period * in_period + row % period / block;
}

std::int64_t block_end(std::int64_t row, std::int64_t block, std::int64_t period) {
  const std::int64_t inside = row % period;
  return row - inside + std::min(period, (inside / block + 1) * block);
}

}  // namespace

BoundProgram::BoundProgram(const TileProgram& program, std::span<const BoundTensor> tensors,
                           std::int64_t rows)
    : program(&program) {
  for (const Access& access : program.accesses) {
    const BoundTensor* tensor =
        access.tensor < 0 ? nullptr : &tensors[static_cast<std::size_t>(access.tensor)];
    accesses.emplace_back(access, tensor, rows);
  }
}

TileWorker::TileWorker(const BoundProgram& bound, std::byte* scratch)
    : bound_(&bound),
      program_(bound.program),
      scratch_(scratch),
      pointers_(program_->buffers.size()),
      row_steps_(program_->buffers.size()),
      accesses_(program_->accesses.size()) {}

std::byte* TileWorker::accumulator(std::size_t index) const {
  const Buffer& buffer = program_->buffers[static_cast<std::size_t>(program_->accumulators[index])];
  return scratch_ + buffer.offset;
}

void TileWorker::start_tile(std::int64_t column) {
  for (std::size_t b = 0; b < pointers_.size(); ++b) {
    const Buffer& buffer = program_->buffers[b];
    pointers_[b] = scratch_ + buffer.offset;
    row_steps_[b] = buffer.kind == Buffer::Kind::tile ? 0 : buffer.elements;
  }
  for (std::size_t a = 0; a < accesses_.size(); ++a) {
    accesses_[a].column = bound_->accesses[a].at_column(column);
    accesses_[a].owns = bound_->accesses[a].owns_column(column);
  }
}

void TileWorker::run(std::int64_t row, std::int64_t rows, std::int64_t column) {
  first_row_ = row;
  last_row_ = row + rows;
  column_ = column;
  start_tile(column);
  for (const Statement& statement : program_->tile_statements) execute(statement, row, 1);
  run_rows(row, rows);
  for (const TileProgram::Blocks& blocks : program_->blocks) run_blocks(blocks, row, rows);
}

void TileWorker::run_rows(std::int64_t row, std::int64_t rows) {
  if (program_->row_statements.empty()) return;
  const std::int64_t end = row + rows;
  while (row < end) {
    std::int64_t next = std::min(end, row + program_->group);
    for (const TileProgram::Blocks& blocks : program_->blocks) {
      next = std::min(next, block_end(row, blocks.block, blocks.period));
    }
    for (std::size_t b = 0; b < pointers_.size(); ++b) {
      const Buffer& buffer = program_->buffers[b];
      if (buffer.kind == Buffer::Kind::indexed) {
        pointers_[b] = scratch_ + buffer.offset +
                       (row - first_row_) * buffer.elements *
                           static_cast<std::int64_t>(lane_bytes(buffer.lane));
      } else if (buffer.kind == Buffer::Kind::group) {
        pointers_[b] = scratch_ + buffer.offset;
        row_steps_[b] = buffer.elements;
      }
    }
    direct_stores(row, next - row);
    // The next rows of every tensor come while these are in work: tiles are too narrow for the
    // processor to see it coming.
    const std::int64_t ahead = std::min(next - row, end - next);
    if (ahead > 0) {
      for (const int access : program_->streamed) {
        const auto index = static_cast<std::size_t>(access);
        bound_->accesses[index].prefetch(next, ahead, accesses_[index].column);
      }
    }
    for (const Statement& statement : program_->row_statements) execute(statement, row, next - row);
    row = next;
  }
}

// Values that are stored as they are go to the result's own memory where it lies like the buffer.
void TileWorker::direct_stores(std::int64_t row, std::int64_t rows) {
  for (const Statement& statement : program_->row_statements) {
    if (statement.kind != Statement::Kind::store || !statement.may_alias) continue;
    const BoundAccess& to = bound(statement.access);
    if (statement.reads_follow && !to.alone) continue;
    const TileAccess& tile = accesses_[static_cast<std::size_t>(statement.access)];
    if (!to.packed || !to.aligned || !to.all_rows() || to.run(row) < rows || !tile.owns) continue;
    const auto buffer = static_cast<std::size_t>(statement.slots[0].buffer);
    pointers_[buffer] = to.data + (to.at_row(row) + tile.column) * to.bytes;
    row_steps_[buffer] = to.row_stride;
  }
}

void TileWorker::run_blocks(const TileProgram::Blocks& blocks, std::int64_t row,
                            std::int64_t rows) {
  const std::int64_t end = row + rows;
  for (std::int64_t index = 0; row < end; ++index) {
    for (std::size_t b = 0; b < pointers_.size(); ++b) {
      const Buffer& buffer = program_->buffers[b];
      if (buffer.kind == Buffer::Kind::tile) continue;
      pointers_[b] = scratch_ + buffer.offset;
      row_steps_[b] = buffer.elements;
      if (buffer.kind == Buffer::Kind::indexed) {
        pointers_[b] +=
            index * buffer.elements * static_cast<std::int64_t>(lane_bytes(buffer.lane));
      }
    }
    for (const Statement& statement : blocks.statements) execute(statement, row, 1);
    row = block_end(row, blocks.block, blocks.period);
  }
}

void TileWorker::execute(const Statement& statement, std::int64_t row, std::int64_t rows) {
  switch (statement.kind) {
    case Statement::Kind::map:
      return map(statement, rows);
    case Statement::Kind::reduce:
      return reduce(statement, rows);
    case Statement::Kind::copy:
    case Statement::Kind::spill:
      return copy(statement, rows);
    case Statement::Kind::constant: {
      std::byte* to = data(statement.slots[0]);
      const auto number = static_cast<float>(statement.number);
      if (statement.lane == Lane::f32) std::memcpy(to, &number, sizeof number);
      if (statement.lane == Lane::f64) std::memcpy(to, &statement.number, sizeof statement.number);
      if (statement.lane == Lane::i64)
        std::memcpy(to, &statement.integer, sizeof statement.integer);
      return;
    }
    case Statement::Kind::load:
      return load(statement, row, rows);
    case Statement::Kind::load_join:
      return load_join(statement, row, rows);
    case Statement::Kind::load_block:
      return load_block(statement, row, rows);
    case Statement::Kind::store:
      return store(statement, row, rows);
    case Statement::Kind::position:
      return position(statement, row, rows);
    case Statement::Kind::uniform:
      return uniform(statement, row, rows);
    case Statement::Kind::gather:
      return gather(statement, row, rows);
    case Statement::Kind::pick:
      return pick(statement, rows);
    case Statement::Kind::row_reduce:
      return row_reduce(statement, row, rows);
    case Statement::Kind::block_reduce_rows:
      return block_reduce_rows(statement, row);
  }
}

std::byte* TileWorker::data(const Slot& slot) const {
  const auto buffer = static_cast<std::size_t>(slot.buffer);
  return pointers_[buffer] +
         slot.offset * static_cast<std::int64_t>(lane_bytes(program_->buffers[buffer].lane));
}

Arg TileWorker::arg(const Slot& slot) const {
  Arg arg;
  arg.data = data(slot);
  arg.step[0] = slot.by_row ? row_steps_[static_cast<std::size_t>(slot.buffer)] : 0;
  arg.step[1] = slot.step[0];
  arg.step[2] = slot.step[1];
  return arg;
}

void TileWorker::map(const Statement& statement, std::int64_t rows) {
  Arg args[4];
  const int count = statement.slot_count;
  Loops loops{{rows, statement.n[0], statement.n[1]}};
  bool flat = statement.may_flatten;
  for (int a = 0; a < count; ++a) {
    args[a] = arg(statement.slots[a]);
    flat = flat && (!statement.slots[a].by_row || args[a].step[0] == statement.n[1]);
  }
  if (statement.extra.empty()) {
    if (flat) loops = {{1, 1, rows * statement.n[1]}};
    return statement.map(loops, args);
  }
  // Operands of different lanes (i64 beside f32) have elements of different sizes.
  std::int64_t bytes[4];
  for (int a = 0; a < count; ++a) {
    const auto buffer = static_cast<std::size_t>(statement.slots[a].buffer);
    bytes[a] = static_cast<std::int64_t>(lane_bytes(program_->buffers[buffer].lane));
  }
  std::vector<std::int64_t> index(statement.extra.size(), 0);
  for (;;) {
    Arg moved[4];
    for (int a = 0; a < count; ++a) {
      moved[a] = args[a];
      for (std::size_t e = 0; e < index.size(); ++e) {
        moved[a].data += index[e] * statement.extra[e].step[a] * bytes[a];
      }
    }
    if (std::ranges::none_of(statement.extra, [](const auto& e) { return e.n == 0; })) {
      statement.map(loops, moved);
    }
    std::size_t e = index.size();
    while (e > 0 && ++index[e - 1] >= statement.extra[e - 1].n) index[--e] = 0;
    if (e == 0) return;
  }
}

void TileWorker::reduce(const Statement& statement, std::int64_t rows) {
  const auto bytes = static_cast<std::int64_t>(lane_bytes(statement.lane));
  const Arg out = arg(statement.slots[0]), in = arg(statement.slots[1]);
  // Loops of the kernel: rows, reduced, inner.
  Arg args[2] = {out, in};
  args[0].step[1] = 0;
  const auto run = [&](std::int64_t outer) {
    statement.reduce(Loops{{outer, statement.n[0], statement.n[1]}}, args[0], args[1],
                     Begin::fresh);
  };
  if (statement.extra.size() == 1) {
    const Statement::Extra& extra = statement.extra[0];
    const bool flat = rows == 1 || (in.step[0] == extra.n * extra.step[1] &&
                                    out.step[0] == extra.n * extra.step[0]);
    if (flat) {
      args[0].step[0] = extra.step[0];
      args[1].step[0] = extra.step[1];
      return run(rows * extra.n);
    }
  }
  for_each_extra(statement.extra, 0, args, 2, bytes, [&] { run(rows); });
}

void TileWorker::copy(const Statement& statement, std::int64_t rows) {
  const auto bytes = static_cast<std::int64_t>(lane_bytes(statement.lane));
  Arg args[2] = {arg(statement.slots[0]), arg(statement.slots[1])};
  if (statement.kind == Statement::Kind::spill) args[0].step[2] = args[1].step[2] = 1;
  const Loops loops{{rows, statement.n[0], statement.n[1]}};
  for_each_extra(statement.extra, 0, args, 2, bytes,
                 [&] { copy_loops(static_cast<std::size_t>(bytes), loops, args[0], args[1]); });
}

void TileWorker::row_reduce(const Statement& statement, std::int64_t row, std::int64_t rows) {
  const auto to = static_cast<std::size_t>(statement.slots[0].buffer);
  const Buffer& buffer = program_->buffers[to];
  const std::int64_t block = block_index(row, statement.block, statement.period) -
                             block_index(first_row_, statement.block, statement.period);
  Arg out;
  out.data = scratch_ + buffer.offset +
             block * buffer.elements * static_cast<std::int64_t>(lane_bytes(buffer.lane));
  out.step[2] = 1;
  Arg in = arg(statement.slots[1]);
  in.step[1] = in.step[0];
  in.step[2] = 1;
  const bool first = row % statement.period % statement.block == 0;
  statement.reduce(Loops{{1, rows, statement.n[1]}}, out, in,
                   first ? Begin::fresh : Begin::proceed);
}

void TileWorker::block_reduce_rows(const Statement& statement, std::int64_t row) {
  const auto from = static_cast<std::size_t>(statement.slots[1].buffer);
  const Buffer& buffer = program_->buffers[from];
  const std::int64_t end = std::min(last_row_, block_end(row, statement.block, statement.period));
  Arg in;
  in.data =
      scratch_ + buffer.offset +
      (row - first_row_) * buffer.elements * static_cast<std::int64_t>(lane_bytes(buffer.lane));
  in.step[1] = buffer.elements;
  in.step[2] = 1;
  Arg out = arg(statement.slots[0]);
  out.step[1] = 0;
  out.step[2] = 1;
  statement.reduce(Loops{{1, end - row, statement.n[1]}}, out, in, Begin::fresh);
}

void TileWorker::pick(const Statement& statement, std::int64_t rows) {
  const auto bytes = static_cast<std::int64_t>(lane_bytes(statement.lane));
  std::int64_t all = 1;
  bool first_tile = true;
  for (const Statement::Digit& digit : statement.digits) {
    all *= digit.extent;
    first_tile = first_tile && digit.column.at(column_) == 0;
  }
  const bool masked = statement.slot_count == 4;
  const Arg out = arg(statement.slots[0]), from = arg(statement.slots[1]);
  const Arg ids = arg(statement.slots[2]);
  for (std::int64_t r = 0; r < rows; ++r) {
    // Kept axes: an odometer over the extra loops.
    std::vector<std::int64_t> index(statement.extra.size(), 0);
    for (;;) {
      std::int64_t to = r * out.step[0], at = r * from.step[0], id_at = r * ids.step[0];
      for (std::size_t e = 0; e < index.size(); ++e) {
        to += index[e] * statement.extra[e].step[0];
        at += index[e] * statement.extra[e].step[1];
        id_at += index[e] * statement.extra[e].step[2];
      }
      std::int64_t id = 0;
      std::memcpy(&id, ids.data + id_at * 8, sizeof id);
      const bool valid = id >= 0 && id < all;
      bool here = valid;
      for (std::size_t d = statement.digits.size(); here && d-- > 0;) {
        const Statement::Digit& digit = statement.digits[d];
        const std::int64_t coordinate = id % digit.extent - digit.column.at(column_);
        id /= digit.extent;
        here = coordinate >= 0 && coordinate < digit.held;
        at += coordinate * digit.step;
      }
      std::byte* target = out.data + to * bytes;
      if (here) {
        std::memcpy(target, from.data + at * bytes, static_cast<std::size_t>(bytes));
      } else {
        std::memset(target, 0, static_cast<std::size_t>(bytes));
      }
      if (masked) {
        const bool owner = here || (!valid && first_tile);
        const Arg mask = arg(statement.slots[3]);
        const bool wide =
            program_->buffers[static_cast<std::size_t>(statement.slots[3].buffer)].lane ==
            Lane::f64;
        if (wide) {
          reinterpret_cast<double*>(mask.data)[r * mask.step[0]] = owner ? 1 : 0;
        } else {
          reinterpret_cast<float*>(mask.data)[r * mask.step[0]] = owner ? 1 : 0;
        }
      }
      std::size_t e = index.size();
      while (e > 0 && ++index[e - 1] >= statement.extra[e - 1].n) index[--e] = 0;
      if (e == 0) break;
    }
  }
}

}  // namespace coda::cpu
