//! The life lock, with ranks as threads and with a rank as a process that is killed.

use std::{
    fs::File,
    os::fd::AsRawFd,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Instant,
};

use memmap2::{MmapOptions, MmapRaw};

use super::*;
use crate::shm::{Backing, Identity};

const WATCHDOG: Duration = Duration::from_secs(60);

fn cells(n: usize) -> Arc<[LifeCell]> {
    (0..n).map(|_| LifeCell::default()).collect()
}

/// The cells of a job whose ranks are threads of this process.
#[derive(Clone)]
struct Threads(Arc<[LifeCell]>);

impl Deref for Threads {
    type Target = [LifeCell];
    fn deref(&self) -> &[LifeCell] {
        &self.0
    }
}

fn rank(rank: u32) -> Rank {
    Rank::known(rank)
}

/// Takes the cell of `own` and returns the lock and the losses it reports.
fn take<C>(kernel: HostKernel, cells: C, own: u32) -> (LifeLock, Receiver<Rank>)
where
    C: Deref<Target = [LifeCell]> + Send + 'static,
{
    let (report, losses) = channel();
    let lock =
        LifeLock::take(kernel, cells, None, rank(own), move |lost| report.send(lost).unwrap_or(())).unwrap();
    (lock, losses)
}

fn hosts() -> [HostKernel; 2] {
    let full = HostKernel::detect();
    [full, full.without_waitv()]
}

#[test]
fn who_says_good_bye_is_not_lost() {
    for kernel in hosts() {
        let cells = Threads(cells(2));
        let (first, losses) = take(kernel, cells.clone(), 0);
        let (second, _) = take(kernel, cells.clone(), 1);
        assert_eq!([cells[0].status(), cells[1].status()], [LifeStatus::Alive; 2]);
        drop(second);
        assert_eq!(cells[1].status(), LifeStatus::Left);
        drop(first);
        assert_eq!(losses.iter().count(), 0);
    }
}

#[test]
fn a_heart_beats_again_when_it_asks_to() {
    struct Hasty(std::sync::mpsc::Sender<()>);
    impl LifeObserver for Hasty {
        fn on_loss(&mut self, _lost: Rank) {}
        fn beat(&mut self) -> Duration {
            self.0.send(()).unwrap_or(());
            Duration::from_millis(1)
        }
    }
    for kernel in hosts() {
        let (tell, beats) = channel();
        let _lock = LifeLock::take(kernel, Threads(cells(2)), None, rank(0), Hasty(tell)).unwrap();
        // Twice a second they would take longer than the watchdog waits.
        let end = Instant::now() + WATCHDOG;
        for _ in 0..200 {
            beats.recv_timeout(end.saturating_duration_since(Instant::now())).unwrap();
        }
    }
}

#[test]
fn a_rank_that_is_given_up_is_reported_once_to_every_other() {
    for kernel in hosts() {
        let cells = Threads(cells(4));
        let ranks: Vec<_> = (0..4).map(|own| take(kernel, cells.clone(), own)).collect();
        cells[2].mark_lost(&kernel);
        for (own, (_, losses)) in ranks.iter().enumerate().filter(|(own, _)| *own != 2) {
            assert_eq!(losses.recv_timeout(WATCHDOG), Ok(rank(2)), "rank {own}");
        }
        for (lock, losses) in ranks {
            drop(lock);
            assert_eq!(losses.iter().count(), 0);
        }
        assert_eq!(cells[2].status(), LifeStatus::Lost);
    }
}

#[test]
fn a_life_thread_that_ends_by_a_panic_is_a_loss() {
    let kernel = HostKernel::detect();
    let cells = Threads(cells(3));
    let (_watching, losses) = take(kernel, cells.clone(), 0);
    let fragile =
        LifeLock::take(kernel, cells.clone(), None, rank(1), |_| std::panic::resume_unwind(Box::new(())));
    cells[2].mark_lost(&kernel);
    let both = [losses.recv_timeout(WATCHDOG).unwrap(), losses.recv_timeout(WATCHDOG).unwrap()];
    assert!(both.contains(&rank(1)) && both.contains(&rank(2)));
    drop(fragile.unwrap());
}

