#include "tf_ops/collectives/post_inbox.h"

namespace ring_keras {

Status PostInbox::Open(uint64_t key, PostReceiver* receiver) {
  Channel& channel = channels_[key];
  channel.receiver = receiver;
  for (auto& [rank, post] : std::exchange(channel.early, {})) {
    RING_KERAS_RETURN_IF_ERROR(receiver->OnPost(rank, std::move(post)));
  }
  return Status::Ok();
}

void PostInbox::Close(uint64_t key, int outstanding) {
  if (outstanding == 0) {
    channels_.erase(key);
    return;
  }
  Channel& channel = channels_[key];
  channel.receiver = nullptr;
  channel.to_drop = outstanding;
}

Status PostInbox::Take(uint64_t key, int rank, PostMessage&& post) {
  Channel& channel = channels_[key];
  if (channel.receiver != nullptr) {
    return channel.receiver->OnPost(rank, std::move(post));
  }
  if (channel.to_drop == 0) {
    channel.early.emplace_back(rank, std::move(post));
  } else if (--channel.to_drop == 0) {
    channels_.erase(key);
  }
  return Status::Ok();
}

void PostInbox::TakeWaiting(uint64_t key, int rank, uint64_t use) {
  const auto found = channels_.find(key);
  if (found == channels_.end() || found->second.receiver == nullptr) return;
  found->second.receiver->OnWaiting(rank, use);
}

}  // namespace ring_keras
