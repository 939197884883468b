// tests/fake_driver/device.h: tests on the fake driver, with the real compiler.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "coda/cuda/driver.h"
#include "coda/cuda/nvrtc.h"
#include "tests/fake_driver/driver.h"

namespace coda::testing {

// Loaded before anybody asks for libcuda.so.1, it is the one that is found.
inline FakeDriver* fake() {
  static FakeDriver* const loaded = []() -> FakeDriver* {
    setenv("CODA_CACHE", "off", 1);
    void* library = dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    const auto get = reinterpret_cast<FakeDriver* (*)()>(dlsym(library, "coda_fake_driver"));
    return get == nullptr ? nullptr : get();
  }();
  return loaded;
}

class FakeDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(fake(), nullptr) << dlerror();
    if (const auto problem = cuda::nvrtc_problem()) GTEST_SKIP() << *problem;
    ASSERT_EQ(cuda::Driver::problem(), std::nullopt);
    fake()->launches.clear();
    fake()->fail_launches = false;
  }
};

}  // namespace coda::testing
