// Drives one machine by a policy from `saformer export RUN OUT --format onnx`. A filter: each line
// read says what the last step cost and what the machine shows now; each line written is an action.
//     g++ -std=c++17 -O2 -I ONNXRUNTIME/include drive.cpp -L ONNXRUNTIME/lib -lonnxruntime -o drive
//     drive OUT/policy.onnx LIMIT... < steps
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>

int main(int argc, char** argv) {
  if (argc < 3) return std::cerr << "usage: drive GRAPH LIMIT... < steps\n", 2;
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING);
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  Ort::Session session(env, argv[1], options);
  const char* names[] = {"state",        "limit",        "cost",  "executed",
                         "return_noise", "action_noise", "memory"};
  const char* results[] = {"action", "next_memory"};
  std::vector<Ort::Value> inputs;  // in this order, as policy.json has them
  std::vector<size_t> sizes, bytes;
  Ort::AllocatorWithDefaultOptions allocator;
  for (size_t i = 0; i < std::size(names); ++i) {
    auto type = session.GetInputTypeInfo(i);
    auto info = type.GetTensorTypeAndShapeInfo();
    auto shape = info.GetShape();
    inputs.push_back(Ort::Value::CreateTensor(allocator, shape.data(), shape.size(),
                                              info.GetElementType()));
    sizes.push_back(info.GetElementCount());
    bytes.push_back(inputs[i].GetTensorSizeInBytes());
    std::memset(inputs[i].GetTensorMutableRawData(), 0, bytes[i]);  // an episode begins with zeros
  }
  auto floats = [&](int i) { return inputs[i].GetTensorMutableData<float>(); };
  auto doubles = [&](int i) { return inputs[i].GetTensorMutableData<double>(); };
  if (size_t(argc) != 2 + sizes[1]) return std::cerr << sizes[1] << " limits are needed\n", 2;
  for (size_t i = 0; i < sizes[1]; ++i) doubles(1)[i] = std::stod(argv[2 + i]);
  std::mt19937 random(0);
  std::normal_distribution<float> normal;
  auto read = [](auto* values, size_t count) {  // true if all are there, and numbers
    return std::all_of(values, values + count,
                       [](auto& value) { return (std::cin >> value) && std::isfinite(value); });
  };
  while (read(doubles(2), sizes[2]) && read(floats(0), sizes[0])) {
    for (int i : {4, 5}) std::generate_n(floats(i), sizes[i], [&] { return normal(random); });
    auto found = session.Run({}, names, inputs.data(), inputs.size(), results, std::size(results));
    std::memcpy(floats(3), found[0].GetTensorRawData(), bytes[3]);  // executed, the next time
    std::memcpy(doubles(6), found[1].GetTensorRawData(), bytes[6]);
    for (size_t i = 0; i < sizes[3]; ++i) std::cout << floats(3)[i] << ' ';
    std::cout << std::endl;
  }
  return std::cin.eof() ? 0 : (std::cerr << "a cost or state is no number\n", 1);
}
