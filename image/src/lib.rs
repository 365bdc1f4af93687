//! The image of the running executable: what is loaded, which objects there are, and the writable
//! range as memory that other processes can map.
//!
//! [`ExecutableRange::find`] finds the writable part of the executable behind RELRO: `.data` and
//! `.bss`. [`map_over`] writes that into a memory file, and maps the file over the same addresses.
//! So `&x` stays, and whoever has the file shares `x`. This crate knows no rank and no job: who
//! gets the file, and which images fit each other, is its user's business.
//!
//! # Mapping over
//! Nothing else may write to the range from the first page that is copied until the file is mapped:
//! it would be lost. This code may itself lie in the executable, with its statics. So it allocates
//! nothing, takes no lock and writes only to its stack in between.
//!
//! # Memory
//! Only pages that were touched are copied. The rest of a large `.bss` is a hole of the file, and
//! gets memory when it is touched, as without all this. So these pages are not committed: where the
//! machine has no memory left, a store ends by SIGBUS or the kernel kills some process. Core dumps
//! hold the range.
//!
//! # Forks
//! A child of a fork gets a copy in place ([`handle_forks`]). In a program that is linked
//! statically the C library's own data lie in the range. The child would use them together with its
//! parent, until a handler is called. It has none of the range instead, and ends by SIGSEGV. Such a
//! program starts others by `posix_spawn`, `system` or `vfork`. A bare `clone` is not caught, and
//! its child shares.
//!
//! | module | what |
//! |---|---|
//! | `address` | numbers as pointers |
//! | [`private`] | memory of one process alone, put in the place of shared memory |
//! | [`child_copy`] | what a child of a fork takes over |
//! | [`elf`] | builds and objects, as files tell of them |
//! | `loaded` | which files are loaded, and where |
//! | [`range`](mod@range) | the writable range of the executable |
//! | [`object`] | what lies at an address |
//! | [`shared`] | the range once it is a file |
//! | `forks` | the range in a child of a fork |
//! | `map` | how it is mapped over |
//!
//! Tried by its unit tests, `programs` and `shmem_programs`.
#![deny(unsafe_code)]

mod address;
pub mod child_copy;
pub mod elf;
mod forks;
mod loaded;
mod map;
pub mod object;
pub mod private;
pub mod range;
pub mod shared;

pub use child_copy::ChildCopy;
pub use elf::{ElfFile, ElfSymbol, SymbolKind};
pub use forks::handle_forks;
pub use map::map_over;
pub use object::{ObjectKind, StrayObject};
pub use range::ExecutableRange;
pub use shared::SharedImage;

/// The executable of this process.
pub const OWN_FILE: &str = "/proc/self/exe";

/// The length of a page.
pub const PAGE: u64 = 4096;
