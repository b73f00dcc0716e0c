#include "runtime/sim/decode.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "jit/base/error.h"
#include "runtime/sim/numbers.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {
namespace {

constexpr int kDeepestCall = 16;
constexpr int kMostCalls = 4096;  // inlined ones, each a copy of its function

int64_t align_up(int64_t value, int64_t align) { return (value + align - 1) / align * align; }

// What a name of a function body stands for.
struct Place {
  Space space = Space::global;
  bool is_body_param = false;  // a .param of a call, kept in local memory
  uint64_t address = 0;
};
using Places = std::map<std::string, Place, std::less<>>;

class Decoder : public Binder {
 public:
  Decoder(std::shared_ptr<const Module> module, std::string_view entry,
          const SymbolAddresses& addresses)
      : addresses_(addresses) {
    program_ = std::make_shared<Program>();
    program_->module = std::move(module);
    program_->entry = std::string(entry);
  }

  std::shared_ptr<const Program> run();

  // Binder.
  void address(const Operand& operand, Space space) override;
  uint64_t symbol_address(std::string_view name) override { return find_place(name).address; }

 protected:
  void add_row(const Operand& operand, Type type, RowUse use) override;
  RegisterClass class_of(const Operand& operand) const override {
    return registers_[register_of(operand.reg)];
  }

 private:
  // One inlined function, or the entry.
  struct Frame {
    const Function* function = nullptr;
    int first_register = 0;
    Places places;
    std::map<std::string, uint32_t, std::less<>> labels;
    std::vector<std::pair<size_t, std::string>> branches;  // instruction, label
    std::vector<size_t> returns;                           // branches to the end
  };

  size_t register_of(int reg) const { return static_cast<size_t>(frame_->first_register + reg); }
  const Place& find_place(std::string_view name) const;
  std::vector<const Function*> reachable_functions(const Function& entry) const;
  void place_shared(const std::vector<const Function*>& functions);
  void place_variables(Frame& frame);
  void place_module_variables();
  void emit_function(Frame& frame, int depth);
  void emit(const Statement& statement, int depth);
  void begin(const Statement& statement);
  void finish();
  bool control_flow(const Statement& statement, int depth);
  void barrier();
  void call(const Statement& statement, int depth);
  Row constant(uint64_t bits, int bytes);
  uint64_t immediate_bits(const Operand& operand, Type type) const;
  Row special(std::string_view name, Type type);
  void push_row(Row row, RowUse use = {});
  void place_registers();

