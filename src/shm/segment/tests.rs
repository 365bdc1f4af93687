use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::resource::{Resource, setrlimit};

use super::*;

const ME: Identity = Identity { job: 7, epoch: 1, owner: 3 };
const LEN: u64 = 16 * PAGE;

/// A name that no other test and no other run has.
fn unique(stem: &str) -> String {
    format!("shmccl-test-{}-{stem}", std::process::id())
}

/// A path in the temporary directory, removed when dropped.
struct TempPath(PathBuf);

impl TempPath {
    fn new(stem: &str) -> Self {
        Self(std::env::temp_dir().join(unique(stem)))
    }

    fn backing(&self) -> Backing {
        Backing::File(self.0.clone())
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn anonymous(len: u64) -> Segment {
    Segment::create(&Backing::Anonymous, len, ME).unwrap()
}

fn dup(segment: &Segment) -> OwnedFd {
    segment.as_fd().try_clone_to_owned().unwrap()
}

fn refused_field(result: Result<Segment>) -> &'static str {
    match result {
        Err(Error::Layout { what, .. }) => what,
        other => panic!("expected a layout error, got {other:?}"),
    }
}

fn lacking(result: Result<impl std::fmt::Debug>) -> &'static str {
    match result {
        Err(Error::ResourceLimit { resource, .. }) => resource,
        other => panic!("expected a resource limit, got {other:?}"),
    }
}

#[test]
fn what_the_creator_wrote_an_attached_segment_shows() {
    let mine = anonymous(LEN);
    mine.commit(PAGE, PAGE).unwrap();
    mine.map().unwrap().span(PAGE, 8).unwrap().write(0, 42_u64).unwrap();
    mine.header().publish();
    let expected = Expected { len: Some(LEN), identity: Some(ME) };
    let theirs = Segment::attach(dup(&mine), mine.attach_as(), &expected).unwrap();
    drop(mine);
    assert_eq!(theirs.len(), LEN);
    assert_eq!(theirs.header().identity(), ME);
    assert_eq!(theirs.header().creator(), Creator::this_process());
    assert_eq!(theirs.map().unwrap().span(PAGE, 8).unwrap().read::<u64>(0).unwrap(), 42);
}

#[test]
fn a_length_that_is_not_whole_pages_within_the_limit_is_refused() {
    for len in [0, 1, PAGE - 1, PAGE + 1, MAX_LEN + PAGE, u64::MAX, u64::MAX - PAGE + 1] {
        for backing in [Backing::Anonymous, Backing::Named(unique("len")), TempPath::new("len").backing()] {
            let result = Segment::create(&backing, len, ME);
            assert!(matches!(result, Err(Error::InvalidArgument { value, .. }) if value == len), "{len}");
        }
    }
}

#[test]
fn a_long_segment_costs_nothing_until_it_is_committed() {
    let segment = anonymous(64 << 30);
    let blocks = || nix::sys::stat::fstat(&segment).unwrap().st_blocks * 512;
    segment.map().unwrap();
    assert_eq!(blocks().cast_unsigned(), PAGE);
    segment.commit(32 << 30, PAGE + 1).unwrap();
    assert_eq!(blocks().cast_unsigned(), 3 * PAGE);
    segment.commit(32 << 30, 2 * PAGE).unwrap();
    segment.commit((64 << 30) - 1, 1).unwrap();
    assert_eq!(blocks().cast_unsigned(), 4 * PAGE);
}

#[test]
fn a_commit_outside_the_segment_is_refused() {
    let segment = anonymous(LEN);
    for (offset, len) in [(0, LEN + 1), (LEN, 1), (LEN + 1, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, 0)] {
        assert!(
            matches!(segment.commit(offset, len), Err(Error::OutOfRange { limit: LEN, .. })),
            "{len} at {offset}"
        );
    }
    segment.commit(LEN, 0).unwrap();
    segment.commit(0, LEN).unwrap();
}

#[test]
fn committing_more_memory_than_there_is_fails_without_a_kill() {
    let segment = anonymous(1 << 40);
    assert_eq!(lacking(segment.commit(0, 1 << 40)), "memory");
    segment.commit(0, LEN).unwrap();
}

#[test]
fn an_anonymous_segment_cannot_be_resized_by_anybody() {
    let segment = anonymous(LEN);
    let file = File::from(dup(&segment));
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(2 * LEN).is_err());
    file.set_len(LEN).unwrap();
}

