#include "tf_ops/common/ticks.h"

#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ring_keras {
namespace {

// Below this the scale would be off by more than the clocks are.
constexpr double kLeastSpanS = 0.01;

bool CounterIsTrusted() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kPowerManagement = 0x80000007, kInvariant = 1u << 8;
  if (!__get_cpuid(kPowerManagement, &eax, &ebx, &ecx, &edx)) return false;
  if ((edx & kInvariant) == 0) return false;
  // The kernel has checked that all cores count alike.
  std::ifstream file(
      "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  file >> source;
  return source == "tsc";
#else
  return false;
#endif
}

double Read(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Moment {
  Ticks ticks;
  double seconds;  // CLOCK_MONOTONIC.
};

// Both clocks at one moment: of several looks, the one that took least.
Moment LookAtBoth() {
  Moment best{0, 0};
  Ticks shortest = ~Ticks{0};
  for (int look = 0; look < 5; ++look) {
    const Ticks before = Now();
    const double seconds = Read(CLOCK_MONOTONIC);
    const Ticks after = Now();
    if (after - before < shortest) {
      shortest = after - before;
      best = {before + shortest / 2, seconds};
    }
  }
  return best;
}

}  // namespace

const bool kTicksAreCounter = CounterIsTrusted();

namespace {

const Moment kStart = LookAtBoth();

}  // namespace

TickScale::TickScale() : seconds_per_tick_(1e-9) {
  Moment now = LookAtBoth();
  if (kTicksAreCounter) {
    while (now.seconds - kStart.seconds < kLeastSpanS) now = LookAtBoth();
    seconds_per_tick_ = (now.seconds - kStart.seconds) /
                        static_cast<double>(now.ticks - kStart.ticks);
  }
  now_ = now.ticks;
  unix_now_ = Read(CLOCK_REALTIME) - (Read(CLOCK_MONOTONIC) - now.seconds);
}

}  // namespace ring_keras
