// Whether a function declared by us can be called as one declared by others.
#ifndef RING_KERAS_TESTS_SUPPORT_SAME_ABI_H_
#define RING_KERAS_TESTS_SUPPORT_SAME_ABI_H_

#include <type_traits>

namespace ring_keras::testing {

// Values that travel in the same registers: pointers to anything; numbers and
// enumerations of one size; structs of one size and alignment.
template <typename Ours, typename Theirs>
constexpr bool IsSameValue() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else if constexpr (std::is_class_v<Ours> || std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> &&
           std::is_trivially_copyable_v<Ours> &&
           std::is_trivially_copyable_v<Theirs> &&
           sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
  } else {
    return std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs> &&
           sizeof(Ours) == sizeof(Theirs);
  }
}

template <typename Ours, typename Theirs>
struct SameAbi : std::false_type {};

template <typename OurResult, typename... OurArguments, typename TheirResult,
          typename... TheirArguments>
  requires(sizeof...(OurArguments) == sizeof...(TheirArguments))
struct SameAbi<OurResult (*)(OurArguments...),
               TheirResult (*)(TheirArguments...)>
    : std::bool_constant<IsSameValue<OurResult, TheirResult>() &&
                         (IsSameValue<OurArguments, TheirArguments>() && ...)> {
};

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_SUPPORT_SAME_ABI_H_
