#include "tf_ops/transport/direct_payloads.h"

#include <algorithm>
#include <utility>

namespace ring_keras {

void DirectPayloads::Begin(const FrameHeader& header,
                           PayloadSink::Destination destination,
                           Stream& stream) {
  Payload payload = {header, std::move(destination), {}};
  char* into = nullptr;
  if (auto* fill = std::get_if<PayloadSink::Fill>(&payload.destination)) {
    into = fill->operation->target + header.offset;
  } else {
    payload.buffer = spare_.Take(header.nbytes);
    into = payload.buffer.memory.get();
  }
  if (std::holds_alternative<PayloadSink::Collect>(payload.destination)) {
    early_nbytes_ += header.nbytes;
  }
  stream.ReceiveDirect(into, header.nbytes, payload.buffer.memory);
  under_way_.push_back(std::move(payload));
}

std::optional<DirectPayloads::Ended> DirectPayloads::End(Stream& stream) {
  if (under_way_.empty() || !stream.EndDirectReceive()) return std::nullopt;
  Payload payload = std::move(under_way_.front());
  under_way_.pop_front();
  const size_t nbytes = payload.header.nbytes;
  const char* bytes = payload.buffer.memory.get();
  PayloadSink::Destination& destination = payload.destination;
  if (std::holds_alternative<PayloadSink::Collect>(destination)) {
    early_nbytes_ -= nbytes;
  }
  if (!stream.end().ok()) {
    destination = PayloadSink::Discard();
  } else if (auto* combine = std::get_if<PayloadSink::Combine>(&destination)) {
    ReceiveOperation* operation = combine->operation;
    char* target = operation->target + payload.header.offset;
    operation->combine(target, target, bytes,
                       nbytes / operation->element_nbytes);
  } else if (auto* collect = std::get_if<PayloadSink::Collect>(&destination)) {
    collect->bytes.assign(bytes, nbytes);
  }
  spare_.Give(std::move(payload.buffer));
  return Ended{payload.header, std::move(destination)};
}

void DirectPayloads::Cancel(uint64_t key) {
  for (Payload& payload : under_way_) {
    if (payload.header.key != key) continue;
    if (std::holds_alternative<PayloadSink::Collect>(payload.destination)) {
      early_nbytes_ -= payload.header.nbytes;
    }
    payload.destination = PayloadSink::Discard();
  }
}

bool DirectPayloads::Holds(uint64_t key) const {
  return std::any_of(
      under_way_.begin(), under_way_.end(), [&](const Payload& payload) {
        return payload.header.key == key && payload.buffer.memory == nullptr;
      });
}

}  // namespace ring_keras
