//! The corpus of plans: those of MSCCL++ itself, generated ones, single operations and mutants.

mod corpus;
mod interpreted;
