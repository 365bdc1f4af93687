//! The children of a process that adopts what others leave.

use nix::errno::Errno;
use nix::sys::wait::waitpid;

/// Returns when this process has no child any more.
pub fn await_all_children() {
    loop {
        match waitpid(None, None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return,
            Err(errno) => panic!("{errno}"),
        }
    }
}