#[test]
fn a_descriptor_of_something_else_is_refused() {
    let anything = Expected::default();
    let attach = |fd: OwnedFd, backing| Segment::attach(fd, backing, &anything);
    let (read, _write) = std::io::pipe().unwrap();
    assert_eq!(refused_field(attach(read.into(), AttachAs::Sealed)), "kind of file");
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    assert_eq!(refused_field(attach(null.into(), AttachAs::Unsealed)), "kind of file");
    let path = TempPath::new("foreign-segment");
    std::fs::write(&path.0, vec![7; 4096]).unwrap();
    let open = |write| OwnedFd::from(File::options().read(true).write(write).open(&path.0).unwrap());
    assert_eq!(refused_field(attach(open(true), AttachAs::Sealed)), "seals of a segment");
    assert_eq!(refused_field(attach(open(false), AttachAs::Unsealed)), "access mode of a segment");
    assert_eq!(refused_field(attach(open(true), AttachAs::Unsealed)), "segment state");
    assert_eq!(std::fs::read(&path.0).unwrap(), [7; 4096]);
    std::fs::write(&path.0, [7; 100]).unwrap();
    assert_eq!(refused_field(attach(open(true), AttachAs::Unsealed)), "segment length");
    std::fs::write(&path.0, []).unwrap();
    assert_eq!(refused_field(attach(open(true), AttachAs::Unsealed)), "segment length");
}

#[test]
fn a_memfd_that_can_still_be_resized_is_refused() {
    let fd = memfd_create(c"unsealed", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let file = File::from(fd);
    file.set_len(LEN).unwrap();
    let attach = || Segment::attach(file.try_clone().unwrap().into(), AttachAs::Sealed, &Expected::default());
    assert_eq!(refused_field(attach()), "seals of a segment");
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    assert_eq!(refused_field(attach()), "seals of a segment");
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
    // Safe to map now, but not a segment.
    assert_eq!(refused_field(attach()), "segment state");
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).unwrap();
    assert_eq!(refused_field(attach()), "write seals of a segment");
}

#[test]
fn a_segment_of_another_length_job_or_epoch_is_refused() {
    let mine = anonymous(LEN);
    let attach = |expected| Segment::attach(dup(&mine), AttachAs::Sealed, &expected);
    let with = |identity| Expected { len: None, identity: Some(identity) };
    assert_eq!(refused_field(attach(with(ME))), "segment state");
    mine.header().publish();
    assert_eq!(refused_field(attach(Expected { len: Some(2 * LEN), identity: None })), "segment length");
    assert_eq!(refused_field(attach(with(Identity { job: 8, ..ME }))), "segment job id");
    assert_eq!(refused_field(attach(with(Identity { epoch: 2, ..ME }))), "segment epoch");
    assert_eq!(refused_field(attach(with(Identity { owner: 4, ..ME }))), "segment owner");
    attach(with(ME)).unwrap();
}

#[test]
fn a_header_that_lies_about_the_length_is_refused() {
    let mine = anonymous(LEN);
    mine.header().describe(ME, 4 * LEN, Creator::default());
    mine.header().publish();
    let result = Segment::attach(dup(&mine), AttachAs::Sealed, &Expected::default());
    assert_eq!(refused_field(result), "segment length");
}

#[test]
fn the_contents_of_a_file_survive() {
    let path = TempPath::new("survives");
    let first = Segment::create(&path.backing(), LEN, ME).unwrap();
    first.commit(0, LEN).unwrap();
    first.map().unwrap().span(LEN - 8, 8).unwrap().write(0, 42_u64).unwrap();
    drop(first);
    let later = Identity { epoch: 2, ..ME };
    let second = Segment::create(&path.backing(), LEN, later).unwrap();
    assert!(!second.header().is_ready(), "a new incarnation is not ready before it says so");
    assert_eq!(second.header().identity(), later);
    assert_eq!(second.map().unwrap().span(LEN - 8, 8).unwrap().read::<u64>(0).unwrap(), 42);
    second.header().publish();
    let expected = Expected { len: Some(LEN), identity: Some(later) };
    let third = Segment::attach(dup(&second), second.attach_as(), &expected).unwrap();
    assert_eq!(third.map().unwrap().span(LEN - 8, 8).unwrap().read::<u64>(0).unwrap(), 42);
}

