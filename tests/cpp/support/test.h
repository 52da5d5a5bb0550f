// A small test harness: a test is a function, and a room's tests are one
// executable, which runs those of one file or all.
//
//   RING_TEST(AddsTwoNumbers) {
//     ASSERT_OK(Prepare());
//     EXPECT_EQ(Add(1, 2), 3) << "more words for a failure";
//   }
//
// EXPECT_* records a failure and goes on; ASSERT_* also returns from the
// function it stands in, which must return void. Both may be used from any
// thread and from helper functions. An exception or a failure ends one test,
// not the run.
#ifndef RING_KERAS_TESTS_SUPPORT_TEST_H_
#define RING_KERAS_TESTS_SUPPORT_TEST_H_

#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"

namespace ring_keras::testing {

// Far beyond what anything here takes; a test that gets there has failed.
inline Deadline Soon() { return Deadline::After(30); }

inline bool Has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// Whether `condition()` holds at last. It sleeps between two looks: who yields
// instead keeps a core from what it waits for.
template <typename Condition>
bool WaitFor(const Condition& condition) {
  const Deadline deadline = Soon();
  while (!condition()) {
    if (deadline.Expired()) return condition();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

using TestFunction = void (*)();

// Adds a test to the run; returns true, so that a static can call it.
bool Register(const char* file, const char* name, TestFunction function);

// Runs the registered tests of the file `filter`, or whose name contains it
// (all if empty); returns how many failed.
int RunTests(const std::string& filter);

// Collects the text of one failure and reports it when it goes away.
class Failure {
 public:
  Failure(const char* file, int line, const std::string& what);
  ~Failure();
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;

  template <typename T>
  Failure& operator<<(const T& value) {
    if (!has_words_) text_ << ": ";
    has_words_ = true;
    text_ << value;
    return *this;
  }

 private:
  std::ostringstream text_;
  bool has_words_ = false;
};

// Swallows the Failure, so that `return Void() & Failure(...) << ...` is a
// return without a value.
struct Void {
  void operator&(const Failure&) const {}
};

template <typename T, typename = void>
struct IsPrintable : std::false_type {};
template <typename T>
struct IsPrintable<T, std::void_t<decltype(std::declval<std::ostream&>()
                                           << std::declval<const T&>())>>
    : std::true_type {};

// `value` as text; bytes and enumerators as their number, ranges by element.
template <typename T>
std::string Print(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, std::nullptr_t>) {
    out << "nullptr";
  } else if constexpr (std::is_enum_v<T>) {
    out << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::is_integral_v<T>) {
    out << +value;
  } else if constexpr (std::is_convertible_v<const T&, std::string>) {
    out << '"' << std::string(value) << '"';
  } else if constexpr (IsPrintable<T>::value) {
    out.precision(17);
    out << value;
  } else if constexpr (requires { value.begin() != value.end(); }) {
    out << "{";
    const char* separator = "";
    for (const auto& element : value) {
      out << separator << Print(element);
      separator = ", ";
    }
    out << "}";
  } else {
    out << "<" << sizeof(T) << " bytes>";
  }
  return out.str();
}

// What both sides are, if `holds` is false; empty otherwise.
template <typename A, typename B>
std::string Explain(bool holds, const char* expression, const A& a,
                    const B& b) {
  if (holds) return "";
  return std::string("expected ") + expression + ", got " + Print(a) + " and " +
         Print(b);
}

template <typename A, typename B>
bool Equal(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B> &&
                !std::is_same_v<A, bool> && !std::is_same_v<B, bool>) {
    // A literal like 0 is an int: compare by value, whatever the signs.
    return (a < A{0}) == (b < B{0}) &&
           static_cast<std::common_type_t<A, B>>(a) ==
               static_cast<std::common_type_t<A, B>>(b);
  } else {
    return a == b;
  }
}

inline std::string ExplainTruth(bool value, bool expected,
                                const char* expression) {
  if (value == expected) return "";
  return std::string(expression) + " is " + (value ? "true" : "false");
}

inline std::string ExplainOk(const Status& status, const char* expression) {
  if (status.ok()) return "";
  return StrCat(expression, " is not OK but ", static_cast<int>(status.code()),
                ": ", status.message());
}

template <typename T>
std::string ExplainOk(const StatusOr<T>& result, const char* expression) {
  return ExplainOk(result.status(), expression);
}

}  // namespace ring_keras::testing

