// coda/cpu/allocate.cpp: how many rows are in work at once, and where each buffer lies in scratch.
//
// Buffers of rows share memory when their lifetimes in the statement list do not meet.
#include <algorithm>
#include <map>

#include "coda/cpu/lowering.h"

namespace coda::cpu {
namespace {

constexpr std::int64_t kAlign = 64;
// Elements of one buffer of rows: a few of them stay in L1, and calls are few.
constexpr std::int64_t kGroupElements = 4096;
constexpr std::int64_t kMostGroupRows = 256;

std::int64_t round_up(std::int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

template <class Each>
void for_each_buffer(const Statement& statement, const Each& each) {
  for (const Slot& slot : statement.slots) {
    if (slot.buffer >= 0) each(slot.buffer);
  }
  if (statement.mask >= 0) each(statement.mask);
}

// First and last statement that touches each buffer.
std::map<int, std::pair<std::size_t, std::size_t>> lifetimes(const std::vector<Statement>& list) {
  std::map<int, std::pair<std::size_t, std::size_t>> lives;
  for (std::size_t s = 0; s < list.size(); ++s) {
    for_each_buffer(list[s], [&](int buffer) {
      lives.emplace(buffer, std::pair(s, s)).first->second.second = s;
    });
  }
  return lives;
}

struct Free {
  std::int64_t offset, bytes;
};

// First fit over free ranges; returns the bytes used.
std::int64_t place(std::vector<Buffer>& buffers, const std::vector<Statement>& list,
                   std::int64_t group) {
  const auto lives = lifetimes(list);
  std::vector<Free> free;
  std::int64_t end = 0;
  const auto bytes_of = [&](int buffer) {
    const Buffer& b = buffers[static_cast<std::size_t>(buffer)];
    return round_up(b.elements * group * static_cast<std::int64_t>(lane_bytes(b.lane))) + kAlign;
  };
  for (std::size_t s = 0; s < list.size(); ++s) {
    for (const auto& [buffer, life] : lives) {
      Buffer& b = buffers[static_cast<std::size_t>(buffer)];
      if (b.kind != Buffer::Kind::group || life.first != s) continue;
      const std::int64_t bytes = bytes_of(buffer);
      const auto fit =
          std::ranges::find_if(free, [&](const Free& range) { return range.bytes >= bytes; });
      if (fit == free.end()) {
        b.offset = end;
        end += bytes;
      } else {
        b.offset = fit->offset;
        fit->offset += bytes;
        fit->bytes -= bytes;
      }
    }
    for (const auto& [buffer, life] : lives) {
      const Buffer& b = buffers[static_cast<std::size_t>(buffer)];
      if (b.kind == Buffer::Kind::group && life.second == s) {
        free.push_back({b.offset, bytes_of(buffer)});
      }
    }
  }
  return end;
}

// A result's memory may serve as the buffer of its value. Where parameters are read after the value
// is made, only if no parameter shares that memory, which a run knows.
void allow_aliases(const TileProgram& program, std::vector<Statement>& list, std::int64_t rows,
                   std::int64_t columns) {
  std::map<int, std::size_t> made;
  std::vector<char> loaded(program.buffers.size(), 0);
  std::size_t last_read = 0;
  for (std::size_t s = 0; s < list.size(); ++s) {
    const Statement& statement = list[s];
    if (statement.kind == Statement::Kind::store) continue;
    const bool loads = statement.kind == Statement::Kind::load;
    if (loads) loaded[static_cast<std::size_t>(statement.slots[0].buffer)] = 1;
    bool reads = loads || statement.kind == Statement::Kind::gather ||
                 statement.kind == Statement::Kind::load_join;
    for (int a = 1; a < statement.slot_count; ++a) {
      reads = reads || loaded[static_cast<std::size_t>(statement.slots[a].buffer)] != 0;
    }
    if (reads) last_read = s;
    if (statement.kind == Statement::Kind::map) made[statement.slots[0].buffer] = s;
  }
  std::vector<int> taken;
  for (Statement& statement : list) {
    if (statement.kind != Statement::Kind::store) continue;
    const int buffer = statement.slots[0].buffer;
    const Buffer& b = program.buffers[static_cast<std::size_t>(buffer)];
    const Access& access = program.accesses[static_cast<std::size_t>(statement.access)];
    std::int64_t covered_rows = 1, covered_columns = 1;
    for (const Access::Term& term : access.rows) {
      covered_rows *= term.place.block == 1 ? term.place.extent : 0;
    }
    for (const Access::Term& term : access.columns) {
      covered_columns *= term.place.block == 1 ? term.place.extent : 0;
    }
    const bool covers =
        covered_rows == rows && (covered_columns == columns || program.width == columns);
    const bool native = (b.lane == Lane::f32 && access.dtype == DType::f32) ||
                        (b.lane == Lane::f64 && access.dtype == DType::f64) ||
                        (b.lane == Lane::i64 && access.dtype == DType::i64);
    const auto maker = made.find(buffer);
    statement.may_alias = statement.may_alias && b.kind == Buffer::Kind::group && native &&
                          covers && b.elements >= 16 && statement.store == Store::overwrite &&
                          statement.mask < 0 && maker != made.end() &&
                          std::ranges::find(taken, buffer) == taken.end();
    if (!statement.may_alias) continue;
    taken.push_back(buffer);
    statement.reads_follow = maker->second < last_read;
  }
}

}  // namespace

void Lowering::allocate() {
  std::int64_t widest = 1;
  for (const Buffer& buffer : out_.buffers) {
    if (buffer.kind == Buffer::Kind::group) widest = std::max(widest, buffer.elements);
  }
  for (const int buffer : out_.accumulators) {
    widest = std::max(widest, out_.buffers[static_cast<std::size_t>(buffer)].elements);
  }
  out_.group =
      std::clamp<std::int64_t>(kGroupElements / widest, 1, std::min(kMostGroupRows, tile_rows_));
  std::int64_t end = 0;
  for (Buffer& buffer : out_.buffers) {
    if (buffer.kind == Buffer::Kind::group) continue;
    buffer.offset = end;
    end += round_up(buffer.elements * buffer.count *
                    static_cast<std::int64_t>(lane_bytes(buffer.lane))) +
           kAlign;
  }
  allow_aliases(out_, out_.row_statements, frame_.rows(), frame_.columns());
  for (const Statement& statement : out_.row_statements) {
    const bool transfers =
        statement.kind == Statement::Kind::load || statement.kind == Statement::Kind::store;
    if (transfers && statement.per_row) out_.streamed.push_back(statement.access);
  }
  for (Statement& statement : out_.tile_statements) {
    if (statement.kind == Statement::Kind::store) statement.may_alias = false;
  }
  for (TileProgram::Blocks& blocks : out_.blocks) {
    for (Statement& statement : blocks.statements) {
      if (statement.kind == Statement::Kind::store) statement.may_alias = false;
    }
  }
  // The row and block statements run one list after the other, so they share one area.
  std::int64_t area = place(out_.buffers, out_.row_statements, out_.group);
  for (const TileProgram::Blocks& blocks : out_.blocks) {
    area = std::max(area, place(out_.buffers, blocks.statements, out_.group));
  }
  for (Buffer& buffer : out_.buffers) {
    if (buffer.kind == Buffer::Kind::group) buffer.offset += end;
  }
  out_.scratch = end + area;
}

}  // namespace coda::cpu