#[test]
fn a_file_has_one_creator_at_a_time() {
    let path = TempPath::new("locked");
    let first = Segment::create(&path.backing(), LEN, ME).unwrap();
    match Segment::create(&path.backing(), LEN, ME) {
        Err(Error::Os { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::WouldBlock),
        other => panic!("{other:?}"),
    }
    drop(first);
    Segment::create(&path.backing(), LEN, ME).unwrap();
}

#[test]
fn a_file_whose_descriptor_a_forked_process_keeps_for_a_moment_is_waited_for() {
    let path = TempPath::new("forked");
    let first = Segment::create(&path.backing(), LEN, ME).unwrap();
    let kept = dup(&first);
    drop(first);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Segment::create(&path.backing(), LEN, ME));
        // Whether it has tried by then makes no difference.
        std::thread::yield_now();
        drop(kept);
        second.join().unwrap().unwrap();
    });
}

#[test]
fn a_file_that_holds_something_else_is_left_alone() {
    let path = TempPath::new("other");
    let contents = vec![7; usize::try_from(LEN).unwrap()];
    std::fs::write(&path.0, &contents).unwrap();
    assert_eq!(refused_field(Segment::create(&path.backing(), LEN, ME)), "segment magic");
    assert_eq!(refused_field(Segment::create(&path.backing(), 2 * LEN, ME)), "segment file length");
    assert_eq!(std::fs::read(&path.0).unwrap(), contents);
}

#[test]
fn a_file_whose_creator_died_before_it_wrote_is_taken_for_fresh() {
    let path = TempPath::new("torso");
    File::create(&path.0).unwrap();
    assert!(Segment::create(&path.backing(), LEN, ME).is_ok());
    File::create(&path.0).unwrap().set_len(LEN).unwrap();
    assert!(Segment::create(&path.backing(), LEN, ME).is_ok());
}

#[test]
fn a_file_that_cannot_be_made_leaves_nothing() {
    let directory = std::env::temp_dir().join(unique("nowhere"));
    let result = Segment::create(&Backing::File(directory.join("file")), LEN, ME);
    assert!(matches!(result, Err(Error::Os { .. })));
    assert!(!directory.exists());
}

fn shm_path(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(name)
}

