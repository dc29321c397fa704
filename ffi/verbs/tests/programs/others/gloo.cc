// A rank of gloo over its transport ibverbs: `rank RANK SIZE`. The ranks meet in the folder `store`. Each collective
// operation runs several times with several lengths, and each rank compares all results.

#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using Values = std::vector<uint64_t>;
using ContextPtr = std::shared_ptr<gloo::rendezvous::Context>;

const std::vector<size_t> kCounts = {1, 3, 1000, 65536};
constexpr int kRounds = 5;

int checked = 0;
int wrong = 0;

// A send buffer of gloo must live until its last send has completed, and some algorithms do not wait for this completion.
// All algorithms therefore live until the last exchange.
std::vector<std::shared_ptr<void>> alive;

template <class Algorithm, class... Arguments>
std::shared_ptr<Algorithm> make(Arguments&&... arguments) {
  auto algorithm = std::make_shared<Algorithm>(std::forward<Arguments>(arguments)...);
  alive.push_back(algorithm);
  return algorithm;
}

void expect(const std::string& what, const Values& values, const std::function<uint64_t(size_t)>& wanted) {
  checked++;
  for (size_t i = 0; i < values.size(); i++) {
    if (values[i] != wanted(i)) {
      std::cout << what << ": element " << i << " of " << values.size() << " is " << values[i] << ", and not "
                << wanted(i) << std::endl;
      wrong++;
      return;
    }
  }
}

uint64_t value(int rank, size_t i, int round) {
  return (rank + 1) * 1000003u + i * 17 + round;
}

template <template <typename> class Allreduce>
void allreduce(const std::string& name, const ContextPtr& context) {
  for (size_t count : kCounts) {
    auto memory = make<Values>(count);
    Values& values = *memory;
    auto algorithm = make<Allreduce<uint64_t>>(context, std::vector<uint64_t*>{values.data()}, count);
    for (int round = 0; round < kRounds; round++) {
      for (size_t i = 0; i < count; i++) {
        values[i] = value(context->rank, i, round);
      }
      algorithm->run();
      expect(name, values, [&](size_t i) {
        uint64_t sum = 0;
        for (int rank = 0; rank < context->size; rank++) {
          sum += value(rank, i, round);
        }
        return sum;
      });
    }
  }
}

void broadcast(const ContextPtr& context) {
  for (size_t count : kCounts) {
    for (int root = 0; root < context->size; root++) {
      auto memory = make<Values>(count);
      Values& values = *memory;
      auto algorithm = make<gloo::BroadcastOneToAll<uint64_t>>(
          context, std::vector<uint64_t*>{values.data()}, count, root);
      for (int round = 0; round < kRounds; round++) {
        for (size_t i = 0; i < count; i++) {
          values[i] = value(context->rank, i, round);
        }
        algorithm->run();
        expect("broadcast", values, [&](size_t i) { return value(root, i, round); });
      }
    }
  }
}

void allgather(const ContextPtr& context) {
  for (size_t count : kCounts) {
    auto in = make<Values>(count);
    auto out = make<Values>(count * context->size);
    for (size_t i = 0; i < count; i++) {
      (*in)[i] = value(context->rank, i, 0);
    }
    auto algorithm = make<gloo::AllgatherRing<uint64_t>>(
        context, std::vector<const uint64_t*>{in->data()}, out->data(), count);
    algorithm->run();
    expect("allgather", *out, [&](size_t i) { return value(i / count, i % count, 0); });
  }
}

// Each rank sends to each other rank.
void sendAndReceive(const ContextPtr& context) {
  for (size_t count : kCounts) {
    const int slot = context->nextSlot();
    std::vector<Values> in(context->size, Values(count)), out(context->size, Values(count));
    std::vector<std::unique_ptr<gloo::transport::Buffer>> sends, receives;
    for (int peer = 0; peer < context->size; peer++) {
      if (peer == context->rank) {
        continue;
      }
      for (size_t i = 0; i < count; i++) {
        out[peer][i] = value(context->rank, i, peer);
      }
      auto& pair = context->getPair(peer);
      const size_t bytes = count * sizeof(uint64_t);
      receives.push_back(pair->createRecvBuffer(slot, in[peer].data(), bytes));
      sends.push_back(pair->createSendBuffer(slot, out[peer].data(), bytes));
    }
    for (auto& send : sends) {
      send->send();
    }
    for (auto& receive : receives) {
      receive->waitRecv();
    }
    for (auto& send : sends) {
      send->waitSend();
    }
    for (int peer = 0; peer < context->size; peer++) {
      if (peer != context->rank) {
        expect("receive", in[peer], [&](size_t i) { return value(peer, i, context->rank); });
      }
    }
  }
}

// No rank may leave the barrier before each rank has entered the barrier. The file of a rank shows that it has entered.
template <class Barrier>
void barrier(const std::string& name, const ContextPtr& context, const std::string& folder) {
  auto algorithm = make<Barrier>(context);
  for (int round = 0; round < kRounds; round++) {
    const auto file = [&](int rank) {
      return folder + "/" + name + "." + std::to_string(round) + "." + std::to_string(rank);
    };
    if (context->rank == round % context->size) {
      usleep(20000);
    }
    std::ofstream(file(context->rank)).close();
    algorithm->run();
    for (int rank = 0; rank < context->size; rank++) {
      checked++;
      if (access(file(rank).c_str(), F_OK) != 0) {
        std::cout << name << ": left before rank " << rank << " has entered" << std::endl;
        wrong++;
      }
    }
  }
}

} // namespace

// Makes the file that tells the test that this rank is done, and waits until the test has looked at the connections.
void finish(int rank) {
  std::ofstream(std::to_string(rank) + ".done").close();
  for (int waited = 0; access("seen", F_OK) != 0 && waited < 60000; waited++) {
    usleep(1000);
  }
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " RANK SIZE" << std::endl;
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  const std::string folder = "store";
  mkdir(folder.c_str(), 0755);
  {
    gloo::transport::ibverbs::attr attr;
    attr.name = "uwarp0";
    attr.port = 1;
    attr.index = 0;
    auto device = gloo::transport::ibverbs::CreateDevice(attr);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(std::chrono::seconds(60));
    context->connectFullMesh(store, device);
    allreduce<gloo::AllreduceRing>("allreduce_ring", context);
    allreduce<gloo::AllreduceRingChunked>("allreduce_ring_chunked", context);
    allreduce<gloo::AllreduceHalvingDoubling>("allreduce_halving_doubling", context);
    broadcast(context);
    allgather(context);
    sendAndReceive(context);
    barrier<gloo::BarrierAllToAll>("all_to_all", context, folder);
    barrier<gloo::BarrierAllToOne>("all_to_one", context, folder);
    // The completions of a pair have the order of its sends. The last exchange completes after all earlier sends.
    sendAndReceive(context);
    alive.clear();
    std::cout << checked << " results, " << wrong << " wrong" << std::endl;
    finish(rank);
    context->closeConnections();
  }
  std::cout << "rank " << rank << " of " << size << ": ended" << std::endl;
  return wrong != 0;
}
