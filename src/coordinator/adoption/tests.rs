//! Directories of coordinators, swept and occupied.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use super::*;

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("shmccl-directory-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_directory_that_is_not_private_is_refused() {
    let parent = scratch("private");
    let refused = |path: PathBuf| RuntimeDirectory::at(path).unwrap_err().to_string();
    let open = parent.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o750)).unwrap();
    assert!(refused(open.clone()).contains("is open to other users"));
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o700)).unwrap();
    RuntimeDirectory::at(open.clone()).unwrap();
    symlink(&open, parent.join("link")).unwrap();
    assert!(refused(parent.join("link")).contains("is no directory"));
    std::fs::write(parent.join("file"), "").unwrap();
    assert!(refused(parent.join("file")).contains("is no directory"));
    std::fs::remove_dir_all(parent).unwrap();
}

#[test]
fn what_is_wrong_with_the_way_to_a_directory_is_told_with_the_path_and_what_helps() {
    let parent = scratch("unusable");
    let refused = |path: &Path| RuntimeDirectory::at(path).unwrap_err().to_string();
    let missing = parent.join("missing/shmccl");
    let told = refused(&missing);
    let expected = format!("making the directory {} failed: No such file", missing.display());
    assert!(told.starts_with(&expected), "{told}");
    assert!(told.ends_with("; set XDG_RUNTIME_DIR to a directory of this user"), "{told}");
    let room = MAX_SOCKET - parent.as_os_str().len() - "//coordinator".len();
    let longest = parent.join("x".repeat(room));
    drop(RuntimeDirectory::at(&longest).unwrap().occupy().unwrap().listen().unwrap());
    for longer in [room + 1, 300, 5000] {
        let path = parent.join("x".repeat(longer));
        let told = refused(&path);
        let len = path.as_os_str().len() + "/coordinator".len();
        let expected = format!("the path of the socket {}/coordinator has {len} bytes", path.display());
        assert!(told.starts_with(&expected), "{told}");
        assert!(told.contains("expected 107 at most; set XDG_RUNTIME_DIR"), "{told}");
        assert!(!path.is_dir(), "nothing was made");
    }
    std::fs::remove_dir_all(parent).unwrap();
}

#[test]
fn a_directory_has_one_coordinator_at_a_time_and_the_socket_of_a_dead_one_is_replaced() {
    let directory = RuntimeDirectory::at(scratch("occupied").join("shmccl")).unwrap();
    std::fs::write(directory.socket(), "").unwrap();
    let mut first = directory.occupy().unwrap();
    assert!(first.follows_dead && directory.socket().exists(), "or else it had ended in order");
    let listener = first.listen().unwrap();
    assert!(directory.is_answered() && !directory.coming().exists());
    let refused = directory.occupy().unwrap_err().to_string();
    assert!(refused.contains("running already"), "{refused}");
    drop((listener, first));
    assert!(!directory.socket().exists());
    assert!(!directory.occupy().unwrap().follows_dead);
    std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
}

#[test]
fn a_coordinator_that_cannot_begin_leaves_what_it_has_found() {
    let directory = RuntimeDirectory::at(scratch("in-vain").join("shmccl")).unwrap();
    std::fs::write(directory.socket(), "").unwrap();
    std::fs::create_dir(directory.coming()).unwrap();
    let mut occupied = directory.occupy().unwrap();
    occupied.listen().unwrap_err();
    drop(occupied);
    assert!(directory.socket().exists(), "devices wait for the next one");
    std::fs::remove_dir(directory.coming()).unwrap();
    std::fs::write(directory.coming(), "").unwrap();
    drop(directory.occupy().unwrap().listen().unwrap());
    std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
}

#[test]
fn a_coordinator_begins_though_somebody_sweeps_at_that_moment() {
    let directory = RuntimeDirectory::at(scratch("sweeping").join("shmccl")).unwrap();
    let sweeping = directory.lock(Duration::ZERO).unwrap();
    let refused = directory.lock(Duration::ZERO).unwrap_err().to_string();
    assert!(refused.contains("running already"), "{refused}");
    std::thread::scope(|scope| {
        let beginning = scope.spawn(|| directory.lock(Duration::from_secs(60)).map(drop));
        nix::poll::poll(&mut [], 20_u8).unwrap();
        assert!(!beginning.is_finished(), "it waits until that is done");
        drop(sweeping);
        beginning.join().unwrap().unwrap();
    });
    std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
}

#[test]
fn what_a_pool_has_left_is_found_though_its_number_is_anothers_now_and_that_of_a_living_one_stays() {
    let parent = scratch("pools");
    let Creator { pid, start } = Creator::this_process();
    let names =
        [format!("{POOL}{pid}-{start}-a"), format!("{POOL}{pid}-{}-b", start + 1), format!("{POOL}1")];
    names.iter().for_each(|name| std::fs::create_dir(parent.join(name)).unwrap());
    let left = [parent.join(&names[1])];
    assert_eq!(RuntimeDirectory::sweep_pools(&parent, true).unwrap(), left);
    assert_eq!(RuntimeDirectory::sweep_pools(&parent, false).unwrap(), left);
    assert!(RuntimeDirectory::sweep_pools(&parent, false).unwrap().is_empty());
    assert!(parent.join(&names[0]).exists() && parent.join(&names[2]).exists());
    std::fs::remove_dir_all(parent).unwrap();
}

#[test]
fn the_socket_of_a_dead_coordinator_is_swept_away_and_that_of_a_living_one_stays() {
    let directory = RuntimeDirectory::at(scratch("swept").join("shmccl")).unwrap();
    assert_eq!(directory.sweep(false, || true).unwrap(), None);
    let mut living = directory.occupy().unwrap();
    let listener = living.listen().unwrap();
    assert_eq!(directory.sweep(false, || true).unwrap(), None);
    assert!(directory.socket().exists());
    drop((listener, living));
    std::fs::write(directory.socket(), "").unwrap();
    assert_eq!(directory.sweep(false, || false).unwrap(), None);
    assert!(directory.socket().exists(), "somebody waits there");
    assert_eq!(directory.sweep(true, || true).unwrap(), Some(directory.socket()));
    assert_eq!(directory.sweep(false, || true).unwrap(), Some(directory.socket()));
    assert!(!directory.socket().exists());
    assert_eq!(directory.sweep(false, || true).unwrap(), None);
    std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
}