#[test]
fn a_named_segment_is_found_by_name_until_its_creator_lets_go() {
    let name = unique("named");
    let mine = Segment::create(&Backing::Named(name.clone()), LEN, ME).unwrap();
    assert_eq!(refused_field(Segment::attach_named(&name, &Expected::default())), "segment state");
    mine.map().unwrap().span(PAGE, 8).unwrap().write(0, 42_u64).unwrap();
    mine.header().publish();
    let theirs = Segment::attach_named(&name, &Expected { len: Some(LEN), identity: Some(ME) }).unwrap();
    assert_eq!(theirs.map().unwrap().span(PAGE, 8).unwrap().read::<u64>(0).unwrap(), 42);
    assert_eq!(
        refused_field(Segment::attach_named(&name, &Expected { len: Some(PAGE), identity: None })),
        "segment length"
    );
    let by_fd = Segment::attach(dup(&mine), mine.attach_as(), &Expected::default()).unwrap();
    assert_eq!(by_fd.len(), LEN);
    drop(theirs);
    assert!(shm_path(&name).exists(), "who attached does not remove the name");
    drop(mine);
    assert!(!shm_path(&name).exists());
    match Segment::attach_named(&name, &Expected::default()) {
        Err(Error::Os { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::NotFound),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_name_that_is_taken_stays_with_its_owner() {
    let name = unique("taken");
    let _first = Segment::create(&Backing::Named(name.clone()), LEN, ME).unwrap();
    match Segment::create(&Backing::Named(name.clone()), LEN, ME) {
        Err(Error::NameInUse { name: taken, holder: None }) => assert_eq!(taken, name),
        other => panic!("{other:?}"),
    }
    assert!(shm_path(&name).exists());
}

#[test]
fn a_named_segment_that_does_not_fit_leaves_no_file() {
    let name = unique("huge");
    let stat = nix::sys::statvfs::statvfs("/dev/shm").unwrap();
    let total = (stat.blocks() * stat.fragment_size()).next_multiple_of(PAGE);
    // Without a limit (no blocks are told), or with a larger one: the longest segment.
    let len = if total == 0 { MAX_LEN } else { (total + PAGE).min(MAX_LEN) };
    let resource = lacking(Segment::create(&Backing::Named(name.clone()), len, ME));
    assert!(matches!(resource, "space in /dev/shm" | "memory"), "{resource}");
    assert!(!shm_path(&name).exists());
}

#[test]
fn bad_names_are_refused() {
    for name in ["", ".", "..", ".hidden", "a/b", "/a", "a b", "\u{e9}", "a\0b", &"x".repeat(201)] {
        let create = Segment::create(&Backing::Named(name.to_owned()), LEN, ME);
        assert!(matches!(create, Err(Error::InvalidArgument { .. })), "{name:?}");
        let attach = Segment::attach_named(name, &Expected::default());
        assert!(matches!(attach, Err(Error::InvalidArgument { .. })), "{name:?}");
    }
}

#[test]
fn a_truncated_named_segment_is_refused() {
    let name = unique("short");
    let mine = Segment::create(&Backing::Named(name.clone()), LEN, ME).unwrap();
    mine.header().publish();
    // Nothing beyond the header page is touched in here, so shortening it faults nobody.
    File::from(dup(&mine)).set_len(PAGE).unwrap();
    assert_eq!(refused_field(Segment::attach_named(&name, &Expected::default())), "segment length");
    File::from(dup(&mine)).set_len(0).unwrap();
    assert_eq!(refused_field(Segment::attach_named(&name, &Expected::default())), "segment length");
    File::from(dup(&mine)).set_len(LEN).unwrap();
}

/// Runs `body` in a process of its own: this test again, alone. Limits set there harm nobody else.
fn in_child(test: &str, body: impl FnOnce()) {
    const VARIABLE: &str = "SHMCCL_TEST_CHILD";
    if std::env::var(VARIABLE).as_deref() == Ok(test) {
        return body();
    }
    let path = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&path, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, test)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("1 passed"), "the child ran no test: {text}");
}

#[test]
fn running_out_of_descriptors_is_a_resource_limit() {
    in_child("running_out_of_descriptors_is_a_resource_limit", || {
        let path = TempPath::new("descriptors");
        let before = anonymous(PAGE);
        let limit = u64::try_from(before.as_fd().as_raw_fd()).unwrap() + 1;
        setrlimit(Resource::RLIMIT_NOFILE, limit, limit).unwrap();
        // Descriptors below that may still be free: use them up.
        let mut held = Vec::new();
        let error = loop {
            match Segment::create(&Backing::Anonymous, PAGE, ME) {
                Ok(segment) => held.push(segment),
                error => break error,
            }
        };
        assert_eq!(lacking(error), "file descriptors");
        assert_eq!(lacking(Segment::create(&path.backing(), PAGE, ME)), "file descriptors");
        assert_eq!(lacking(Segment::create(&Backing::Named(unique("fd")), PAGE, ME)), "file descriptors");
        assert!(!shm_path(&unique("fd")).exists());
        before.map().unwrap();
    });
}

#[test]
fn the_file_size_limit_is_an_error_and_not_a_signal() {
    in_child("the_file_size_limit_is_an_error_and_not_a_signal", || {
        let path = TempPath::new("size");
        setrlimit(Resource::RLIMIT_FSIZE, LEN, LEN).unwrap();
        for backing in [Backing::Anonymous, path.backing(), Backing::Named(unique("size"))] {
            assert_eq!(lacking(Segment::create(&backing, LEN + PAGE, ME)), "file size");
            let fits = Segment::create(&backing, LEN, ME).unwrap();
            fits.commit(0, LEN).unwrap();
        }
        assert!(!shm_path(&unique("size")).exists());
    });
}

#[test]
fn the_address_space_limit_is_a_resource_limit() {
    in_child("the_address_space_limit_is_a_resource_limit", || {
        let segment = anonymous(8 << 30);
        setrlimit(Resource::RLIMIT_AS, 4 << 30, 4 << 30).unwrap();
        assert_eq!(lacking(segment.map()), "address space");
        assert_eq!(lacking(crate::shm::Window::reserve(8, 8 << 30)), "address space");
        let name = unique("addresses");
        let named = Segment::create(&Backing::Named(name.clone()), 5 << 30, ME);
        assert!(matches!(lacking(named), "address space" | "memory"));
        assert!(!shm_path(&name).exists());
        anonymous(LEN).map().unwrap();
    });
}

#[test]
fn room_for_one_segment_is_not_room_for_all_and_asking_takes_none() {
    let available = super::limits::available_memory();
    let len = (available / 4 * 3).next_multiple_of(PAGE).min(MAX_LEN);
    let segment = Segment::create(&Backing::Anonymous, len, Identity::default()).unwrap();
    segment.check_room(0, len / 4, 1).unwrap();
    let refused = segment.check_room(0, len, u32::MAX).unwrap_err();
    assert!(matches!(refused, Error::ResourceLimit { resource: "memory", .. }), "{refused}");
    assert!(matches!(segment.check_room(len, 1, 1), Err(Error::OutOfRange { .. })));
    segment.check_room(0, PAGE, u32::MAX).unwrap();
    assert_eq!(fstat(&segment).unwrap().st_blocks * 512, PAGE.cast_signed(), "the header alone");
}
