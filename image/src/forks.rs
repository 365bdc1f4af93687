//! What a child of a fork has in the place of the range: a copy, as it has of ordinary memory.
//!
//! The range stays mapped until the handler in the child puts the copy over it. What this library
//! has of its own may be in the range. So the handler reads nothing but what the thread that forks
//! has noted for itself before: where the copy is. The copy is read from the file before the fork.
//! Bytes that others write meanwhile are old or new, each by itself.
#![allow(unsafe_code, reason = "handlers that exchange the memory behind addresses")]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Once;

use crate::ChildCopy;
use crate::private::pages_of;
use crate::shared::SharedImage;

thread_local! {
    /// What the child of this thread's fork does before anything else.
    static IN_PLACE: Cell<Option<Replacement>> = const { Cell::new(None) };
}

/// How a child replaces the `len` bytes at `start` by their copy.
struct Replacement {
    start: u64,
    len: u64,
    /// Not dropped with the thread, since the thread would have to be told so in a fork.
    copy: ManuallyDrop<ChildCopy>,
}

/// Has children of forks get a copy of what is, or will be, mapped over. Handlers that
/// `pthread_atfork` gets later are called before the copy is made, and in the child after it is in
/// place: so they may have statics in the executable.
pub fn handle_forks() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the three functions stay where they are: code of this library is not unloaded,
        // and if it were, the C library would forget them with it.
        let refused = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        // Out of memory at the very start.
        let _ = refused;
    });
}

impl Replacement {
    /// Copies what has pages of the image.
    fn of(image: &SharedImage) -> Self {
        let (start, len, file) = (image.range().start(), image.range().len(), image.owned_file());
        let mut copy = ChildCopy::new();
        let pieces = pages_of(file, 0, len).into_iter().map(|(from, to)| (start + from, to - from));
        copy.plan(pieces, image.has_room());
        copy.read_from(file, start);
        Self { start, len, copy: ManuallyDrop::new(copy) }
    }
}

extern "C" fn before_fork() {
    let image = SharedImage::get().filter(|image| image.is_shared() && !image.range().holds_c_library());
    IN_PLACE.set(image.map(Replacement::of));
}

extern "C" fn in_parent() {
    drop(IN_PLACE.take().map(|replacement| ManuallyDrop::into_inner(replacement.copy)));
}

extern "C" fn in_child() {
    let Some(mut replacement) = IN_PLACE.take() else { return };
    // SAFETY: the pieces are what had pages of the range, see `of`.
    unsafe { replacement.copy.replace(replacement.start, replacement.len) };
    // Until here, objects of this library may have been its parent's.
    SharedImage::get().into_iter().for_each(SharedImage::note_fork);
}
