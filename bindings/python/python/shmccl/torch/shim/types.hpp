// The engine's numbers of torch's types and operators.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <map>

#include "table.hpp"

namespace shim {

inline shmcclDataType_t type_of(at::ScalarType type, const char* operation) {
  static const std::map<at::ScalarType, shmcclDataType_t> types{
      {at::kBool, shmcclBool},         {at::kChar, shmcclInt8},             {at::kByte, shmcclUint8},
      {at::kShort, shmcclInt16},       {at::kUInt16, shmcclUint16},         {at::kInt, shmcclInt32},
      {at::kUInt32, shmcclUint32},     {at::kLong, shmcclInt64},            {at::kUInt64, shmcclUint64},
      {at::kHalf, shmcclFloat16},      {at::kFloat, shmcclFloat32},         {at::kDouble, shmcclFloat64},
      {at::kBFloat16, shmcclBfloat16}, {at::kFloat8_e4m3fn, shmcclFloat8e4m3}, {at::kFloat8_e5m2, shmcclFloat8e5m2},
      {at::kComplexFloat, shmcclComplex64}, {at::kComplexDouble, shmcclComplex128},
  };
  const auto found = types.find(type);
  TORCH_CHECK_TYPE(found != types.end(), "shmccl: ", operation, " cannot reduce tensors of type ", type,
                   "; it can only move them (broadcast, gather, send, ...)");
  return found->second;
}

// Booleans are added by `or` and multiplied by `and`.
inline shmcclRedOp_t op_of(c10d::ReduceOp::RedOpType op, at::ScalarType type, const char* operation) {
  using Op = c10d::ReduceOp;
  static const std::map<Op::RedOpType, shmcclRedOp_t> ops{
      {Op::SUM, shmcclSum}, {Op::PREMUL_SUM, shmcclSum}, {Op::PRODUCT, shmcclProd}, {Op::MIN, shmcclMin},     {Op::MAX, shmcclMax},
      {Op::AVG, shmcclAvg}, {Op::BAND, shmcclBitAnd},    {Op::BOR, shmcclBitOr},    {Op::BXOR, shmcclBitXor},
  };
  const bool is_bitwise = op == Op::BAND || op == Op::BOR || op == Op::BXOR;
  const bool is_scaled = op == Op::AVG || op == Op::PREMUL_SUM;
  TORCH_CHECK_VALUE(ops.count(op), "shmccl: ", operation, ": unknown reduction");
  TORCH_CHECK_TYPE(!is_bitwise || at::isIntegralType(type, true), "shmccl: ", operation,
                   ": BAND, BOR and BXOR need integers or booleans, not ", type);
  TORCH_CHECK_TYPE(!is_scaled || type != at::kBool, "shmccl: ", operation, " of booleans takes no AVG and no PREMUL_SUM");
  TORCH_CHECK_TYPE(!at::isComplexType(type) || op == Op::SUM || is_scaled, "shmccl: ", operation,
                   " of complex numbers takes SUM, AVG and PREMUL_SUM only");
  return ops.at(op);
}

// The factor of PREMUL_SUM as one element of the tensor's type, or of its real part's.
inline Tensor premul_factor(const c10d::ReduceOp& op, at::ScalarType elements) {
  const auto type = at::isComplexType(elements) ? c10::toRealValueType(elements) : elements;
  auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement, "shmccl: PREMUL_SUM without a factor");
  if (supplement->tensor_factor.defined()) return supplement->tensor_factor.to(at::kCPU, type).contiguous();
  return at::full({1}, supplement->double_factor, at::TensorOptions().dtype(type));
}

}  // namespace shim
