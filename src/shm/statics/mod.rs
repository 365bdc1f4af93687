//! Static objects as symmetric memory: `.data` and `.bss` of the executable, mapped over in place.
//!
//! `shmccl-image` maps a file over the writable part of the executable. So `&x` stays. The ranks of
//! a job give each other their files as they meet, and map those of the others elsewhere: a
//! [`StaticsWindow`]. An object of a peer is at the same offset there: the layouts (`description`)
//! were compared.
//!
//! # Order
//! Every rank has mapped over before it gives its file away, and peers write only what they were
//! given. So no copy overwrites what a peer has written.
//!
//! Another thread that writes to the range while it is mapped over would lose what it writes. So a
//! constructor calls this, and it refuses where there is another thread. [`STATICS`] can say that
//! such a thread, of a shared library, does no harm.
//!
//! Which pages are copied, and what a child of a fork has, the head of `shmccl-image` says.
//!
//! | file | what |
//! |---|---|
//! | `description` | what a rank tells of its layout, and how two differ |
//! | `fault` | why static objects, or an address, are not symmetric |
//! | `window` | the static objects of all ranks |
//!
//! Tried by its unit tests and the C library's `programs`.

mod description;
mod fault;
mod window;

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, OnceLock};

use shmccl_image::{ExecutableRange, SharedImage};
pub use shmccl_image::{ObjectKind, StrayObject};

use super::limits::{self, Store};
use super::mapping::Mapping;
use super::segment::memfd;
use super::undivided::undivided;
use super::{PAGE, forks};
use crate::error::{Error, Result};
use description::LayoutDescription;
pub use fault::{LayoutDifference, ObjectDifference, StaticsFault};
pub use window::{JobStatics, StaticsWindow};

/// The variable that says whether static objects are symmetric.
pub const STATICS: &str = "SHMCCL_STATICS";

/// What errors say was being done.
const SHARING: &str = "sharing the static objects";

/// What became of this process's static objects, once it was asked.
static OUTCOME: OnceLock<MappingOutcome> = OnceLock::new();

#[derive(Debug)]
enum MappingOutcome {
    Mapped(OwnStatics),
    Unwanted,
    Failed(Arc<Error>),
}

/// The static objects of this process, in a file that peers can map.
#[derive(Debug)]
pub(crate) struct OwnStatics {
    image: &'static SharedImage,
    mapping: Mapping,
}

impl OwnStatics {
    /// Returns the file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.image.file()
    }
}

/// Returns what [`STATICS`] says: `1` or `0`. Nothing is `None`.
///
/// # Errors
/// [`Error::Setting`] for another value.
pub fn switch() -> Result<Option<bool>> {
    match std::env::var_os(STATICS).as_ref().map(|text| text.to_str()) {
        None | Some(Some("")) => Ok(None),
        Some(Some("0")) => Ok(Some(false)),
        Some(Some("1")) => Ok(Some(true)),
        Some(_) => Err(Error::Setting { variable: STATICS, expected: "1, or 0 for none" }),
    }
}

/// Makes the static objects of this process's executable shared memory, in place, if that
/// `is_wanted`. The first call decides.
///
/// # Safety
/// No other thread writes to static objects of the executable meanwhile. A constructor that comes
/// before those of the program is a place to call it.
///
/// # Errors
/// [`Error::NotSymmetric`] with the reason why it was not possible. Whoever uses static objects of
/// a job gets it as well.
pub unsafe fn map_over(is_wanted: Result<bool>) -> Result<()> {
    let outcome = OUTCOME.get_or_init(|| {
        let map_if = |is_wanted: bool| {
            if !is_wanted {
                return Ok(MappingOutcome::Unwanted);
            }
            let (range, file) = prepare()?;
            // No fork comes in between.
            let image = undivided(|| {
                // SAFETY: the caller answers for other threads. The file cannot be resized, and
                // peers get it that write to it where the program has told them.
                unsafe { shmccl_image::map_over(range, file.into(), forks::has_room) }
            });
            let image = image.map_err(|source| limits::refused(SHARING, Store::Memory, source))?;
            Ok(MappingOutcome::Mapped(OwnStatics { image, mapping: Mapping::of_image(image) }))
        };
        is_wanted.and_then(map_if).unwrap_or_else(|error| MappingOutcome::Failed(error.into()))
    });
    match outcome {
        MappingOutcome::Failed(source) => Err(StaticsFault::Failed(Arc::clone(source)).into()),
        MappingOutcome::Mapped(_) | MappingOutcome::Unwanted => Ok(()),
    }
}

