//! The corpus of plans: those of MSCCL++ itself, generated ones, single operations and mutants.

mod broken;
mod checked;
mod corpus;
mod differences;
mod drawn;
mod false_clean;
mod imported;
mod interpreted;
mod iterated;
mod musts;
mod mutants;
mod on_a_gpu;
mod shown;
mod wrapped;
mod written;
