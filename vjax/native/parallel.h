// A crew of threads for loops of a few microseconds: between two of them a helper spins, for a moment, instead of sleeping.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace vjax {

class Crew {
 public:
  // The process's crew: with its caller as many threads as XLA's own pool has. Never destroyed, as its threads run on.
  static Crew& of(int64_t threads) {
    static Crew* crew = new Crew(std::min<int64_t>(std::max<int64_t>(threads, 1), 64));
    return *crew;
  }

  int64_t size() const { return size_; }

  // `work(chunk)` for 0 <= chunk < chunks, on all threads that are awake; returns when all is done.
  template <class Work>
  void run(uint32_t chunks, const Work& work) {
    std::unique_lock<std::mutex> busy(running_, std::try_to_lock);
    if (size_ < 2 || chunks < 2 || !busy.owns_lock()) {  // another program's call has the crew: do not wait for it
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) work(chunk);
      return;
    }
    call_ = [](const void* w, uint32_t chunk) { (*static_cast<const Work*>(w))(chunk); };
    work_ = &work;
    done_.store(0, std::memory_order_relaxed);
    state_.store((((state_.load() >> 32) + 1) << 32) | chunks);
    if (asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(bed_);
      wake_.notify_all();
    }
    while (take()) {
    }
    for (int turn = 0; done_.load(std::memory_order_acquire) < chunks; ++turn) pause(turn);
  }

 private:
  static constexpr auto kAwake = std::chrono::microseconds(100);

  explicit Crew(int64_t size) : size_(size) {
    for (int64_t i = 1; i < size; ++i) std::thread([this] { help(); }).detach();
  }

  // Takes a chunk and works on it. The count of chunks left and the number of the loop change as one word, so who takes
  // a chunk knows that `call_` and `work_` are those of its loop, which cannot end before the chunk is done.
  bool take() {
    uint64_t state = state_.load(std::memory_order_acquire);
    do {
      if (static_cast<uint32_t>(state) == 0) return false;
    } while (!state_.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel));
    call_(work_, static_cast<uint32_t>(state) - 1);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void help() {
    for (;;) {
      while (take()) {
      }
      const auto until = std::chrono::steady_clock::now() + kAwake;
      bool found = false;
      while (!(found = left()) && std::chrono::steady_clock::now() < until)
        for (int i = 0; i < 16 && !left(); ++i) pause(0);
      if (found) continue;
      std::unique_lock<std::mutex> lock(bed_);
      asleep_.fetch_add(1);
      wake_.wait(lock, [this] { return left(); });
      asleep_.fetch_sub(1);
    }
  }

  bool left() const { return static_cast<uint32_t>(state_.load()) != 0; }

  static void pause(int turn) {
    if (turn > 4096) std::this_thread::yield();  // another process has the core: do not keep it waiting
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  const int64_t size_;
  std::mutex running_, bed_;
  std::condition_variable wake_;
  alignas(64) std::atomic<uint64_t> state_{0};  // number of the loop, chunks left
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<int> asleep_{0};
  void (*call_)(const void*, uint32_t) = nullptr;
  const void* work_ = nullptr;
};

// `work(first, last)` over `count` items that cost about `cost` multiplications in all.
template <class Work>
void parallel(int64_t threads, int64_t count, int64_t cost, const Work& work) {
  Crew& crew = Crew::of(threads);
  constexpr int64_t kWorthIt = 1 << 15;
  if (crew.size() < 2 || count < 2 || cost < 2 * kWorthIt) return work(int64_t{0}, count);
  const int64_t pieces = std::min(crew.size() * 6, cost / kWorthIt);
  int64_t size = std::max<int64_t>((count + pieces - 1) / pieces, 1);
  if (size > 4) size = (size + 3) / 4 * 4;
  const int64_t chunks = (count + size - 1) / size;
  crew.run(static_cast<uint32_t>(chunks),
           [&](uint32_t chunk) { work(chunk * size, std::min<int64_t>(count, (chunk + 1) * size)); });
}

}  // namespace vjax
