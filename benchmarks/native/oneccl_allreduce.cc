// oneCCL's allreduce of host memory in place.
//
//     oneccl_allreduce SOCKET CORES DIRECTORY DATA_DIRECTORY
//
// DIRECTORY is of this job alone: the ranks meet through a file in it.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <oneapi/ccl.hpp>
#include <thread>

#include "agent.h"

namespace benchmarks {
namespace {

// Rank 0's address, for all.
std::shared_ptr<ccl::kvs> Meet(int rank, const std::string& directory) {
  const std::string path = directory + "/address";
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    const ccl::kvs::address_type address = store->get_address();
    std::ofstream(path + ".new", std::ios::binary)
        .write(address.data(), address.size());
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) {
      throw std::runtime_error("cannot write " + path);
    }
    return store;
  }
  ccl::kvs::address_type address;
  for (int attempt = 0; attempt < 6000; ++attempt) {
    std::ifstream file(path, std::ios::binary);
    if (file.read(address.data(), address.size())) {
      return ccl::create_kvs(address);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("rank 0 has not written " + path + " in 60 s");
}

class Allreduce {
 public:
  Allreduce(int rank, int size, const std::string& directory,
            std::string data_directory)
      : rank_(rank),
        size_(size),
        data_directory_(std::move(data_directory)),
        communicator_(
            ccl::create_communicator(size, rank, Meet(rank, directory))) {}

  std::vector<double> operator()(const Request& request) {
    const std::string dtype = request.Text("dtype", "float32");
    const size_t itemsize = dtype == "float32" ? 4 : 2;
    std::vector<size_t> counts;
    if (request.operation() == "allreduce" && !request.Number("chunk_nbytes")) {
      counts = {request.Number("nbytes") / itemsize};
    } else if (request.operation() == "gradients") {
      counts = ReadCounts(data_directory_, request.Text("shapes"));
      if (request.Text("layout") == "flat") {
        size_t sum = 0;
        for (const size_t count : counts) sum += count;
        counts = {sum};
      }
    } else {
      throw Unsupported();
    }
    // Bits of the numbers 1 to 10, which all ranks' sums are among.
    if (dtype == "float32") {
      return Measure<uint32_t>(
          request, counts, ccl::datatype::float32,
          {0, 0x3f800000, 0x40000000, 0x40400000, 0x40800000, 0x40a00000,
           0x40c00000, 0x40e00000, 0x41000000, 0x41100000, 0x41200000});
    }
    if (dtype == "bfloat16") {
      return Measure<uint16_t>(request, counts, ccl::datatype::bfloat16,
                               {0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
                                0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120});
    }
    return Measure<uint16_t>(request, counts, ccl::datatype::float16,
                             {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600,
                              0x4700, 0x4800, 0x4880, 0x4900});
  }

 private:
  template <typename Word>
  std::vector<double> Measure(const Request& request,
                              const std::vector<size_t>& counts,
                              ccl::datatype dtype,
                              const std::vector<Word>& numbers) {
    std::vector<std::vector<Word>> buffers;
    for (const size_t count : counts) {
      buffers.emplace_back(count, numbers.at(rank_ + 1));
    }
    const auto call = [&] {
      for (auto& buffer : buffers) {
        ccl::allreduce(buffer.data(), buffer.data(), buffer.size(), dtype,
                       ccl::reduction::sum, communicator_)
            .wait();
      }
    };
    call();
    for (auto& buffer : buffers) {
      for (Word& word : buffer) {
        if (word != numbers.at(size_ * (size_ + 1) / 2)) {
          throw std::runtime_error("a sum is wrong");
        }
        word = 0;
      }
    }
    return request.Time(call);
  }

  int rank_;
  int size_;
  std::string data_directory_;
  ccl::communicator communicator_;
};

}  // namespace
}  // namespace benchmarks

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "%s SOCKET CORES DIRECTORY DATA_DIRECTORY\n", argv[0]);
    return 2;
  }
  const int rank = std::atoi(std::getenv("PMI_RANK"));
  const int size = std::atoi(std::getenv("PMI_SIZE"));
  benchmarks::Pin(rank, argv[2]);
  ccl::init();
  benchmarks::Allreduce allreduce(rank, size, argv[3], argv[4]);
  const ccl::library_version version = ccl::get_library_version();
  benchmarks::Answer(argv[1], rank, std::string("oneCCL ") + version.full,
                     std::ref(allreduce));
  return 0;
}
