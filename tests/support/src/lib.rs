//! What the tests of several binaries have in common, and knows nothing of the library.
//!
//! It is a package so that each of them is written, compiled and linted once.

mod another_user;
mod chance;
mod command;
mod float8;
mod installed;
mod long;
mod orphans;
mod process;
pub mod reduction;
mod surroundings;
mod watchdog;

pub use another_user::can_be_played;
pub use chance::{Random, seed, told_seed};
pub use command::{copy_program, plain_command};
pub use installed::InstalledLibrary;
pub use long::long;
pub use orphans::await_all_children;
pub use process::{is_running, wait_until};
pub use surroundings::{Surroundings, heeding_interrupts};
pub use watchdog::Watchdog;
