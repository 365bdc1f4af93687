//! How a function of the header ends: by a code. The thread keeps the text and the rank of its last
//! failure, and can ask for them.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use shmccl::Rank;

use crate::arguments::required;
use crate::comm_state::{CommState, place_among};
use crate::failure::{Failure, attempt};
use crate::interrupt::interruptible;
use crate::types::shmcclResult_t::{self, *};
use crate::types::{shmcclComm_t, signed};

/// The last failure of a thread, with its text as C reads it.
struct LastFailure {
    text: CString,
    rank: Option<Rank>,
}

thread_local! {
    static LAST: RefCell<Option<LastFailure>> = const { RefCell::new(None) };
}

/// Keeps `failure` as the last one of this thread, and returns its code.
pub(crate) fn note(failure: &Failure) -> shmcclResult_t {
    // A text with a zero in it ends there.
    let text = failure.text().split('\0').next().unwrap_or_default();
    let text = CString::new(text).unwrap_or_default();
    LAST.with(|last| last.replace(Some(LastFailure { text, rank: failure.rank() })));
    failure.code()
}

/// Does `run`, and returns its end as a code. A panic ends here.
pub(crate) fn answer(run: impl FnOnce() -> Result<(), Failure>) -> shmcclResult_t {
    match attempt(|| interruptible(run)) {
        Ok(()) => shmcclSuccess,
        Err(failure) => note(&failure),
    }
}

/// Returns the text of the last failure of the calling thread, with its values and, where there is
/// one, the remedy. The text is empty before the first failure, and is overwritten by the next
/// failure of this thread. `comm` may be NULL: the text is the thread's, whatever it belongs to.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGetLastError(comm: shmcclComm_t) -> *const c_char {
    let _ = comm;
    LAST.with_borrow(|last| last.as_ref().map_or(c"".as_ptr(), |last| last.text.as_ptr()))
}

/// Stores the rank that the last failure of the calling thread names, or -1 where it names none:
/// the one that was lost, awaited, or has failed. It is numbered as `comm` numbers its ranks, with
/// -1 for a rank that is not in `comm`. With NULL it is numbered as the job does.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGetLastErrorRank(comm: shmcclComm_t, rank: Option<&mut c_int>) -> shmcclResult_t {
    answer(|| {
        let named = LAST.with_borrow(|last| last.as_ref().and_then(|last| last.rank));
        *required(rank, "rank")? = match named {
            Some(named) if comm.is_null() => signed(named.get()),
            Some(named) => place_among(CommState::get(comm)?.members(), named),
            None => -1,
        };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_panic_is_a_code_with_its_text_and_no_unwinding() {
        assert_eq!(answer(|| panic!("index {} of 3", 7)), shmcclInternalError);
        // SAFETY: the text is this thread's, which has no other failure meanwhile.
        let text = unsafe { CStr::from_ptr(shmcclGetLastError(std::ptr::null_mut())) };
        assert!(text.to_str().unwrap().starts_with("index 7 of 3"), "{text:?}");
    }
}