  const SymbolAddresses& addresses_;
  std::shared_ptr<Program> program_;
  Frame* frame_ = nullptr;
  std::vector<RegisterClass> registers_;
  std::vector<RowUse> uses_;       // of program_->rows
  std::vector<size_t> first_row_;  // of each instruction
  std::map<std::pair<uint64_t, int>, Row> constants_;
  Places module_places_;
  std::map<const Variable*, uint64_t> shared_;  // of the module and of all reachable functions
  bool rewrites_param_ = false;
  int calls_ = 0;
  Instruction building_;
};

const Place& Decoder::find_place(std::string_view name) const {
  if (const auto found = frame_->places.find(name); found != frame_->places.end())
    return found->second;
  if (const auto found = module_places_.find(name); found != module_places_.end())
    return found->second;
  unsupported(fmt::format("\"{}\" is not a variable", name));
}

// The function that a call names, if it has a body.
const Function* callee_of(const Module& module, const Statement& statement) {
  for (const Operand& operand : statement.operands) {
    if (operand.kind != Operand::Kind::symbol) continue;
    const Function* const callee = module.find(operand.name);
    return callee != nullptr && callee->has_body ? callee : nullptr;
  }
  return nullptr;
}

std::vector<const Function*> Decoder::reachable_functions(const Function& entry) const {
  std::vector<const Function*> functions{&entry};
  for (size_t f = 0; f < functions.size(); ++f) {
    for (const Statement& statement : functions[f]->statements) {
      if (statement.name[0] != "call") continue;
      const Function* const callee = callee_of(*program_->module, statement);
      if (callee != nullptr &&
          std::find(functions.begin(), functions.end(), callee) == functions.end())
        functions.push_back(callee);
    }
  }
  return functions;
}

// A variable has one place, however often its function is called. Dynamic shared memory lies behind
// what is static; its variables all begin there.
void Decoder::place_shared(const std::vector<const Function*>& functions) {
  std::vector<const Variable*> dynamic;
  int64_t& bytes = program_->static_shared_bytes;
  const auto place = [&](const std::vector<Variable>& variables) {
    for (const Variable& variable : variables) {
      if (variable.space != Space::shared) continue;
      if (variable.bytes == 0) {
        dynamic.push_back(&variable);
        continue;
      }
      bytes = align_up(bytes, variable.align);
      shared_[&variable] = static_cast<uint64_t>(bytes);
      bytes += variable.bytes;
    }
  };
  place(program_->module->variables);
  for (const Function* const function : functions) place(function->variables);
  int64_t align = 16;
  for (const Variable* const variable : dynamic) align = std::max(align, variable->align);
  program_->dynamic_shared_offset = align_up(bytes, align);
  for (const Variable* const variable : dynamic)
    shared_[variable] = static_cast<uint64_t>(program_->dynamic_shared_offset);
}

void Decoder::place_module_variables() {
  for (const Variable& variable : program_->module->variables) {
    Place place{.space = variable.space};
    if (variable.space == Space::shared) {
      place.address = shared_.at(&variable);
    } else {
      const auto found = addresses_.find(variable.name);
      if (found == addresses_.end())
        fail(Status::internal, "The variable {} of a module has no address", variable.name);
      place.address = found->second;
    }
    module_places_[variable.name] = place;
  }
}

void Decoder::place_variables(Frame& frame) {
  for (const Variable& variable : frame.function->variables) {
    Place place{.space = variable.space};
    switch (variable.space) {
      case Space::shared:
        place.address = shared_.at(&variable);
        break;
      case Space::param:
        place.is_body_param = true;
        place.space = Space::local;
        [[fallthrough]];
      case Space::local:
        program_->local_bytes =
            align_up(program_->local_bytes, std::max<int64_t>(variable.align, 8));
        place.address = static_cast<uint64_t>(program_->local_bytes);
        program_->local_bytes += variable.bytes;
        break;
      default: {
        const auto found = addresses_.find(variable.name);
        if (found == addresses_.end())
          fail(Status::unsupported, "The simulator has no place for the variable {} of a function",
               variable.name);
        place.address = found->second;
      }
    }
    frame.places[variable.name] = place;
  }
}

void Decoder::push_row(Row row, RowUse use) {
  program_->rows.push_back(row);
  uses_.push_back(use);
}

Row Decoder::constant(uint64_t bits, int bytes) {
  const auto [place, is_new] = constants_.try_emplace({bits, bytes});
  if (!is_new) return place->second;
  std::vector<std::byte>& bank = program_->constants;
  place->second = {.offset = static_cast<uint32_t>(bank.size()), .bank = Bank::constants};
  const size_t lanes = bytes == 0 ? 1 : kLanes;  // 0: a predicate
  const size_t width = bytes == 8 ? 8 : 4;
  bank.resize(align_up(static_cast<int64_t>(bank.size() + lanes * width), 32));
  for (size_t lane = 0; lane < lanes; ++lane)
    std::memcpy(bank.data() + place->second.offset + lane * width, &bits, width);
  return place->second;
}

uint64_t Decoder::immediate_bits(const Operand& operand, Type type) const {
  const int bits = type_bits(type);
  if (type == Type::pred) return operand.bits != 0 ? 0xffffffff : 0;
  if (!operand.is_float) {
    if (type == Type::f64)
      return std::bit_cast<uint64_t>(static_cast<double>(static_cast<int64_t>(operand.bits)));
    if (type == Type::f32)
      return std::bit_cast<uint32_t>(static_cast<float>(static_cast<int64_t>(operand.bits)));
    return bits >= 64 ? operand.bits : operand.bits & ((uint64_t{1} << bits) - 1);
  }
  if (bits == 64) return operand.bits;
  if (bits != 32) unsupported("a float immediate needs a type of 32 or 64 bits");
  constexpr uint64_t kInfinity = uint64_t{0x7ff} << 52;
  if ((operand.bits & ~(uint64_t{1} << 63)) > kInfinity) {  // a NaN keeps its payload
    return (operand.bits >> 63 << 31) | 0x7f800000 | (operand.bits >> 29 & 0x7fffff);
  }
  return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(operand.bits)));
}

