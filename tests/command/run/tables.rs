//! Tuning tables that ranks do not share.

use std::path::Path;

use crate::run::{SCENARIO, scratch, shmccl, text};

/// What a job of two says that begins with an all-reduce, with these tables on its ranks.
fn reduce_by(tables: [&Path; 2]) -> String {
    let script = r#"[ "$SHMCCL_RANK" = 0 ] && SHMCCL_TUNING=$1 || SHMCCL_TUNING=$2; export SHMCCL_TUNING
                    exec "$0" --exact run::device_process --nocapture"#;
    let this = std::env::current_exe().unwrap();
    let [first, second] = tables.map(|table| table.to_str().unwrap());
    let mut command =
        shmccl(&["-n", "2", "-q", "--", "sh", "-c", script, this.to_str().unwrap(), first, second]);
    text(&command.env(SCENARIO, "reduce").output().unwrap().stdout)
}

#[test]
fn a_table_that_one_rank_cannot_read_or_only_one_rank_has_is_an_error_of_all_ranks() {
    let directory = scratch("tables");
    let [good, bad] = ["good.toml", "bad.toml"].map(|name| directory.join(name));
    let case = "[[case]]\noperation = \"all_reduce\"\nranks = 2\noversubscribed = false\nbuffers = \"heap\"\nup_to = []\n";
    std::fs::write(&good, format!("version = 1\n{case}algorithms = [\"ring\"]\n")).unwrap();
    std::fs::write(&bad, format!("version = 1\n{case}algorithms = [\"rings\"]\n")).unwrap();
    let nothing = Path::new("");
    assert!(!reduce_by([&good, &good]).contains("rank"));
    assert!(!reduce_by([nothing, nothing]).contains("rank"));
    let told = reduce_by([&bad, &good]);
    assert!(
        told.contains(&format!("rank 0: tuning table {}, line 8: \"rings\" is no such", bad.display())),
        "{told}"
    );
    assert!(told.contains("rank 1: reading the tuning table failed on rank 0"), "{told}");
    let told = reduce_by([nothing, &directory.join("missing.toml")]);
    assert!(told.contains("rank 0: reading the tuning table failed on rank 1"), "{told}");
    assert!(told.contains("missing.toml: cannot be read: No such file"), "{told}");
    let told = reduce_by([&good, nothing]);
    for (rank, other) in [(0, 1), (1, 0)] {
        let line = format!("rank {rank}: ranks have different tuning tables: checksum 0x");
        assert!(told.contains(&line) && told.contains(&format!("on rank {other}; give all ranks")), "{told}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