#[test]
fn a_cell_is_taken_once() {
    let kernel = HostKernel::detect();
    let cells = Threads(cells(1));
    let (lock, _) = take(kernel, cells.clone(), 0);
    let again = LifeLock::take(kernel, cells.clone(), None, rank(0), |_| {});
    assert!(matches!(again, Err(Error::Layout { what: "life cell", .. })));
    assert_eq!(cells[0].status(), LifeStatus::Alive, "the refused one leaves the cell alone");
    drop(lock);
    assert!(matches!(LifeLock::take(kernel, cells, None, rank(0), |_| {}), Err(Error::Layout { .. })));
}

#[test]
fn there_is_a_cell_for_every_rank_and_no_more_than_ranks() {
    let kernel = HostKernel::detect();
    assert!(matches!(
        LifeLock::take(kernel, Threads(cells(2)), None, rank(2), |_| {}),
        Err(Error::InvalidRank { rank: 2, n_ranks: 2 })
    ));
    assert!(LifeLock::take(kernel, Threads(cells(257)), None, rank(0), |_| {}).is_err());
}

/// The cells of a job whose ranks are processes: the page behind a descriptor.
#[derive(Clone)]
struct Processes {
    page: Arc<MmapRaw>,
    n_ranks: usize,
}

impl Processes {
    const PAGE: usize = 1 << 16;

    fn map(file: &File, n_ranks: usize) -> Self {
        let page = Arc::new(MmapOptions::new().len(Self::PAGE).map_raw(file).unwrap());
        Self { page, n_ranks }
    }
}

impl Deref for Processes {
    type Target = [LifeCell];
    fn deref(&self) -> &[LifeCell] {
        assert!(self.n_ranks * size_of::<LifeCell>() <= Self::PAGE);
        let first = self.page.as_ptr().cast::<LifeCell>();
        // SAFETY: the page is longer than the cells (above) and page-aligned; zero bytes are valid
        // cells of atomics.
        #[expect(clippy::disallowed_methods, reason = "cells, not payload")]
        unsafe {
            std::slice::from_raw_parts(first, self.n_ranks)
        }
    }
}

#[test]
fn a_killed_process_is_reported_to_every_other_rank() {
    const NAME: &str = "shm::life::tests::a_killed_process_is_reported_to_every_other_rank";
    const VARIABLE: &str = "SHMCCL_TEST_LIFE";
    const N_RANKS: usize = 4;
    if let Ok(path) = std::env::var(VARIABLE) {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).unwrap();
        // Memory that takes long to unmap, so that only the life lock can be quick.
        let mut large = MmapOptions::new().len(64 << 20).map_anon().unwrap();
        large.fill(1);
        let file = File::options().read(true).write(true).open(path).unwrap();
        let _alive = take(HostKernel::detect(), Processes::map(&file, N_RANKS), 3);
        loop {
            std::thread::park();
        }
    }
    for kernel in hosts() {
        let fd = nix::sys::memfd::memfd_create("shmccl-test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
        let file = File::from(fd.unwrap());
        file.set_len(Processes::PAGE as u64).unwrap();
        let cells = Processes::map(&file, N_RANKS);
        let ranks: Vec<_> = (0..3).map(|own| take(kernel, cells.clone(), own)).collect();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(VARIABLE, path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while cells[3].status() != LifeStatus::Alive && start.elapsed() < WATCHDOG {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        for (own, (_, losses)) in ranks.iter().enumerate() {
            assert_eq!(losses.recv_timeout(WATCHDOG), Ok(rank(3)), "rank {own}");
        }
        child.wait().unwrap();
    }
}

#[test]
fn a_rank_that_lives_by_a_lock_is_there_until_it_lets_go() {
    let segment = Segment::create(&Backing::Anonymous, 4096, Identity::default()).unwrap();
    let present = |number| is_present(segment.as_fd(), rank(number));
    assert!(!present(0) && !present(1));
    let [first, second] = [0, 1].map(|number| PresenceLock::take(segment.as_fd(), rank(number)).unwrap());
    assert!(present(0) && present(1) && !present(2));
    drop(first);
    assert!(!present(0) && present(1));
    drop(second);
    assert!(!present(1));
}
