// What a launch may touch, from an op's description and the bytes of its arguments.
#include "runtime/sim/views.h"

#include <gtest/gtest.h>

#include "jit/base/error.h"
#include "templates/abi.h"

namespace kiln::runtime::sim {
namespace {

const templates::Op& scaled_rows() {
  using namespace templates;
  static const Op op = [] {
    Op made;
    made.name = "scaled_rows";
    made.version = 1;
    made.args = {in("rows", DType::bf16, "T W", ""), in("scale", DType::f32, "T", ""),
                 out("sums", DType::f32, "T", "")};
    made.sizes = {fixed("W", "width", "", 1, 4096), dynamic("T", "num_rows", "")};
    made.has_workspace = true;
    return made;
  }();
  return op;
}

class SubjectOfACall : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<templates::Field> fields = templates::abi_fields(scaled_rows());
    for (const templates::Field& field : fields) {
      switch (field.kind) {
        case templates::FieldKind::pointer:
          params_.push_back(0x1000 * (params_.size() + 1));
          break;
        case templates::FieldKind::workspace:
          params_.push_back(0x100000);
          break;
        case templates::FieldKind::workspace_bytes:
          params_.push_back(512);
          break;
        case templates::FieldKind::stride:
          params_.push_back(8);
          break;
        default:
          params_.push_back(3);
      }
    }
  }
  Subject subject() const {
    return checker_subject(subject_, "kernel", std::as_bytes(std::span(params_)));
  }
  const View& view(const Subject& subject, std::string_view name) const {
    for (const View& one : subject.views) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << "no view " << name;
    return subject.views.front();
  }

  KernelSubject subject_{.op = &scaled_rows(), .fixed = {{"W", 4}}, .config = "{}"};
  std::vector<uint64_t> params_;
};

TEST_F(SubjectOfACall, OutputsAndTheWorkspaceHoldNothingAtFirst) {
  const Subject all = subject();
  EXPECT_EQ(all.bounds, Bounds::views);
  EXPECT_EQ(all.op, "scaled_rows");
  EXPECT_EQ(all.views.size(), 4u);
  EXPECT_TRUE(view(all, "rows").may_read);
  EXPECT_FALSE(view(all, "rows").may_write);
  EXPECT_FALSE(view(all, "sums").may_read);
  EXPECT_TRUE(view(all, "sums").may_write);
  EXPECT_FALSE(view(all, "workspace").may_read);
  EXPECT_EQ(view(all, "workspace").dims, (std::vector<int64_t>{512}));
}

TEST_F(SubjectOfACall, AnOutputIsNoPlaceOfAnotherArgument) {
  const std::vector<templates::Field> fields = templates::abi_fields(scaled_rows());
  const auto at = [&](const char* name) -> uint64_t& {
    return params_[static_cast<size_t>(templates::field_index(fields, name))];
  };
  const auto refused = [&](std::string_view text) {
    try {
      subject();
      return false;
    } catch (const Error& error) {
      return error.status() == Status::invalid_argument &&
             std::string_view(error.what()).find(text) != std::string_view::npos;
    }
  };
  const uint64_t rows = at("rows");  // three of 8 bytes, 16 apart
  for (const uint64_t place : {rows, rows + 16, rows + 36}) {
    at("sums") = place;
    EXPECT_TRUE(refused("scaled_rows: the output sums shares memory with the input rows")) << place;
  }
  for (const uint64_t place : {rows - 12, rows + 40}) {
    at("sums") = place;
    subject();
  }
  at("rows_stride") = 64;  // 128 bytes: there is room between the rows
  at("sums") = rows + 8;
  subject();
  at("rows_stride") = 4;
  at("sums") = at("workspace") + 500;
  EXPECT_TRUE(refused("shares memory with the output workspace"));
}

TEST_F(SubjectOfACall, ArgumentsOfAnotherSizeAreADefect) {
  for (const int change : {-1, 1}) {
    std::vector<uint64_t> params = params_;
    params.resize(params.size() + static_cast<size_t>(change));
    try {
      checker_subject(subject_, "kernel", std::as_bytes(std::span(params)));
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::internal);
      EXPECT_NE(std::string(error.what()).find("scaled_rows"), std::string::npos) << error.what();
    }
  }
}

TEST_F(SubjectOfACall, ACallWithoutElementsMayTouchNothing) {
  for (uint64_t& value : params_) {
    if (value == 3) value = 0;
  }
  params_[params_.size() - 2] = 0;  // the workspace
  const Subject all = subject();
  EXPECT_TRUE(all.views.empty());
  EXPECT_EQ(all.bounds, Bounds::views);
}

TEST_F(SubjectOfACall, AKernelOfNoOpMayTouchEverything) {
  subject_.op = nullptr;
  EXPECT_EQ(subject().bounds, Bounds::everything);
}

}  // namespace
}  // namespace kiln::runtime::sim
