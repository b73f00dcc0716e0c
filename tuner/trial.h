// One verification case on the device: guarded, poisoned tensors, the oracle's whole output, and
// the check of a candidate against it.
//
// Outputs are compared as whole allocations, guard bands and row gaps included. The oracle runs
// twice, from poison and from its complement: where both runs agree it wrote, everywhere else a
// candidate must leave its own, fresh poison alone. Inputs, references and guards are digested
// before and after, so a candidate that scribbles elsewhere is caught too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "templates/kit.h"
#include "tuner/device_tools.h"
#include "tuner/outcome.h"
#include "tuner/tensors.h"

namespace kiln::tuner {

class PreparedCase {
 public:
  // least: base pointers are aligned as the op asks and no better.
  enum class Alignment { natural, least };
  PreparedCase(DeviceTools& tools, const templates::Kit& kit, templates::Case c,
               Alignment alignment);

  // Runs the oracle and checks it against the float64 reference. Fails with internal when it
  // disagrees: then nothing can be verified.
  void prove_oracle(const RunnablePlan& oracle);

  RunVerdict check(const RunnablePlan& plan);

  // What the last run left of every output by its name, guard bands and row gaps included.
  std::map<std::string, std::vector<std::byte>> outputs() const;

  // False when something changed its inputs or references since it was proven: nothing that runs
  // next may be blamed for that.
  bool intact() { return digest() == digest_; }

  // Memory beyond the outputs was changed: nothing in this process can be trusted any more.
  bool damaged() const { return damaged_; }
  const templates::Case& call() const { return case_; }

 private:
  struct Tensor {
    TensorPlan plan;
    int64_t before_bytes = 0;     // guard band before the first element
    Arena::Buffer memory;         // what kernels read and write
    Arena::Buffer initial;        // of an inout: its contents before every run
    Arena::Buffer first, second;  // of outputs: the oracle's results
    int64_t alloc_bytes() const { return memory.bytes(); }
  };

  void allocate(Alignment alignment);
  // Resets the outputs and runs. Returns why a launch failed, or "".
  std::string run(const RunnablePlan& plan, const Poison& poison);
  uint64_t digest();
  void check_reference(const Tensor& tensor, const Poison& poison);
  std::string describe_mismatch(const Tensor& tensor, int64_t element) const;
  RunVerdict compare_outputs(const Poison& poison);

  DeviceTools& tools_;
  const templates::Kit& kit_;
  const templates::Op& op_;
  templates::Case case_;
  templates::Sizes symbols_;
  std::vector<Tensor> tensors_;
  std::map<std::string, runtime::DevicePtr> pointers_;
  Arena::Buffer workspace_;
  uint64_t workspace_digest_ = 0;
  uint64_t digest_ = 0;
  uint64_t runs_ = 0;
  bool damaged_ = false;
};

}  // namespace kiln::tuner
