//! Why static objects, or an address among them, are not symmetric.

use std::path::PathBuf;
use std::sync::Arc;

use shmccl_image::{ObjectKind, StrayObject};

use crate::error::Error;
use crate::rank::Rank;

/// Why static objects of a job, or what lies at an address, are not symmetric.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StaticsFault {
    /// Nobody has asked for it before `main`.
    #[error(
        "static objects are not symmetric, because this program has not asked for it; in C, put \
         SHMCCL_SYMMETRIC_STATICS at file scope once"
    )]
    NotAsked,
    /// The environment says so.
    #[error("static objects are not symmetric, because SHMCCL_STATICS is 0")]
    SwitchedOff,
    /// No launcher had started the process as a rank.
    #[error(
        "static objects are not symmetric, because no launcher has started this process as a rank; set SHMCCL_STATICS \
         to 1"
    )]
    NoRank,
    /// The executable has no writable objects.
    #[error("the executable has no static objects")]
    NoObjects,
    /// Other threads exist, which may write to them while they are mapped over.
    #[error(
        "static objects are not symmetric, because this process has had {0} threads before its first constructor; set \
         SHMCCL_STATICS to 1 if those of shared libraries write to no static object of the program"
    )]
    Threads(usize),
    /// It was tried, and failed.
    #[error("static objects could not be made symmetric")]
    Failed(#[source] Arc<Error>),
    /// The process is a child of a fork, and has a copy.
    #[error("the static objects of a child of a fork are its own; start ranks as programs of their own")]
    Forked,
    /// A rank has none, though others may.
    #[error(
        "static objects are not symmetric: rank {0} has none; all ranks have to run one program, set up alike"
    )]
    Lacking(Rank),
    /// Two ranks are one process.
    #[error("static objects are not symmetric, because ranks of this job share a process")]
    OneProcess,
    /// The ranks' programs differ.
    #[error("{0}")]
    Differs(Box<LayoutDifference>),
    /// The address is not that of a static object of the executable.
    #[error("{} is not symmetric: {}", .0, reason(.0.kind))]
    Outside(Box<StrayObject>),
}

impl From<StaticsFault> for Error {
    fn from(fault: StaticsFault) -> Self {
        Self::NotSymmetric { fault: Box::new(fault) }
    }
}

/// Says why memory of this kind is not symmetric, and what to do.
fn reason(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Constant => "it is constant, and only variables are",
        ObjectKind::Library => "it belongs to a shared library; define it in the program, or allocate it",
        ObjectKind::ThreadLocal => "it is thread-local; make it static, or allocate it",
        ObjectKind::Other => {
            "it is neither in the heap nor a static object of the program, but on a stack or allocated elsewhere"
        }
    }
}

/// How the static objects of a rank lie elsewhere than those of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutDifference {
    /// The rank that differs.
    pub rank: Rank,
    /// The programs of rank 0 and of that rank.
    pub files: [PathBuf; 2],
    /// How many bytes of static objects these have.
    pub lens: [u64; 2],
    /// The first object that lies elsewhere, where the files tell.
    pub object: Option<ObjectDifference>,
}

/// An object that two programs do not have at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDifference {
    /// Its name, as the linker has it.
    pub name: String,
    /// Where it is among the static objects of each, and how long. A program may have none.
    pub places: [Option<(u64, u64)>; 2],
}

impl std::fmt::Display for LayoutDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, files: [first, other], lens, object } = self;
        let (first, other) = (first.display(), other.display());
        match object {
            Some(ObjectDifference { name, places }) => {
                let [mine, theirs] = places.map(|place| match place {
                    Some((offset, len)) => format!("has {len} bytes at {offset:#x}"),
                    None => "is not there".to_owned(),
                });
                write!(
                    f,
                    "the static objects of rank 0 ({first}) and rank {rank} ({other}) differ: `{name}` {mine} in \
                     the one, and {theirs} in the other"
                )?;
            }
            None => write!(
                f,
                "rank 0 ({first}) and rank {rank} ({other}) are different builds, with {} and {} bytes of static \
                 objects",
                lens[0], lens[1]
            )?,
        }
        f.write_str("; start all ranks from one build, or set SHMCCL_STATICS to 0")
    }
}