Row Decoder::special(std::string_view name, Type type) {
  if (type_bits(type) > 32) unsupported("a special register of 32 bits is read as 64");
  constexpr std::pair<std::string_view, Special> kNames[] = {
      {"%tid.x", Special::tid_x},
      {"%tid.y", Special::tid_y},
      {"%tid.z", Special::tid_z},
      {"%ntid.x", Special::ntid_x},
      {"%ntid.y", Special::ntid_y},
      {"%ntid.z", Special::ntid_z},
      {"%ctaid.x", Special::ctaid_x},
      {"%ctaid.y", Special::ctaid_y},
      {"%ctaid.z", Special::ctaid_z},
      {"%nctaid.x", Special::nctaid_x},
      {"%nctaid.y", Special::nctaid_y},
      {"%nctaid.z", Special::nctaid_z},
      {"%laneid", Special::laneid},
      {"%warpid", Special::warpid},
      {"%nwarpid", Special::nwarpid},
      {"%smid", Special::smid},
      {"%nsmid", Special::nsmid},
      {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_lt", Special::lanemask_lt},
      {"%lanemask_ge", Special::lanemask_ge},
      {"%lanemask_gt", Special::lanemask_gt},
      {"%dynamic_smem_size", Special::dynamic_smem_size},
      {"%total_smem_size", Special::total_smem_size}};
  for (const auto& [known, row] : kNames) {
    if (known == name) return {.offset = special_offset(row), .bank = Bank::specials};
  }
  unsupported(fmt::format("the special register {} cannot be read here", name));
}

void Decoder::add_row(const Operand& operand, Type type, RowUse use) {
  switch (operand.kind) {
    case Operand::Kind::reg: {
      const RegisterClass kind = class_of(operand);
      const int bits = type_bits(type);
      const bool fits = type == Type::pred ? kind == RegisterClass::predicate
                        : bits <= 16       ? kind == RegisterClass::bits16
                        : bits == 32       ? kind == RegisterClass::bits32
                                           : kind == RegisterClass::bits64;
      if (!fits || bits > 64) unsupported("the type of a register does not fit the instruction");
      push_row({.offset = static_cast<uint32_t>(register_of(operand.reg)),
                .bank = Bank::registers,
                .negated = operand.negated},
               use);
      return;
    }
    case Operand::Kind::sink:
      if (use.reads && !use.writes) unsupported("the sink _ cannot be read");
      push_row({.offset = special_offset(Special::sink), .bank = Bank::specials});
      return;
    case Operand::Kind::immediate: {
      if (use.writes) unsupported("an immediate cannot be written");
      Row row = constant(immediate_bits(operand, type), type == Type::pred      ? 0
                                                        : type_bits(type) == 64 ? 8
                                                                                : 4);
      row.negated = operand.negated;
      push_row(row);
      return;
    }
    case Operand::Kind::special:
      if (use.writes) unsupported("a special register cannot be written");
      push_row(special(operand.name, type));
      return;
    case Operand::Kind::symbol: {
      if (use.writes) unsupported("the address of a variable cannot be written");
      const uint64_t address =
          find_place(operand.name).address + static_cast<uint64_t>(operand.offset);
      push_row(constant(address, type_bits(type) == 64 ? 8 : 4));
      return;
    }
    case Operand::Kind::address:
    case Operand::Kind::group:
      unsupported("an operand has a form that the instruction does not take");
  }
}

void Decoder::address(const Operand& operand, Space) {
  if (operand.kind != Operand::Kind::address) unsupported("expected an address in brackets");
  instruction_->offset = operand.offset;
  if (operand.reg < 0) {
    uint64_t base = 0;
    if (!operand.name.empty()) {
      const Place& place = find_place(operand.name);
      base = place.address;
      if (place.is_body_param) rewrites_param_ = true;
    }
    push_row(constant(base, 8));
    return;
  }
  const auto reg = static_cast<uint32_t>(register_of(operand.reg));
  if (registers_[reg] == RegisterClass::bits64) {
    push_row({.offset = reg}, {.reads = true});
    return;
  }
  if (registers_[reg] != RegisterClass::bits32)
    unsupported("an address needs a register of 32 or 64 bits");
  instruction_->narrow_address = true;
  push_row({.offset = reg}, {.reads = true});
}

void Decoder::begin(const Statement& statement) {
  statement_ = &statement;
  building_ = {};
  instruction_ = &building_;
  building_.statement = static_cast<int32_t>(program_->statements.size());
  program_->statements.push_back(&statement);
  taken_.assign(statement.name.size(), false);
  rewrites_param_ = false;
  first_row_.push_back(program_->rows.size());
  if (statement.guard >= 0) {
    building_.has_guard = true;
    building_.guard_negated = statement.guard_negated;
    building_.guard = {.offset = static_cast<uint32_t>(register_of(statement.guard))};
  }
}

void Decoder::finish() {
  for (size_t i = 1; i < taken_.size(); ++i) {
    if (!taken_[i]) unsupported(fmt::format(".{} is not known here", statement_->name[i]));
  }
  if (rewrites_param_) building_.space = Space::local;
  building_.row_count = static_cast<uint8_t>(program_->rows.size() - first_row_.back());
  program_->code.push_back(building_);
}

void Decoder::barrier() {
  building_.flow = Flow::barrier;
  building_.aligned = op() == "bar";
  take("cta");
  if (take("aligned")) building_.aligned = true;
  BarrierKind kind = BarrierKind::sync;
  int first = 0;
  if (take("arrive")) {
    kind = BarrierKind::arrive;
  } else if (take("red")) {
    if (take("popc")) {
      kind = BarrierKind::popc;
      require_type();
    } else if (take("and") && take("pred")) {
      kind = BarrierKind::all;
    } else if (take("or") && take("pred")) {
      kind = BarrierKind::any;
    } else {
      unsupported("expected .popc.u32, .and.pred or .or.pred");
    }
    first = 1;
  } else if (!take("sync")) {
    unsupported("expected .sync, .arrive, .red or .warp.sync");
  }
  building_.mode = static_cast<uint8_t>(kind);
  if (kind == BarrierKind::arrive && operand_count() < 2)
    unsupported("who only arrives has to say how many threads the barrier has");
  require_operands(first == 1 ? 3 : 1, first == 1 ? 4 : 2);
  const int last = operand_count() - (first == 1 ? 1 : 0);
  source(operand(first), Type::u32);
  if (last - first > 1) {
    source(operand(first + 1), Type::u32);
  } else {
    push_row({.offset = special_offset(Special::zero), .bank = Bank::specials});
  }
  if (first == 1) {
    target(operand(0), kind == BarrierKind::popc ? Type::u32 : Type::pred);
    source(operand(last), Type::pred);
  }
}

bool Decoder::control_flow(const Statement& statement, int depth) {
  const std::string_view name = statement.name[0];
  if (name == "bra") {
    take("uni");
    require_operands(1, 1);
    building_.flow = Flow::branch;
    frame_->branches.emplace_back(program_->code.size(), operand(0).name);
  } else if (name == "brx") {
    if (!take("idx")) unsupported("expected brx.idx");
    take("uni");
    building_.flow = Flow::branch_index;
    source(operand(0), Type::u32);
    const auto found = frame_->function->branch_targets.find(operand(1).name);
    if (found == frame_->function->branch_targets.end()) unsupported("its table was not found");
    building_.target = static_cast<uint32_t>(program_->tables.size());
    program_->tables.emplace_back();
    for (const std::string& label : found->second) {
      frame_->branches.emplace_back(program_->code.size(), label);
    }
  } else if (name == "exit" || name == "ret") {
    take("uni");
    if (name == "ret" && depth > 0) {
      building_.flow = Flow::branch;
      frame_->returns.push_back(program_->code.size());
    } else {
      building_.flow = Flow::exit;
    }
  } else if (name == "nanosleep") {
    take("u32");
    require_operands(1, 1);
    source(operand(0), Type::u32);
    building_.flow = Flow::pause;
  } else if ((name == "bar" || name == "barrier") && statement.name.size() > 1 &&
             statement.name[1] != "warp") {
    barrier();
  } else {
    return false;
  }
  return true;
}

void Decoder::emit(const Statement& statement, int depth) {
  if (statement.name[0] == "call") return call(statement, depth);
  begin(statement);
  const bool known = control_flow(statement, depth) || bind_system(*this) || bind_memory(*this) ||
                     bind_arithmetic(*this) || bind_convert(*this) || bind_warp(*this);
  if (!known) unsupported("the instruction is not known");
  finish();
}

void Decoder::call(const Statement& statement, int depth) {
  begin(statement);
  take("uni");
  // (results), function, (arguments) with the lists optional
  if (statement.operands.empty()) unsupported("it does not say what it calls");
  const Operand* results = nullptr;
  size_t at = 0;
  if (statement.operands[0].kind == Operand::Kind::group) results = &statement.operands[at++];
  if (at >= statement.operands.size() || statement.operands[at].kind != Operand::Kind::symbol)
    unsupported("only calls of named functions are supported");
  const std::string& name = statement.operands[at++].name;
  static const Operand kNone{.kind = Operand::Kind::group};
  const Operand& arguments = at < statement.operands.size() ? statement.operands[at] : kNone;
  const Function* callee = program_->module->find(name);
  if (callee == nullptr || !callee->has_body) {
    // What the device runtime offers: bind_system knows the name, the rows are the addresses of the
    // arguments and of the result in local memory.
    if (!bind_system(*this)) unsupported(fmt::format("the function {} has no body", name));
    for (const Operand& argument : arguments.parts)
      push_row(constant(find_place(argument.name).address, 8));
    if (results != nullptr) {
      for (const Operand& result : results->parts)
        push_row(constant(find_place(result.name).address, 8));
    }
    return finish();
  }
  if (building_.has_guard) unsupported("a call under a guard is not supported");
  if (depth >= kDeepestCall) unsupported("calls are nested too deeply, or recursive");
  if (++calls_ > kMostCalls)
    unsupported(
        fmt::format("the kernel has more than {} calls, each of which becomes a copy", kMostCalls));
  first_row_.pop_back();
  program_->statements.pop_back();

  Frame frame{.function = callee, .first_register = static_cast<int>(registers_.size())};
  for (const Register& reg : callee->registers) registers_.push_back(reg.kind);
  const auto bind = [&](const std::vector<Variable>& formal, const Operand& actual) {
    if (formal.size() != actual.parts.size()) unsupported("the arguments do not fit the function");
    for (size_t i = 0; i < formal.size(); ++i)
      frame.places[formal[i].name] = find_place(actual.parts[i].name);
  };
  bind(callee->params, arguments);
  bind(callee->results, results != nullptr ? *results : kNone);
  place_variables(frame);
  Frame* const caller = frame_;
  emit_function(frame, depth + 1);
  frame_ = caller;
}

void Decoder::emit_function(Frame& frame, int depth) {
  frame_ = &frame;
  const Function& function = *frame.function;
  std::vector<std::pair<size_t, std::string_view>> labels;
  for (const auto& [name, statement] : function.labels) labels.emplace_back(statement, name);
  std::sort(labels.begin(), labels.end());
  auto label = labels.begin();
  for (size_t i = 0; i <= function.statements.size(); ++i) {
    for (; label != labels.end() && label->first == i; ++label)
      frame.labels[std::string(label->second)] = static_cast<uint32_t>(program_->code.size());
    if (i == function.statements.size()) break;
    emit(function.statements[i], depth);
    frame_ = &frame;
  }
  for (const auto& [index, name] : frame.branches) {
    const auto found = frame.labels.find(name);
    Instruction& branch = program_->code[index];
    if (found == frame.labels.end()) {
      fail(Status::invalid_argument, "PTX: the label {} of a branch in {} was not found", name,
           function.name);
    }
    if (branch.flow == Flow::branch_index) {
      program_->tables[branch.target].push_back(found->second);
    } else {
      branch.target = found->second;
    }
  }
  for (const size_t index : frame.returns)
    program_->code[index].target = static_cast<uint32_t>(program_->code.size());
}

std::shared_ptr<const Program> Decoder::run() {
  const Function* function = program_->module->find(program_->entry);
  if (function == nullptr || !function->is_entry) {
    fail(Status::not_found, "The PTX has no kernel called {}", program_->entry);
  }
  Frame frame{.function = function};
  for (const Register& reg : function->registers) registers_.push_back(reg.kind);
  for (const Variable& param : function->params) {
    program_->param_bytes = align_up(program_->param_bytes, param.align);
    frame.places[param.name] = {.space = Space::param,
                                .address = static_cast<uint64_t>(program_->param_bytes)};
    program_->param_bytes += param.bytes;
  }
  place_shared(reachable_functions(*function));
  place_module_variables();
  place_variables(frame);
  emit_function(frame, 0);
  static const Statement kEnd{.text = "(end of the function)", .name = {"exit"}};
  begin(kEnd);
  building_.flow = Flow::exit;
  taken_.assign(1, true);
  finish();
  place_registers();
  return program_;
}

// Liveness over basic blocks, then one interval for each register, then places by linear scan.
void Decoder::place_registers() {
  std::vector<Instruction>& code = program_->code;
  const size_t count = code.size();
  const size_t words = (registers_.size() + 63) / 64;

  std::vector<bool> begins(count + 1, false);
  begins[0] = true;
  for (size_t i = 0; i < count; ++i) {
    if (code[i].flow == Flow::simple) continue;
    begins[i + 1] = true;
    if (code[i].flow == Flow::branch) begins[code[i].target] = true;
    if (code[i].flow == Flow::branch_index) {
      for (const uint32_t target : program_->tables[code[i].target]) begins[target] = true;
    }
  }
  struct Block {
    size_t begin = 0, end = 0;
    std::vector<uint64_t> in, out, reads, kills;
    std::vector<size_t> next;
  };
  std::vector<Block> blocks;
  std::vector<size_t> block_of(count);
  for (size_t i = 0; i < count; ++i) {
    if (begins[i]) blocks.push_back({.begin = i});
    blocks.back().end = i + 1;
    block_of[i] = blocks.size() - 1;
  }
  const auto set = [](std::vector<uint64_t>& bits, size_t i) {
    bits[i / 64] |= uint64_t{1} << i % 64;
  };
  const auto has = [](const std::vector<uint64_t>& bits, size_t i) {
    return (bits[i / 64] >> i % 64 & 1) != 0;
  };
  const auto visit = [&](size_t i, auto read, auto write) {
    const Instruction& instruction = code[i];
    if (instruction.has_guard) read(instruction.guard.offset);
    for (size_t r = 0; r < instruction.row_count; ++r) {
      const size_t index = first_row_[i] + r;
      const Row& row = program_->rows[index];
      if (row.bank != Bank::registers) continue;
      if (uses_[index].reads) read(row.offset);
    }
    for (size_t r = 0; r < instruction.row_count; ++r) {
      const size_t index = first_row_[i] + r;
      const Row& row = program_->rows[index];
      if (row.bank == Bank::registers && uses_[index].writes) write(row.offset);
    }
  };
  for (Block& block : blocks) {
    block.in.assign(words, 0);
    block.out.assign(words, 0);
    block.reads.assign(words, 0);
    block.kills.assign(words, 0);
    for (size_t i = block.begin; i < block.end; ++i) {
      visit(
          i,
          [&](size_t reg) {
            if (!has(block.kills, reg)) set(block.reads, reg);
          },
          [&](size_t reg) {
            if (!code[i].has_guard) set(block.kills, reg);
          });
    }
    const Instruction& last = code[block.end - 1];
    const bool falls = last.flow != Flow::exit && !(last.flow == Flow::branch && !last.has_guard) &&
                       last.flow != Flow::branch_index;
    if ((falls || last.has_guard) && block.end < count) block.next.push_back(block_of[block.end]);
    if (last.flow == Flow::branch) block.next.push_back(block_of[last.target]);
    if (last.flow == Flow::branch_index) {
      for (const uint32_t target : program_->tables[last.target])
        block.next.push_back(block_of[target]);
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = blocks.size(); b-- > 0;) {
      Block& block = blocks[b];
      for (const size_t next : block.next) {
        for (size_t w = 0; w < words; ++w) block.out[w] |= blocks[next].in[w];
      }
      for (size_t w = 0; w < words; ++w) {
        const uint64_t in = block.reads[w] | (block.out[w] & ~block.kills[w]);
        if (in != block.in[w]) {
          block.in[w] = in;
          changed = true;
        }
      }
    }
  }

  struct Interval {
    size_t reg = 0, begin = SIZE_MAX, end = 0;
  };
  std::vector<Interval> intervals(registers_.size());
  const auto extend = [&](size_t reg, size_t at) {
    intervals[reg].begin = std::min(intervals[reg].begin, at);
    intervals[reg].end = std::max(intervals[reg].end, at);
  };
  for (size_t reg = 0; reg < intervals.size(); ++reg) intervals[reg].reg = reg;
  for (const Block& block : blocks) {
    for (size_t w = 0; w < words; ++w) {
      for (uint64_t bits = block.in[w]; bits != 0; bits &= bits - 1)
        extend(w * 64 + static_cast<size_t>(std::countr_zero(bits)), 2 * block.begin);
      for (uint64_t bits = block.out[w]; bits != 0; bits &= bits - 1)
        extend(w * 64 + static_cast<size_t>(std::countr_zero(bits)), 2 * block.end);
    }
    for (size_t i = block.begin; i < block.end; ++i) {
      // A result never shares a place with a source of its own instruction: handlers write lanes
      // while they still read others.
      visit(
          i, [&](size_t reg) { extend(reg, 2 * i + 1); },
          [&](size_t reg) {
            extend(reg, 2 * i);
            extend(reg, 2 * i + 1);
          });
    }
  }
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });

  constexpr size_t kClasses = 3;  // predicates, words, double words
  constexpr int64_t kBytes[kClasses] = {4, kRowBytes, 2 * kRowBytes};
  const auto class_index = [&](size_t reg) -> size_t {
    switch (registers_[reg]) {
      case RegisterClass::predicate:
        return 0;
      case RegisterClass::bits64:
        return 2;
      default:
        return 1;
    }
  };
  std::vector<uint32_t> free_slots[kClasses];
  uint32_t used[kClasses] = {0, 0, 0};
  std::vector<uint32_t> slots(registers_.size(), 0);
  using Ending = std::pair<size_t, size_t>;  // end, register
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> active;
  for (const Interval& interval : intervals) {
    if (interval.begin == SIZE_MAX) continue;
    while (!active.empty() && active.top().first < interval.begin) {
      const size_t reg = active.top().second;
      free_slots[class_index(reg)].push_back(slots[reg]);
      active.pop();
    }
    const size_t kind = class_index(interval.reg);
    if (free_slots[kind].empty()) {
      slots[interval.reg] = used[kind]++;
    } else {
      slots[interval.reg] = free_slots[kind].back();
      free_slots[kind].pop_back();
    }
    active.emplace(interval.end, interval.reg);
  }
  int64_t base[kClasses];
  base[0] = 0;
  base[1] = align_up(used[0] * kBytes[0], 64);
  base[2] = base[1] + used[1] * kBytes[1];
  program_->register_bytes = base[2] + used[2] * kBytes[2];
  const auto place_of = [&](size_t reg) {
    const size_t kind = class_index(reg);
    return static_cast<uint32_t>(base[kind] + slots[reg] * kBytes[kind]);
  };
  for (size_t reg = 0; reg < registers_.size(); ++reg) {
    if (!has(blocks.front().in, reg)) continue;
    program_->unset.push_back(
        {.offset = place_of(reg), .bytes = static_cast<uint32_t>(kBytes[class_index(reg)])});
  }
  const auto patch = [&](Row& row) {
    if (row.bank == Bank::registers) row.offset = place_of(row.offset);
  };
  for (Row& row : program_->rows) patch(row);
  for (size_t i = 0; i < count; ++i) {
    if (code[i].has_guard) patch(code[i].guard);
    code[i].rows = program_->rows.data() + first_row_[i];
  }
}

}  // namespace

std::shared_ptr<const Program> decode(std::shared_ptr<const Module> module, std::string_view entry,
                                      const SymbolAddresses& addresses) {
  const FloatMode mode({});  // of immediates: not that of the caller
  return Decoder(std::move(module), entry, addresses).run();
}

}  // namespace kiln::runtime::sim
