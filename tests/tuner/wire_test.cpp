#include "tuner/wire.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "jit/base/error.h"

namespace kiln::tuner {
namespace {

class Wire : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0); }
  void TearDown() override {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }
  void close_second() {
    close(ends_[1]);
    ends_[1] = -1;
  }
  Channel first() { return {ends_[0], ends_[0]}; }
  Channel second() { return {ends_[1], ends_[1]}; }
  int ends_[2] = {-1, -1};
};

TEST_F(Wire, FrameComesAsItWasSent) {
  const std::string payload("\0\1binary\xff", 9);
  ASSERT_TRUE(first().send({{"do", "binary"}, {"n", 7}}, payload));
  Frame frame;
  ASSERT_EQ(second().receive(frame, 5), Received::frame);
  EXPECT_EQ(frame.header.at("n"), 7);
  EXPECT_EQ(frame.payload, payload);
}

TEST_F(Wire, LargeFrameIsNotCut) {
  const std::string payload(5 << 20, 'x');
  std::jthread sender([&] { first().send({{"do", "binary"}}, payload); });
  Frame frame;
  ASSERT_EQ(second().receive(frame, 30), Received::frame);
  EXPECT_EQ(frame.payload.size(), payload.size());
}

TEST_F(Wire, SilenceIsLate) {
  Frame frame;
  EXPECT_EQ(first().receive(frame, 0.02), Received::late);
}

TEST_F(Wire, HalfAFrameIsLateToo) {
  ASSERT_EQ(write(ends_[1], "LIKN", 4), 4);
  Frame frame;
  EXPECT_EQ(first().receive(frame, 0.02), Received::late);
}

TEST_F(Wire, GonePeerIsClosedAndRaisesNoSignal) {
  close_second();
  Frame frame;
  EXPECT_EQ(first().receive(frame, 5), Received::closed);
  EXPECT_FALSE(first().send({{"do", "hello"}}));
}

TEST_F(Wire, WhatIsNoFrameIsRefused) {
  ASSERT_EQ(write(ends_[1], "GET / HTTP/1.1\r\n\r\n", 18), 18);
  Frame frame;
  EXPECT_THROW(first().receive(frame, 5), Error);
}

TEST(WirePipes, WorkToo) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  Channel channel(pipe_ends[0], pipe_ends[1]);
  ASSERT_TRUE(channel.send({{"do", "hello"}}));
  Frame frame;
  EXPECT_EQ(channel.receive(frame, 5), Received::frame);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace kiln::tuner
