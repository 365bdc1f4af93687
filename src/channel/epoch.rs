//! Everything of one epoch that is mapped into this process: all segments and the control segment.
//!
//! Processes have one each. Device threads of one process share one, and so does a proxy with what
//! it serves.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::control::Control;
use crate::bootstrap::SegmentBacking;
use crate::epoch_id::EpochId;
use crate::error::{Result, check_layout};
use crate::heap::layout::{HeapShape, SegmentCells, control_len, create_segment};
use crate::heap::{HeapView, HeapWindows, MemoryTable};
use crate::rank::Rank;
use crate::shm::segment::AttachAs;
use crate::shm::statics::{JobStatics, StaticsFault};
use crate::shm::{Backing, CellRef, CellSlice, Expected, HostKernel, Segment, Window};
use crate::sync::header::HEADER_LEN;
use crate::sync::{ActivityCell, LifeCell, RevokeCell, SemaphoreCell, WishCell};

/// Names the segment of `rank` in a job whose segments have names.
pub(crate) fn segment_name(prefix: &str, rank: Rank) -> String {
    format!("{prefix}.{rank}")
}

/// The mapped state of an epoch.
#[derive(Debug)]
pub(crate) struct EpochMapping {
    shape: HeapShape,
    kernel: HostKernel,
    control: Control,
    revocation: CellRef<RevokeCell>,
    lives: CellSlice<LifeCell>,
    activities: CellSlice<ActivityCell>,
    segments: Vec<Arc<Segment>>,
    cells: Vec<SegmentCells>,
    semaphores: Vec<CellSlice<SemaphoreCell>>,
    lock_wishes: Vec<CellRef<WishCell>>,
    views: Vec<HeapView>,
    windows: HeapWindows,
    statics: JobStatics,
    boards: Mutex<()>,
}

impl EpochMapping {
    /// Makes `rank`'s own segment: control structures committed and published, the heap only
    /// reserved.
    ///
    /// # Errors
    /// Fails as [`Segment::create`] does.
    pub(crate) fn create_segment(
        epoch_id: EpochId,
        rank: Rank,
        shape: HeapShape,
        backing: &SegmentBacking,
    ) -> Result<Segment> {
        let backing = match backing {
            SegmentBacking::Anonymous => Backing::Anonymous,
            SegmentBacking::Named(prefix) => Backing::Named(segment_name(prefix, rank)),
            SegmentBacking::Files(folder) => {
                Backing::File(std::path::Path::new(folder).join(format!("rank{rank}.shmccl")))
            }
        };
        let segment = create_segment(&backing, shape, epoch_id.identity(Some(rank)))?;
        // A file may hold the control structures of an earlier job; only its heap is to survive.
        let len = control_len(shape.n_ranks()) - HEADER_LEN;
        segment.map()?.span(HEADER_LEN, len)?.fill(0, len, 0)?;
        segment.header().publish();
        Ok(segment)
    }

    /// Maps the segments of all ranks, given in order of rank as peers see them.
    ///
    /// # Errors
    /// Returns the errors of [`Segment::attach`] and of mapping.
    pub(crate) fn attach(
        epoch_id: EpochId,
        shape: HeapShape,
        control: Control,
        descriptors: Vec<OwnedFd>,
        backing: &SegmentBacking,
    ) -> Result<Self> {
        let attach_as = match backing {
            SegmentBacking::Anonymous => AttachAs::Sealed,
            SegmentBacking::Named(_) | SegmentBacking::Files(_) => AttachAs::Unsealed,
        };
        let segment = |(rank, fd): (u32, OwnedFd)| {
            let identity = Some(epoch_id.identity(Some(Rank::new(rank, shape.n_ranks())?)));
            let expected = Expected { len: Some(shape.segment_len()), identity };
            Segment::attach(fd, attach_as, &expected).map(Arc::new)
        };
        let segments = (0..).zip(descriptors).map(segment).collect::<Result<Vec<_>>>()?;
        Self::over(shape, control, segments)
    }

