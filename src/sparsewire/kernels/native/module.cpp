// The extension module: instruction sets, and the functions that the other files bind.
#include <string>

#include "common.hpp"

namespace sparsewire {
namespace {

Isa best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) return Isa::avx2;
#endif
  return Isa::plain;
}

Isa chosen = best();
const char* const names[] = {"plain", "avx2", "avx512"};

std::vector<std::string> isas() {
  std::vector<std::string> out;
  for (int i = 0; i <= static_cast<int>(best()); ++i) out.emplace_back(names[i]);
  return out;
}

void set_isa(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(best()); ++i)
    if (name == names[i]) {
      chosen = static_cast<Isa>(i);
      return;
    }
  throw std::invalid_argument("this machine has no instruction set '" + name + "'");
}

}  // namespace

Isa isa() { return chosen; }

}  // namespace sparsewire

NB_MODULE(_native, m) {
  m.def("isa", [] { return std::string(sparsewire::names[static_cast<int>(sparsewire::chosen)]); });
  m.def("isas", &sparsewire::isas);
  m.def("set_isa", &sparsewire::set_isa, nb::arg("name"));
  for (auto bind : sparsewire::Binder::all()) bind(m);
}
