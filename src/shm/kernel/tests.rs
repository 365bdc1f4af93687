//! The host's calls, between threads and between processes. A test that needs a second process
//! starts its own binary again with a variable that tells it where the shared page is.

use std::{
    fs::File,
    os::fd::AsRawFd,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use memmap2::{MmapOptions, MmapRaw};

use super::*;
use crate::sync::{
    Latch, ParkCell, Revocation, RevokeCell, SemaphoreCell, SemaphoreReceiver, SemaphoreSender, Stop,
    WaitPolicy, Waiting, wait_until,
};

const LONG: Duration = Duration::from_secs(60);
const PARK_AT_ONCE: WaitPolicy = WaitPolicy { spins: 0, park_after: Duration::ZERO };
const PAGE: usize = 1 << 16;

/// A page that two processes share.
struct Shared {
    file: File,
    page: MmapRaw,
}

impl Shared {
    fn create() -> Self {
        let fd = nix::sys::memfd::memfd_create("shmccl-test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
        let file = File::from(fd.unwrap());
        file.set_len(PAGE as u64).unwrap();
        Self::map(file)
    }

    fn attach(path: &str) -> Self {
        Self::map(File::options().read(true).write(true).open(path).unwrap())
    }

    fn map(file: File) -> Self {
        let page = MmapOptions::new().map_raw(&file).unwrap();
        Self { file, page }
    }

    /// A cell of the page: all-zero bytes are valid for every `T` that the tests ask for.
    fn cell<T>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= PAGE && offset.is_multiple_of(align_of::<T>()));
        let cell = self.page.as_ptr().wrapping_add(offset).cast::<T>();
        // SAFETY: in bounds and aligned, checked above; T is one of the sync cells: atomics only,
        // zero is valid.
        unsafe { &*cell }
    }

    /// Runs the test `name` once more, in a process of its own that finds this page in `variable`.
    fn in_another_process(&self, name: &str, variable: &str) -> Child {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(variable, path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

const SEMAPHORES: [usize; 2] = [0, 128];
const REVOKE: usize = 256;

#[test]
fn a_sleeper_is_woken_by_another_process() {
    const NAME: &str = "shm::kernel::tests::a_sleeper_is_woken_by_another_process";
    const VARIABLE: &str = "SHMCCL_TEST_WAKE";
    let kernel = HostKernel::detect();
    let attend = |shared: &Shared, sends: usize, receives: usize| {
        let mut sender = SemaphoreSender::new(shared.cell::<SemaphoreCell>(SEMAPHORES[sends]), 0);
        let mut receiver = SemaphoreReceiver::new(shared.cell::<SemaphoreCell>(SEMAPHORES[receives]), 0);
        let context = Waiting::new(&kernel, shared.cell::<RevokeCell>(REVOKE), PARK_AT_ONCE, LONG);
        for _ in 0..500 {
            if sends == 0 {
                sender.signal(&kernel);
            }
            receiver.wait(&context).unwrap();
            if sends == 1 {
                sender.signal(&kernel);
            }
        }
        context.timeout
    };
    if let Ok(path) = std::env::var(VARIABLE) {
        attend(&Shared::attach(&path), 1, 0);
        return;
    }
    let shared = Shared::create();
    let mut child = shared.in_another_process(NAME, VARIABLE);
    let start = Instant::now();
    attend(&shared, 0, 1);
    assert!(child.wait().unwrap().success());
    // Not a bound on speed: a thousand sleeps that each ran into their own timeout would take a
    // hundred seconds.
    assert!(start.elapsed() < LONG);
}

#[test]
fn a_revocation_reaches_a_sleeper_in_another_process() {
    const NAME: &str = "shm::kernel::tests::a_revocation_reaches_a_sleeper_in_another_process";
    const VARIABLE: &str = "SHMCCL_TEST_REVOKE";
    let kernel = HostKernel::detect();
    if let Ok(path) = std::env::var(VARIABLE) {
        let shared = Shared::attach(&path);
        SemaphoreSender::new(shared.cell::<SemaphoreCell>(0), 0).signal(&kernel);
        let context = Waiting::new(&kernel, shared.cell::<RevokeCell>(REVOKE), PARK_AT_ONCE, LONG);
        let stop = wait_until(&context, shared.cell::<ParkCell>(128), || None::<()>);
        assert_eq!(stop, Err(Stop::ProxyLost));
        return;
    }
    let shared = Shared::create();
    let mut child = shared.in_another_process(NAME, VARIABLE);
    let revoke = shared.cell::<RevokeCell>(REVOKE);
    let context = Waiting::new(&kernel, revoke, PARK_AT_ONCE, LONG);
    SemaphoreReceiver::new(shared.cell::<SemaphoreCell>(0), 0).wait(&context).unwrap();
    revoke.revoke(&kernel, Revocation::ProxyLost);
    assert!(child.wait().unwrap().success());
}

#[test]
fn every_kind_of_host_wakes_its_sleepers() {
    let full = HostKernel::detect();
    for kernel in [full, full.without_membarrier(), full.without_waitv()] {
        let (cells, revoke) = ([SemaphoreCell::new(0), SemaphoreCell::new(0)], RevokeCell::default());
        let attend = |sends: usize| {
            let mut sender = SemaphoreSender::new(&cells[sends], 0);
            let mut receiver = SemaphoreReceiver::new(&cells[1 - sends], 0);
            let context = Waiting::new(&kernel, &revoke, PARK_AT_ONCE, LONG);
            for _ in 0..1000 {
                sender.signal(&kernel);
                receiver.wait(&context).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| attend(1));
            attend(0);
        });
    }
}

#[test]
fn a_sleep_on_a_word_that_has_changed_does_not_begin() {
    let full = HostKernel::detect();
    for kernel in [full, full.without_waitv()] {
        let (same, changed) = (AtomicU32::new(1), AtomicU32::new(2));
        let same = SleepWord { word: &same, expected: 1 };
        let changed = SleepWord { word: &changed, expected: 1 };
        let start = Instant::now();
        kernel.sleep(&[changed], LONG);
        kernel.sleep(&[same, changed], LONG);
        kernel.sleep(&[changed, same], LONG);
        kernel.sleep(&[], LONG);
        assert!(start.elapsed() < LONG);
    }
}

#[test]
fn a_sleep_ends_at_its_timeout() {
    let full = HostKernel::detect();
    for kernel in [full, full.without_waitv(), full.without_membarrier()] {
        let word = AtomicU32::new(1);
        let word = SleepWord { word: &word, expected: 1 };
        kernel.sleep(&[word], Duration::from_millis(2));
        kernel.sleep(&[word, word], Duration::from_millis(2));
        kernel.sleep(&[word], Duration::ZERO);
    }
}

#[test]
fn a_sleep_without_end_lasts_until_it_is_woken() {
    let kernel = HostKernel::detect();
    for words in [1, 2] {
        let latch = Latch::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !latch.is_open() {
                    let before = Instant::now();
                    kernel.sleep(&[latch.until_open(); 2][..words], Duration::MAX);
                    assert!(latch.is_open(), "woken after {:?} by nobody", before.elapsed());
                }
            });
            latch.open(&kernel);
        });
    }
}

