//! The static objects of all ranks of a job, as one of them has them mapped.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::stat::fstat;
use shmccl_image::StrayObject;

use super::description::LayoutDescription;
use super::fault::StaticsFault;
use super::own;
use crate::error::{Error, Result, check_layout};
use crate::rank::Rank;
use crate::shm::mapping::Mapping;
use crate::shm::segment::map;
use crate::shm::{Span, in_bounds};

/// The static objects of all ranks of a job, or the reason why there are none.
#[derive(Clone, Debug)]
pub struct JobStatics(Result<Arc<StaticsWindow>, StaticsFault>);

/// Where the static objects of each rank are in this process.
#[derive(Debug)]
pub struct StaticsWindow {
    /// The first address of this rank's own.
    start: u64,
    len: u64,
    /// The range of each rank, by the job's numbers; this rank's own in its place.
    ranges: Vec<Span>,
    own: Rank,
}

impl JobStatics {
    /// Returns what a job has that gives `fault` as the reason.
    #[must_use]
    pub fn none(fault: StaticsFault) -> Self {
        Self(Err(fault))
    }

    /// Maps the static objects of all ranks for the rank `own`, from their files in order of rank.
    /// Where there is no file for each, the first rank that has none is told.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`] when the layouts differ; [`Error::Layout`] for files that are
    /// something else; [`Error::ResourceLimit`], [`Error::Os`].
    pub(crate) fn attach(own: Option<Rank>, files: Result<Vec<OwnedFd>, Rank>) -> Result<Self> {
        // A proxy has none, and knows why.
        let Some(rank) = own else { return Ok(Self::none(StaticsFault::NotAsked)) };
        let files = match (files, super::own()) {
            (Ok(files), Ok(_)) => files,
            (_, Err(fault)) => return Ok(Self::none(fault)),
            (Err(lacking), Ok(_)) => return Ok(Self::none(StaticsFault::Lacking(lacking))),
        };
        let all = files.iter().map(LayoutDescription::read).collect::<Result<Vec<_>>>()?;
        let Some((first, others)) = all.split_first() else {
            return Ok(Self::none(StaticsFault::Lacking(rank)));
        };
        for (number, other) in (1..).zip(others) {
            if let Some(difference) = first.difference(other, Rank::known(number)) {
                return Err(StaticsFault::Differs(difference.into()).into());
            }
        }
        if share_a_process(&files)? {
            return Ok(Self::none(StaticsFault::OneProcess));
        }
        StaticsWindow::map(rank, files, first.len()).map(|window| Self(Ok(window.into())))
    }

    /// Returns the static objects.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`] with the reason why there are none.
    pub fn window(&self) -> Result<&Arc<StaticsWindow>> {
        self.0.as_ref().map_err(|fault| fault.clone().into())
    }
}

impl StaticsWindow {
    fn map(rank: Rank, files: Vec<OwnedFd>, len: u64) -> Result<Self> {
        let mine = &own()?.mapping;
        check_layout("length of static objects", mine.len(), len)?;
        let range = |(number, file): (u32, OwnedFd)| {
            let mapping: Mapping =
                if number == rank.get() { mine.clone() } else { map(&Arc::new(file), len)? };
            mapping.unlent_span(0, len)
        };
        let ranges = (0..).zip(files).map(range).collect::<Result<Vec<_>>>()?;
        Ok(Self { start: mine.base().as_ptr().addr() as u64, len, ranges, own: rank })
    }

    /// Returns the address of the first byte, in this rank.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns how many bytes each rank has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `false`: there is a page at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the offset of the `len` bytes at `address` of this rank, if static objects lie
    /// there.
    #[inline]
    #[must_use]
    pub fn find(&self, address: usize, len: u64) -> Option<u64> {
        let offset = (address as u64).wrapping_sub(self.start);
        in_bounds(offset, len, self.len).then_some(offset)
    }

    /// Returns the offset of the `len` bytes at `address` of this rank.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`] names what else lies there; [`Error::OutOfRange`] for bytes that
    /// begin among static objects, and do not end there.
    pub fn offset_of(&self, address: usize, len: u64) -> Result<u64> {
        self.find(address, len).ok_or_else(|| match self.find(address, 0) {
            Some(offset) => Error::OutOfRange { what: "static objects", offset, len, limit: self.len },
            None => outside(address),
        })
    }

    /// Returns all static objects of a rank, as the job numbers it. A child of a fork finds nothing
    /// in them, unless they are its own.
    ///
    /// # Errors
    /// [`Error::InvalidRank`].
    pub fn whole(&self, rank: Rank) -> Result<&Span> {
        let n_ranks = u32::try_from(self.ranges.len()).unwrap_or(u32::MAX);
        self.ranges.get(rank.index()).ok_or(Error::InvalidRank { rank: rank.get(), n_ranks })
    }

    /// Returns what a rank, as the job numbers it, has at the place of the `len` bytes at `address`
    /// of this rank. A child of a fork finds in it what it held then.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], [`Error::OutOfRange`], [`Error::InvalidRank`].
    pub fn span(&self, rank: Rank, address: usize, len: u64) -> Result<Span> {
        let span = self.whole(rank)?.part(self.offset_of(address, len)?, len)?;
        if rank != self.own {
            span.lend();
        }
        Ok(span)
    }
}

#[cold]
fn outside(address: usize) -> Error {
    StaticsFault::Outside(StrayObject::at(address as u64).into()).into()
}

/// Returns whether two of the files are one: ranks that are threads have the same objects.
fn share_a_process(files: &[OwnedFd]) -> Result<bool> {
    let number = |file: &OwnedFd| {
        let stat = fstat(file).map_err(|errno| Error::os("looking at a descriptor", errno))?;
        Ok((stat.st_dev, stat.st_ino))
    };
    let mut numbers = files.iter().map(number).collect::<Result<Vec<_>>>()?;
    numbers.sort_unstable();
    Ok(numbers.windows(2).any(|pair| pair[0] == pair[1]))
}
