# SPDX-License-Identifier: Apache-2.0
"""The code of the library that ONNX Runtime loads, as LLVM IR.

It is small: two functions that a plug-in has to have, which hand the work to the Python of this
process; one that calls a compiled region, and one that does nothing, for whoever is called after
Python has ended. It has no data that is written.
"""

from __future__ import annotations

from intarsia.provider.abi import PLACES, ComputeInfo

MODULE = "intarsia.provider.factory"
"""The module of Python whose function `create_factories` the library calls."""

EXPORTED = ("CreateEpFactories", "ReleaseEpFactory", "intarsia_compute", "intarsia_nothing")

MOST_DIMENSIONS = 16
"""Of a tensor that a region is called with."""

_FAILED = 1
"""ORT_FAIL."""

_NO_PYTHON = (
    "Intarsia's provider works in a process of Python, and there is none here "
    "(or its functions are hidden)"
)
_NO_PACKAGE = (
    "Intarsia's provider cannot import the Python package intarsia; what Python said is above"
)
_NO_TENSOR = "an input is no tensor of at most 16 dimensions"


def _text(name: str, value: str) -> str:
    data = value.encode() + b"\0"
    escaped = "".join(f"\\{byte:02x}" for byte in data)
    return f'@{name} = private unnamed_addr constant [{len(data)} x i8] c"{escaped}"\n'