/// Has the system refuse `membarrier` to this process from now on.
fn forbid_membarrier() {
    let instruction =
        |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let number = u32::try_from(libc::SYS_membarrier).unwrap();
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let filter = [
        // The number of the call is the first word of what the filter sees.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
    nix::sys::prctl::set_no_new_privs().unwrap();
    let program = std::ptr::from_ref(&program);
    // SAFETY: the program and its four instructions outlive the call, which only reads them.
    let status = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, program) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_sleeper_that_is_refused_its_barrier_later_looks_up_often() {
    const NAME: &str = "shm::kernel::tests::a_sleeper_that_is_refused_its_barrier_later_looks_up_often";
    const VARIABLE: &str = "SHMCCL_TEST_REFUSED";
    if std::env::var(VARIABLE).is_err() {
        assert!(Shared::create().in_another_process(NAME, VARIABLE).wait().unwrap().success());
        return;
    }
    let kernel = HostKernel::detect();
    forbid_membarrier();
    assert!(membarrier(MembarrierCommand::GlobalExpedited).is_err());
    let word = AtomicU32::new(1);
    let word = SleepWord { word: &word, expected: 1 };
    let start = Instant::now();
    kernel.heavy_barrier();
    kernel.sleep(&[word], LONG);
    kernel.sleep(&[word, word], LONG);
    assert!(start.elapsed() < LONG, "nobody wakes it");
}