    /// Maps `segments`, given in order of rank.
    pub(crate) fn over(shape: HeapShape, control: Control, segments: Vec<Arc<Segment>>) -> Result<Self> {
        check_layout("number of segments", shape.n_ranks().into(), segments.len() as u64)?;
        crate::shm::copy::prepare();
        let mut window = Window::reserve(shape.n_ranks(), shape.segment_len())?;
        let mut cells = Vec::new();
        for (rank, segment) in (0..).zip(&segments) {
            cells.push(SegmentCells::new(window.map(Rank::new(rank, shape.n_ranks())?, segment)?)?);
        }
        let window = Arc::new(window);
        let view = |rank| HeapView::new(Arc::clone(&window), Rank::new(rank, shape.n_ranks())?, shape);
        let views = (0..shape.n_ranks()).map(view).collect::<Result<_>>()?;
        Ok(Self {
            shape,
            kernel: HostKernel::detect(),
            revocation: control.revocation(),
            lives: control.lives(),
            activities: control.activities(),
            control,
            segments,
            semaphores: cells.iter().map(SegmentCells::semaphores).collect(),
            lock_wishes: cells.iter().map(SegmentCells::lock_wishes).collect(),
            cells,
            views,
            windows: HeapWindows::new(shape.n_ranks(), shape.len())?,
            statics: JobStatics::none(StaticsFault::OneProcess),
            boards: Mutex::default(),
        })
    }

    /// Has `statics` as well, of the same ranks.
    pub(crate) fn with_statics(self, statics: JobStatics) -> Self {
        Self { statics, ..self }
    }

    /// Cuts the heaps into windows and pieces so small that a test can afford more than one.
    #[cfg(test)]
    pub(super) fn cut(mut self, window_len: u64, piece_len: u32) -> Result<Self> {
        self.windows = HeapWindows::with_limits(self.n_ranks(), self.shape.len(), window_len, piece_len)?;
        Ok(self)
    }

    pub(crate) fn n_ranks(&self) -> u32 {
        self.shape.n_ranks()
    }

    /// Returns which job and which incarnation of it this is, as the headers of its segments say.
    pub(crate) fn epoch_id(&self) -> EpochId {
        let identity = self.segments[0].header().identity();
        EpochId { job: identity.job, epoch: identity.epoch }
    }

    pub(crate) fn shape(&self) -> HeapShape {
        self.shape
    }

    pub(crate) fn kernel(&self) -> &HostKernel {
        &self.kernel
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn revocation(&self) -> &RevokeCell {
        &self.revocation
    }

    pub(crate) fn life(&self, rank: Rank) -> &LifeCell {
        &self.lives[rank.index()]
    }

    /// Returns the cell in which `rank` tells of itself.
    pub(crate) fn activity(&self, rank: Rank) -> &ActivityCell {
        &self.activities[rank.index()]
    }

    /// Locks the boards: while this is held, the ranks in this process show no board and hide none.
    /// A board is memory for something else as soon as it is hidden.
    pub(crate) fn hold_boards(&self) -> MutexGuard<'_, ()> {
        self.boards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn segment(&self, rank: Rank) -> &Arc<Segment> {
        &self.segments[rank.index()]
    }

    /// Returns the control structures in `rank`'s segment.
    pub(crate) fn cells(&self, rank: Rank) -> &SegmentCells {
        &self.cells[rank.index()]
    }

    /// Returns the inbound semaphores of `rank`.
    pub(crate) fn semaphores(&self, rank: Rank) -> &CellSlice<SemaphoreCell> {
        &self.semaphores[rank.index()]
    }

    /// Returns the locks that `rank` waits for.
    pub(crate) fn lock_wishes(&self, rank: Rank) -> &WishCell {
        &self.lock_wishes[rank.index()]
    }

    /// Returns the heaps of all ranks, as far as `rank` may use them.
    pub(crate) fn view(&self, rank: Rank) -> &HeapView {
        &self.views[rank.index()]
    }

    /// Returns how the heaps are cut for triggers.
    pub(crate) fn windows(&self) -> &HeapWindows {
        &self.windows
    }

    /// Returns the static objects of all ranks.
    pub(crate) fn statics(&self) -> &JobStatics {
        &self.statics
    }

    /// Returns the table in which the triggers of `rank` find their memory.
    pub(crate) fn memory_table(&self, rank: Rank) -> Result<MemoryTable> {
        MemoryTable::new(self.cells(rank).memory_table(), self.n_ranks(), self.shape.len())
    }
}
