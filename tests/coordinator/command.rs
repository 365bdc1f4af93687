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

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
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

#[test]
fn tables_of_ctl_are_written_as_json_as_well() {
    let pool = Pool::start("json", 3);
    let devices = ranks(&pool.ctl("init 2").line());
    let path = |name: &str| pool.parent.join(name).to_str().unwrap().to_owned();
    let table = pool.ctl(&format!("devices --json {}", path("devices"))).line();
    let list = take(&pool, "devices");
    let found: Vec<_> = list.as_array().unwrap().iter().map(|it| it["device"].as_u64().unwrap()).collect();
    assert_eq!(found, pool.devices().into_iter().map(u64::from).collect::<Vec<_>>(), "{list}");
    assert!(table.starts_with("device") && table.lines().count() == 4, "{table}");
    for (words, name) in [("status", "all"), ("status 1", "one")] {
        let line = pool.ctl(&format!("{words} --json {}", path(name))).line();
        let list = take(&pool, name);
        assert_eq!(
            (&list[0]["comm"], &list[0]["state"], &list[1]),
            (&1.into(), &"ready".into(), &Value::Null)
        );
        assert_eq!(numbers(&list[0]["devices"]), devices.iter().copied().map(u64::from).collect::<Vec<_>>());
        assert!(line.starts_with("communicator 1: ready"), "{line}");
    }
    let told = pool.ctl("devices --json -");
    let list: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((told.code, list.as_array().unwrap().len()), (0, 3));
    assert!(told.stderr.starts_with("device"), "{}", told.stderr);
}

#[test]
fn lengths_are_given_as_sizes_or_in_hexadecimal() {
    let pool = Pool::start("lengths", 1);
    let device = ranks(&pool.ctl("init 1").line())[0];
    for (len, bytes) in [("16", 16), ("0x10", 16), ("4K", 4096)] {
        let told = pool.ctl(&format!("get-d2h {device} 0x1000 {len}"));
        assert_eq!((told.code, told.stdout.len()), (0, bytes), "{len}: {}", told.stderr);
    }
    assert_eq!(pool.ctl(&format!("get-d2h {device} 0x1000 4Q")).code, 2);
}

#[test]
fn a_group_whose_operands_are_too_much_is_refused_before_anything_is_executed() {
    let pool = Pool::start("operands", 2);
    let device = ranks(&pool.ctl("init 2").line())[0];
    let group = pool.ctl("group start 1").line();
    // All of the memory, read and written.
    let call = format!("call 1 all_reduce -n 16777216 --send 0x1000 --group {group}");
    assert!(pool.ctl(&call).line().starts_with(&format!("communicator 1: call 1 of group {group}")));
    let refused = pool.ctl(&call);
    let why = format!(
        "the operands of the group would have 268435456 bytes on device {device}, and 134217728 is the most, 2 times its memory; end \
         it and start another one"
    );
    assert!(refused.error().ends_with(&why), "{}", refused.stderr);
    assert_eq!(pool.ctl("group end 1").line(), "communicator 1: group 1 in progress", "without that call");
    assert!(pool.ctl("status 1 --wait").line().ends_with("group 1 succeeded"));
}
