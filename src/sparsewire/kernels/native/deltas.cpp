// pack_deltas, unpack_deltas.
#include "deltas.hpp"

namespace sparsewire {
namespace {

Out<uint8_t> pack_deltas(In<uint8_t> numbers) { return write_deltas(numbers.data(), numbers.size()); }

Out<uint8_t> unpack_deltas(In<uint8_t> data, int64_t count) {
  require(count >= 0 && static_cast<uint64_t>(count) <= 8 * data.size(), "the changes do not fit their count");
  Buffer<uint8_t> out(count);
  read_deltas(data.data(), data.size(), out.data(), count);
  return out.release();
}

const Binder binder([](nb::module_& m) {
  m.def("pack_deltas", &pack_deltas, nb::arg("numbers"));
  m.def("unpack_deltas", &unpack_deltas, nb::arg("data"), nb::arg("count"));
});

}  // namespace
}  // namespace sparsewire