CODE = (
    _text("module", MODULE)
    + _text("create", "create_factories")
    + _text("format", "KKKKKK")
    + _text("no_python", _NO_PYTHON)
    + _text("no_package", _NO_PACKAGE)
    + _text("no_tensor", _NO_TENSOR)
    + f"""
declare extern_weak i32 @Py_IsInitialized() nonlazybind
declare extern_weak i32 @PyGILState_Ensure() nonlazybind
declare extern_weak void @PyGILState_Release(i32) nonlazybind
declare extern_weak ptr @PyImport_ImportModule(ptr) nonlazybind
declare extern_weak ptr @PyObject_CallMethod(ptr, ptr, ptr, ...) nonlazybind
declare extern_weak i64 @PyLong_AsUnsignedLongLong(ptr) nonlazybind
declare extern_weak ptr @PyErr_Occurred() nonlazybind
declare extern_weak void @PyErr_Print() nonlazybind
declare extern_weak void @Py_DecRef(ptr) nonlazybind

; Returns a status with a text, by the first function of ONNX Runtime's table.
define internal ptr @fail(ptr %api, ptr %text) {{
  %create = load ptr, ptr %api
  %status = call ptr %create(i32 {_FAILED}, ptr %text)
  ret ptr %status
}}

define ptr @CreateEpFactories(ptr %name, ptr %base, ptr %logger, ptr %factories, i64 %most,
                              ptr %count) {{
  %get_api = load ptr, ptr %base
  %api = call ptr %get_api(i32 1)
  %is_linked = icmp ne ptr @Py_IsInitialized, null
  br i1 %is_linked, label %linked, label %no_python
linked:
  %initialized = call i32 @Py_IsInitialized()
  %is_running = icmp ne i32 %initialized, 0
  br i1 %is_running, label %running, label %no_python
no_python:
  %absent = call ptr @fail(ptr %api, ptr @no_python)
  ret ptr %absent
running:
  %state = call i32 @PyGILState_Ensure()
  %module = call ptr @PyImport_ImportModule(ptr @module)
  %is_imported = icmp ne ptr %module, null
  br i1 %is_imported, label %imported, label %raised
imported:
  %name_number = ptrtoint ptr %name to i64
  %base_number = ptrtoint ptr %base to i64
  %logger_number = ptrtoint ptr %logger to i64
  %factories_number = ptrtoint ptr %factories to i64
  %count_number = ptrtoint ptr %count to i64
  %result = call ptr (ptr, ptr, ptr, ...) @PyObject_CallMethod(
      ptr %module, ptr @create, ptr @format, i64 %name_number, i64 %base_number,
      i64 %logger_number, i64 %factories_number, i64 %most, i64 %count_number)
  call void @Py_DecRef(ptr %module)
  %is_returned = icmp ne ptr %result, null
  br i1 %is_returned, label %returned, label %raised
returned:
  %number = call i64 @PyLong_AsUnsignedLongLong(ptr %result)
  call void @Py_DecRef(ptr %result)
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %raised, label %done
done:
  call void @PyGILState_Release(i32 %state)
  %status = inttoptr i64 %number to ptr
  ret ptr %status
raised:
  call void @PyErr_Print()
  call void @PyGILState_Release(i32 %state)
  %failed = call ptr @fail(ptr %api, ptr @no_package)
  ret ptr %failed
}}

define ptr @ReleaseEpFactory(ptr %factory) {{
  ret ptr null
}}

; Runs a region: asks for the tensors that it is called with and for those of its outputs whose
; shapes are known, writes of each input the address, the type, the number of dimensions and the
; dimensions, and of each output the address, one after another, and calls back.
define ptr @intarsia_compute(ptr %info, ptr %state, ptr %context) {{
  %value_place = alloca ptr
  %data_place = alloca ptr
  %dims_place = alloca ptr
  %type_place = alloca i32
  %rank_place = alloca i64
  %callback_place = getelementptr i8, ptr %info, i64 {ComputeInfo.callback.offset}
  %callback = load ptr, ptr %callback_place
  %api_place = getelementptr i8, ptr %info, i64 {ComputeInfo.api.offset}
  %api = load ptr, ptr %api_place
  %inputs_place = getelementptr i8, ptr %info, i64 {ComputeInfo.input_count.offset}
  %inputs = load i64, ptr %inputs_place
  %outputs_place = getelementptr i8, ptr %info, i64 {ComputeInfo.output_count.offset}
  %outputs = load i64, ptr %outputs_place
  %shapes_place = getelementptr i8, ptr %info, i64 {ComputeInfo.shapes.offset}
  %shapes = load ptr, ptr %shapes_place
  %of_inputs = mul i64 %inputs, {3 + MOST_DIMENSIONS}
  %capacity = add i64 %of_inputs, %outputs
  %record = alloca i64, i64 %capacity
  %get_input_place = getelementptr ptr, ptr %api, i64 {PLACES["KernelContext_GetInput"]}
  %get_input = load ptr, ptr %get_input_place
  %get_output_place = getelementptr ptr, ptr %api, i64 {PLACES["KernelContext_GetOutput"]}
  %get_output = load ptr, ptr %get_output_place
  %get_shape_place = getelementptr ptr, ptr %api,
      i64 {PLACES["GetTensorElementTypeAndShapeDataReference"]}
  %get_shape = load ptr, ptr %get_shape_place
  %get_data_place = getelementptr ptr, ptr %api, i64 {PLACES["GetTensorMutableData"]}
  %get_data = load ptr, ptr %get_data_place
  br label %input

input:
  %i = phi i64 [ 0, %0 ], [ %next_i, %copied ]
  %at = phi i64 [ 0, %0 ], [ %behind, %copied ]
  %has_input = icmp ult i64 %i, %inputs
  br i1 %has_input, label %read, label %output
read:
  store ptr null, ptr %value_place
  %s1 = call ptr %get_input(ptr %context, i64 %i, ptr %value_place)
  %ok1 = icmp eq ptr %s1, null
  br i1 %ok1, label %read2, label %failed
read2:
  %value = load ptr, ptr %value_place
  %is_there = icmp ne ptr %value, null
  br i1 %is_there, label %read3, label %no_tensor
read3:
  %s2 = call ptr %get_shape(ptr %value, ptr %type_place, ptr %dims_place, ptr %rank_place)
  %ok2 = icmp eq ptr %s2, null
  br i1 %ok2, label %read4, label %failed
read4:
  %s3 = call ptr %get_data(ptr %value, ptr %data_place)
  %ok3 = icmp eq ptr %s3, null
  br i1 %ok3, label %write, label %failed
write:
  %rank = load i64, ptr %rank_place
  %is_small = icmp ule i64 %rank, {MOST_DIMENSIONS}
  br i1 %is_small, label %write2, label %no_tensor
write2:
  %data = load i64, ptr %data_place
  %type = load i32, ptr %type_place
  %type_number = zext i32 %type to i64
  %to = getelementptr i64, ptr %record, i64 %at
  store i64 %data, ptr %to
  %to1 = getelementptr i64, ptr %to, i64 1
  store i64 %type_number, ptr %to1
  %to2 = getelementptr i64, ptr %to, i64 2
  store i64 %rank, ptr %to2
  %dims = load ptr, ptr %dims_place
  br label %copy
copy:
  %d = phi i64 [ 0, %write2 ], [ %next_d, %copy_one ]
  %has_dim = icmp ult i64 %d, %rank
  br i1 %has_dim, label %copy_one, label %copied
copy_one:
  %from_dim = getelementptr i64, ptr %dims, i64 %d
  %size = load i64, ptr %from_dim
  %to_number = add i64 %d, 3
  %to_dim = getelementptr i64, ptr %to, i64 %to_number
  store i64 %size, ptr %to_dim
  %next_d = add i64 %d, 1
  br label %copy
copied:
  %past = add i64 %at, 3
  %behind = add i64 %past, %rank
  %next_i = add i64 %i, 1
  br label %input

output:
  %o = phi i64 [ 0, %input ], [ %next_o, %wrote ]
  %out_at = phi i64 [ %at, %input ], [ %next_at, %wrote ]
  %shape = phi ptr [ %shapes, %input ], [ %next_shape, %wrote ]
  %has_output = icmp ult i64 %o, %outputs
  br i1 %has_output, label %ask, label %ready
ask:
  %out_rank = load i64, ptr %shape
  %out_dims = getelementptr i64, ptr %shape, i64 1
  %s4 = call ptr %get_output(ptr %context, i64 %o, ptr %out_dims, i64 %out_rank,
                             ptr %value_place)
  %ok4 = icmp eq ptr %s4, null
  br i1 %ok4, label %ask2, label %failed
ask2:
  %out_value = load ptr, ptr %value_place
  %s5 = call ptr %get_data(ptr %out_value, ptr %data_place)
  %ok5 = icmp eq ptr %s5, null
  br i1 %ok5, label %wrote, label %failed
wrote:
  %out_data = load i64, ptr %data_place
  %out_to = getelementptr i64, ptr %record, i64 %out_at
  store i64 %out_data, ptr %out_to
  %next_o = add i64 %o, 1
  %next_at = add i64 %out_at, 1
  %next_shape = getelementptr i64, ptr %out_dims, i64 %out_rank
  br label %output

ready:
  %result = call ptr %callback(ptr %info, ptr %record, i64 %out_at, ptr %context)
  ret ptr %result
no_tensor:
  %status = call ptr @fail(ptr %api, ptr @no_tensor)
  ret ptr %status
failed:
  %failure = phi ptr [ %s1, %read ], [ %s2, %read3 ], [ %s3, %read4 ], [ %s4, %ask ],
                     [ %s5, %ask2 ]
  ret ptr %failure
}}

define ptr @intarsia_nothing() {{
  ret ptr null
}}
"""
)