#define RING_TEST(name)                                                  \
  static void RingTest_##name();                                         \
  [[maybe_unused]] static const bool ring_test_added_##name =            \
      ::ring_keras::testing::Register(__FILE__, #name, RingTest_##name); \
  static void RingTest_##name()

// The `if` runs its body only on a failure; `on_failure` is empty or
// `return ::ring_keras::testing::Void() &`.
#define RING_TEST_CHECK_(explanation, on_failure)                \
  if (const std::string ring_test_explanation = (explanation);   \
      ring_test_explanation.empty()) {                           \
  } else                                                         \
    on_failure::ring_keras::testing::Failure(__FILE__, __LINE__, \
                                             ring_test_explanation)

#define RING_TEST_FATAL_ return ::ring_keras::testing::Void() &

// Evaluates each side once.
#define RING_TEST_COMPARE_(a, b, holds, text)                        \
  [&](const auto& left, const auto& right) {                         \
    return ::ring_keras::testing::Explain(holds, text, left, right); \
  }(a, b)
#define RING_TEST_EQ_(a, b)                                           \
  RING_TEST_COMPARE_(a, b, ::ring_keras::testing::Equal(left, right), \
                     #a " == " #b)
#define RING_TEST_NE_(a, b)                                            \
  RING_TEST_COMPARE_(a, b, !::ring_keras::testing::Equal(left, right), \
                     #a " != " #b)
#define RING_TEST_TRUE_(x) \
  ::ring_keras::testing::ExplainTruth(static_cast<bool>(x), true, #x)
#define RING_TEST_FALSE_(x) \
  ::ring_keras::testing::ExplainTruth(static_cast<bool>(x), false, #x)
#define RING_TEST_OK_(x) ::ring_keras::testing::ExplainOk(x, #x)

#define EXPECT_TRUE(x) RING_TEST_CHECK_(RING_TEST_TRUE_(x), )
#define EXPECT_FALSE(x) RING_TEST_CHECK_(RING_TEST_FALSE_(x), )
#define EXPECT_EQ(a, b) RING_TEST_CHECK_(RING_TEST_EQ_(a, b), )
#define EXPECT_NE(a, b) RING_TEST_CHECK_(RING_TEST_NE_(a, b), )
#define EXPECT_LT(a, b) \
  RING_TEST_CHECK_(RING_TEST_COMPARE_(a, b, left < right, #a " < " #b), )
#define EXPECT_LE(a, b) \
  RING_TEST_CHECK_(RING_TEST_COMPARE_(a, b, left <= right, #a " <= " #b), )
#define EXPECT_GT(a, b) \
  RING_TEST_CHECK_(RING_TEST_COMPARE_(a, b, left > right, #a " > " #b), )
#define EXPECT_GE(a, b) \
  RING_TEST_CHECK_(RING_TEST_COMPARE_(a, b, left >= right, #a " >= " #b), )
#define EXPECT_OK(x) RING_TEST_CHECK_(RING_TEST_OK_(x), )

#define ASSERT_TRUE(x) RING_TEST_CHECK_(RING_TEST_TRUE_(x), RING_TEST_FATAL_)
#define ASSERT_FALSE(x) RING_TEST_CHECK_(RING_TEST_FALSE_(x), RING_TEST_FATAL_)
#define ASSERT_EQ(a, b) RING_TEST_CHECK_(RING_TEST_EQ_(a, b), RING_TEST_FATAL_)
#define ASSERT_NE(a, b) RING_TEST_CHECK_(RING_TEST_NE_(a, b), RING_TEST_FATAL_)
#define ASSERT_OK(x) RING_TEST_CHECK_(RING_TEST_OK_(x), RING_TEST_FATAL_)

#endif  // RING_KERAS_TESTS_SUPPORT_TEST_H_
