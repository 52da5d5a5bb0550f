// A rank's side of the talk with the benchmark, as ranks/agent.py has it, for
// programs in C++.

#ifndef BENCHMARKS_NATIVE_AGENT_H_
#define BENCHMARKS_NATIVE_AGENT_H_

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace benchmarks {

// What to measure.
class Request {
 public:
  explicit Request(const std::string& line) {
    std::istringstream words(line);
    words >> operation_;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      parameters_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  const std::string& operation() const { return operation_; }

  std::string Text(const std::string& key,
                   const std::string& otherwise = "") const {
    const auto found = parameters_.find(key);
    return found == parameters_.end() ? otherwise : found->second;
  }

  size_t Number(const std::string& key, size_t otherwise = 0) const {
    const auto found = parameters_.find(key);
    return found == parameters_.end() ? otherwise : std::stoull(found->second);
  }

  // Seconds a call takes, as often as was asked for.
  template <typename Call>
  std::vector<double> Time(Call call) const {
    using Clock = std::chrono::steady_clock;
    const size_t inner = Number("inner", 1);
    for (size_t i = Number("warmup", 1); i > 0; --i) call();
    std::vector<double> samples(Number("samples", 1));
    for (double& sample : samples) {
      const auto start = Clock::now();
      for (size_t i = 0; i < inner; ++i) call();
      sample = std::chrono::duration<double>(Clock::now() - start).count() /
               static_cast<double>(inner);
    }
    return samples;
  }

 private:
  std::string operation_;
  std::map<std::string, std::string> parameters_;
};

struct Unsupported {};

using Operation = std::function<std::vector<double>(const Request&)>;

// Gives rank r the r-th of `cores`, such as "0,1", and so round again; leaves
// it free if they are "any".
inline void Pin(int rank, const std::string& cores) {
  if (cores == "any") return;
  std::vector<int> allowed;
  std::istringstream list(cores);
  for (std::string core; std::getline(list, core, ',');) {
    allowed.push_back(std::stoi(core));
  }
  cpu_set_t mine;
  CPU_ZERO(&mine);
  CPU_SET(allowed[rank % allowed.size()], &mine);
  if (sched_setaffinity(0, sizeof mine, &mine) != 0) {
    throw std::runtime_error("cannot pin rank " + std::to_string(rank) +
                             " to one of the cores " + cores);
  }
}

inline std::string AnswerTo(const Request& request,
                            const Operation& operation) {
  try {
    std::ostringstream answer("ok", std::ios::ate);
    for (const double seconds : operation(request)) answer << ' ' << seconds;
    return answer.str();
  } catch (const Unsupported&) {
    return "unsupported";
  } catch (const std::exception& error) {
    return std::string("error ") + error.what();
  }
}

// Answers requests until the benchmark hangs up.
inline void Answer(const std::string& socket_path, int rank,
                   const std::string& version, const Operation& operation) {
  const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path.c_str(),
               sizeof address.sun_path - 1);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address),
              sizeof address) != 0) {
    throw std::runtime_error("cannot reach the benchmark at " + socket_path);
  }
  const auto say = [connection](const std::string& text) {
    const std::string line = text + "\n";
    return write(connection, line.data(), line.size()) ==
           static_cast<ssize_t>(line.size());
  };
  say(std::to_string(rank) + " " + std::to_string(getpid()) + " " + version);
  std::string line;
  for (char byte; read(connection, &byte, 1) == 1;) {
    if (byte != '\n') {
      line += byte;
      continue;
    }
    if (!say(AnswerTo(Request(line), operation))) break;
    line.clear();
  }
  close(connection);
}

// How many elements each of the tensors in data/NAME.txt has.
inline std::vector<size_t> ReadCounts(const std::string& data_directory,
                                      const std::string& name) {
  std::ifstream file(data_directory + "/" + name + ".txt");
  if (!file) throw std::runtime_error("there is no list of shapes " + name);
  std::vector<size_t> counts;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    size_t count = 1;
    std::istringstream lengths(line);
    for (std::string length; std::getline(lengths, length, 'x');) {
      count *= std::stoull(length);
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace benchmarks

#endif  // BENCHMARKS_NATIVE_AGENT_H_
