// From Python's tensors to batten_tensor. A tensor arrives in one of two forms:
//   - a view: the tuple (address, dtype, shape, strides in elements, device type, device index),
//   and where the memory is an export's, a seventh entry that owns it;
//   - an object whose type has DLPack's C exchange interface (torch from 2.10 on), which states a
//   tensor
//     in well under a microsecond, without making Python objects.
#pragma once

#include <batten/batten.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <batten/batten.hpp>
#include <cstdint>
#include <map>
#include <string>

namespace batten_python {

namespace nb = nanobind;
using batten::Error;
using batten::ErrorCode;

// DLPack 1.x: the interface behind `type.__dlpack_c_exchange_api__`. The first member never
// changes, the others not within a major version.
struct DlpackExchange {
  std::uint32_t major, minor;
  const DlpackExchange* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  // Fills a tensor that lives as long as the object. Null where the framework has none; returns 0,
  // or -1 with a Python exception.
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* out);
  void* current_work_stream;
};

// The interface of an object's type; null where there is none that can be used.
inline const DlpackExchange* exchange_of(PyObject* object) {
  static std::map<PyTypeObject*, const DlpackExchange*> known;  // guarded by the interpreter's lock
  PyTypeObject* type = Py_TYPE(object);
  if (const auto found = known.find(type); found != known.end()) return found->second;
  const nb::object capsule = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)),
                                         "__dlpack_c_exchange_api__", nb::none());
  const DlpackExchange* api = nullptr;
  if (PyCapsule_CheckExact(capsule.ptr())) {
    api = static_cast<const DlpackExchange*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) throw nb::python_error();
    while (api != nullptr && api->major > 1) api = api->previous;
    if (api != nullptr && (api->major != 1 || api->tensor_from_object == nullptr)) api = nullptr;
  }
  Py_INCREF(reinterpret_cast<PyObject*>(type));  // never freed: its address is the key
  return known[type] = api;
}

// The DLPack type as a batten dtype; NONE for one that batten does not know.
inline std::int32_t dtype_of(const nb::dlpack::dtype& dtype) {
  if (dtype.lanes != 1) return BATTEN_DTYPE_NONE;
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 32) return BATTEN_F32;
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 16) return BATTEN_F16;
  if (code == nb::dlpack::dtype_code::Bfloat && dtype.bits == 16) return BATTEN_BF16;
  if (code == nb::dlpack::dtype_code::Int && dtype.bits == 32) return BATTEN_I32;
  return BATTEN_DTYPE_NONE;
}

inline batten_device device_of(std::int32_t dlpack_type, std::int32_t index) {
  if (dlpack_type == nb::device::cpu::value || dlpack_type == nb::device::cuda_host::value)
    return {BATTEN_CPU, 0};
  if (dlpack_type == nb::device::cuda::value) return {BATTEN_CUDA, index};
  throw Error(ErrorCode::InvalidArgument, "tensor: expected one on the CPU or a CUDA device");
}

inline std::int32_t checked_rank(std::int64_t ndim) {
  if (ndim < 1 || ndim > 4) {
    throw Error(ErrorCode::InvalidArgument,
                "tensor: has " + std::to_string(ndim) + " dimensions, expected 1 to 4");
  }
  return static_cast<std::int32_t>(ndim);
}

inline std::int64_t integer_at(PyObject* tuple, Py_ssize_t i) {
  PyObject* item = PyTuple_GetItem(tuple, i);  // borrowed
  const long long value = item != nullptr ? PyLong_AsLongLong(item) : -1;
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

// Read by hand: nanobind's conversion of nested tuples would cost more than the call.
inline batten_tensor tensor_of_view(PyObject* view) {
  if (PyTuple_Size(view) < 6) throw Error(ErrorCode::Internal, "view: expected a tuple of six");
  PyObject* shape = PyTuple_GetItem(view, 2);
  PyObject* strides = PyTuple_GetItem(view, 3);
  if (!PyTuple_Check(shape) || !PyTuple_Check(strides) ||
      PyTuple_Size(shape) != PyTuple_Size(strides)) {
    throw Error(ErrorCode::Internal, "view: shape and strides must be tuples of one size");
  }
  batten_tensor t{};
  t.ndim = checked_rank(PyTuple_Size(shape));
  t.data = PyLong_AsVoidPtr(PyTuple_GetItem(view, 0));
  if (t.data == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  t.dtype = static_cast<std::int32_t>(integer_at(view, 1));
  for (Py_ssize_t i = 0; i < t.ndim; ++i) {
    t.shape[i] = integer_at(shape, i);
    t.strides[i] = integer_at(strides, i);
  }
  t.device = {static_cast<std::int32_t>(integer_at(view, 4)),
              static_cast<std::int32_t>(integer_at(view, 5))};
  return t;
}

// What the pending Python exception says, which may bring a trace of its framework. Clears it.
inline std::string first_line() {
  const nb::python_error error;
  const std::string text = nb::str(error.value()).c_str();
  return "tensor: " + text.substr(0, text.find('\n'));
}

inline batten_tensor tensor_of(nb::handle object) {
  if (PyTuple_Check(object.ptr())) return tensor_of_view(object.ptr());
  const DlpackExchange* api = exchange_of(object.ptr());
  if (api == nullptr) throw Error(ErrorCode::InvalidArgument, "tensor: expected one with DLPack");
  nb::dlpack::dltensor dl{};
  if (api->tensor_from_object(object.ptr(), &dl) != 0)
    throw Error(ErrorCode::InvalidArgument, first_line());
  batten_tensor t{};
  t.ndim = checked_rank(dl.ndim);
  t.data = static_cast<char*>(dl.data) + dl.byte_offset;
  t.dtype = dtype_of(dl.dtype);
  t.device = device_of(dl.device.device_type, dl.device.device_id);
  std::int64_t contiguous = 1;
  for (std::int32_t i = dl.ndim - 1; i >= 0; --i) {
    t.shape[i] = dl.shape[i];
    t.strides[i] = dl.strides != nullptr ? dl.strides[i] : contiguous;
    contiguous *= dl.shape[i];
  }
  return t;
}

// Keeps an export alive: its memory may belong to the export alone.
inline nb::object owner_of(const nb::ndarray<nb::ro>& array) {
  return nb::capsule(new nb::ndarray<nb::ro>(array),
                     [](void* held) noexcept { delete static_cast<nb::ndarray<nb::ro>*>(held); });
}

// The view of any other DLPack tensor, read-only ones too; who writes checks that elsewhere. The
// view owns the export.
inline nb::tuple view_of(const nb::ndarray<nb::ro>& array) {
  const batten_device device = device_of(array.device_type(), array.device_id());
  nb::list shape, strides;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.append(array.shape(i));
    strides.append(array.stride(i));
  }
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data()), dtype_of(array.dtype()),
                        nb::tuple(shape), nb::tuple(strides), device.type, device.index,
                        owner_of(array));
}

}  // namespace batten_python
