//! What the commands around a pool tell, for people and for programs.

use serde_json::Value;

use crate::pool::Pool;
use crate::walk::ranks;

/// The JSON in a file, which is gone then.
fn take(pool: &Pool, name: &str) -> Value {
    let path = pool.parent.join(name);
    let value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    value
}

#[test]
fn ps_tells_which_communicator_of_the_pool_a_job_is() {
    let pool = Pool::start("ps", 3);
    let devices = ranks(&pool.ctl("init 2").line());
    let file = pool.parent.join("ps.json");
    let mut ps = pool.command();
    let table = ps.args(["ps", "--json"]).arg(&file).output().unwrap().stdout;
    let table = String::from_utf8(table).unwrap();
    let list = take(&pool, "ps.json");
    let is_its = |job: &&Value| job["processes"][0] == devices[0];
    let job = list.as_array().unwrap().iter().find(is_its).unwrap_or_else(|| panic!("{list}"));
    let directory = pool.parent.join("shmccl");
    assert_eq!((&job["communicator"], job["pool"].as_str()), (&1.into(), directory.to_str()), "{job}");
    let line = table.lines().find(|line| line.starts_with(job["job"].as_str().unwrap())).unwrap();
    assert!(line.contains(&format!(" 1 of {} ", directory.display())), "{table}");
    assert!(table.lines().next().unwrap().contains(" communicator "), "{table}");
}