/// Returns the static objects of this process, if they are symmetric. In a child of a fork they are
/// the child's own.
pub(crate) fn own() -> Result<&'static OwnStatics, StaticsFault> {
    match OUTCOME.get() {
        Some(MappingOutcome::Mapped(own)) if own.image.is_shared() => Ok(own),
        Some(MappingOutcome::Mapped(_)) => Err(StaticsFault::Forked),
        Some(MappingOutcome::Failed(source)) => Err(StaticsFault::Failed(Arc::clone(source))),
        // A constructor has read it before. Where there is none, no thread of this library may
        // read variables.
        Some(MappingOutcome::Unwanted) if switch().is_ok_and(|on| on == Some(false)) => {
            Err(StaticsFault::SwitchedOff)
        }
        Some(MappingOutcome::Unwanted) => Err(StaticsFault::NoRank),
        None => Err(StaticsFault::NotAsked),
    }
}

/// Returns how many bytes of memory are behind the static objects of this process, where they are
/// symmetric.
pub(crate) fn committed() -> u64 {
    let Ok(own) = own() else { return 0 };
    let file = own.file().try_clone_to_owned().map(File::from);
    // The last page describes the others.
    file.and_then(|file| file.metadata()).map_or(0, |file| (512 * file.blocks()).saturating_sub(PAGE))
}

/// Finds what is to be mapped over, and makes the file for it, which says at its end what it holds.
fn prepare() -> Result<(ExecutableRange, File)> {
    let range = ExecutableRange::find().ok_or(StaticsFault::NoObjects)?;
    let n_threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if n_threads > 1 && switch()? != Some(true) {
        return Err(StaticsFault::Threads(n_threads).into());
    }
    let file = File::from(memfd(c"static objects", range.len() + PAGE)?);
    let told = file.write_all_at(LayoutDescription::of(&range).bytes(), range.len());
    told.map_err(|source| limits::refused(SHARING, Store::Memory, source))?;
    Ok((range, file))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Mutex;

    use super::*;
    use crate::rank::Rank;

    static OBJECT: Mutex<u64> = Mutex::new(5);

    /// Does what the test below has to do in a process of its own.
    fn map_over_and_look() {
        // SAFETY: the other thread of this process waits for this one.
        unsafe { map_over(switch().map(|on| on == Some(true))) }.unwrap();
        assert_eq!(*OBJECT.lock().unwrap(), 5);
        let address = std::ptr::from_ref(&OBJECT).addr();
        assert!(committed() > 0 && committed() <= own().unwrap().mapping.len());
        let file = || own().unwrap().file().try_clone_to_owned().unwrap();
        let job = JobStatics::attach(Some(Rank::known(0)), Ok(vec![file()])).unwrap();
        let window = job.window().unwrap();
        let len = size_of::<Mutex<u64>>() as u64;
        let span = window.span(Rank::known(0), address, len).unwrap();
        assert_eq!(span.start().as_ptr().addr(), address, "its own place");
        assert!(window.span(Rank::known(1), address, len).is_err());
        let past = window.span(Rank::known(0), address, window.len() + 1).unwrap_err();
        assert!(matches!(past, Error::OutOfRange { what: "static objects", .. }), "{past}");
        let outside = window.span(Rank::known(0), std::ptr::from_ref(&len).addr(), len).unwrap_err();
        assert!(matches!(outside.detail(), Some(StaticsFault::Outside(_))), "{outside}");
        // One process as two ranks; and a rank that has none.
        let shared = JobStatics::attach(Some(Rank::known(0)), Ok(vec![file(), file()])).unwrap();
        assert!(matches!(shared.window().unwrap_err().detail(), Some(StaticsFault::OneProcess)));
        let lacking = JobStatics::attach(Some(Rank::known(0)), Err(Rank::known(1))).unwrap();
        assert!(matches!(lacking.window().unwrap_err().detail(), Some(StaticsFault::Lacking(_))));
    }

    #[test]
    fn objects_stay_where_they_are_and_ranks_without_any_are_told() {
        const ALONE: &str = "SHMCCL_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return map_over_and_look();
        }
        assert!(matches!(own(), Err(StaticsFault::NotAsked)));
        assert_eq!(committed(), 0);
        let name = "shm::statics::tests::objects_stay_where_they_are_and_ranks_without_any_are_told";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").env(STATICS, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
