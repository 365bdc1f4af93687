//! MSCCL's XML.

use shmccl_plan::lower::{granule, smallest};
use shmccl_plan::{check, import};

use crate::corpus::{fault, folder, run};

#[test]
fn each_program_is_imported_proved_and_computes_its_collective() {
    let mut count = 0;
    for file in std::fs::read_dir(folder().join("msccl-xml")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "xml") {
            continue;
        }
        let imported = import::import_file(&path).unwrap_or_else(|refusal| panic!("{refusal}"));
        let findings: Vec<_> = imported.report.classes.iter().flat_map(|class| &class.findings).collect();
        assert!(imported.report.is_clean(), "{}: {}", path.display(), findings[0]);
        let mut plan = imported.plan;
        // The limits of the file only make the run longer.
        plan.min_message = 0;
        let message = smallest(&plan).unwrap();
        assert_eq!(message, granule(&plan).unwrap());
        let outcome = run(&plan, message, 2, 1);
        assert_eq!(fault(&plan, &outcome, 2), None, "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 12);
}

#[test]
fn a_program_that_is_not_one_is_refused_with_its_line() {
    let cases = [
        ("", "no <algo> with a <gpu>"),
        ("<algo coll=\"allgather\">\n<gpu>", "line 2: <gpu> has no `id`; give one"),
        ("<algo coll=\"allgather\">\n<gpu id=\"x\">", "line 2: `id` of <gpu> is x; expected a whole number"),
        (
            "<algo coll=\"allgather\">\n<gpu id=\"1\">",
            "line 2: <gpu> is out of place, or not in order of ids",
        ),
        (
            "<algo coll=\"allgather\"><gpu id=\"0\" s_chunks=1>",
            "line 1: an attribute of <gpu> is not written",
        ),
        ("<algo", "line 1: a tag does not end"),
        ("<!-- two\nlines -->\n<algo coll=\"allgather\">\n<gpu>", "line 4: <gpu> has no `id`; give one"),
    ];
    for (text, told) in cases {
        let refusal = import::import("program.xml", text.as_bytes()).unwrap_err().to_string();
        assert!(refusal.starts_with("program.xml: ") && refusal.contains(told), "{refusal}");
    }
}

#[test]
fn a_head_that_counts_other_ranks_or_chunks_is_refused() {
    let gpus = r#"<gpu id="0" i_chunks="1" o_chunks="2"/><gpu id="1" i_chunks="1" o_chunks="2"/>"#;
    let cases = [
        (r#"ngpus="5""#, "`ngpus` of <algo> is 5, and there are 2 <gpu>; make them agree"),
        (
            r#"nchunksperloop="8""#,
            "`nchunksperloop` of <algo> is 8, and rank 0 has 2 chunks; make them agree",
        ),
    ];
    for (head, told) in cases {
        let text = format!(r#"<algo coll="allgather" {head}>{gpus}</algo>"#);
        let refusal = import::import("program.xml", text.as_bytes()).unwrap_err().to_string();
        assert!(refusal.contains(told), "{refusal}");
    }
}

#[test]
fn a_step_that_waits_for_one_there_is_not_is_named() {
    let text = r#"<algo coll="allreduce" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1">
        <tb id="0" send="-1" recv="-1" chan="0"><step s="0" type="nop" srcbuf="i" dstbuf="i" depid="1" deps="0"/></tb>"#;
    let refusal = import::import("program.xml", text.as_bytes()).unwrap_err().to_string();
    assert!(
        refusal.contains("rank 0 block 0 step 0 waits for step 0 of block 1; name one there is"),
        "{refusal}"
    );
}

#[test]
fn ranges_that_end_past_all_numbers_are_refused() {
    let step =
        r#"type="cpy" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="4294967295" depid="-1" deps="-1""#;
    let text = format!(
        r#"<algo coll="allreduce" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1">
        <tb id="0" send="-1" recv="-1" chan="0"><step s="0" {step}/><step s="1" {step}/></tb>"#
    );
    let refusal = import::import("program.xml", text.as_bytes()).unwrap_err().to_string();
    assert!(refusal.contains("rank 0 block 0"), "{refusal}");
}

#[test]
fn an_imported_plan_that_lacks_a_signal_is_not_clean() {
    let mut plan = import::import_file(&folder().join("msccl-xml/ncv4-ag_hier_4_LL.xml")).unwrap().plan;
    let operations = &mut plan.ranks[0].blocks[4].operations;
    let signal =
        operations.iter().position(|operation| operation.code == shmccl_plan::plan::Code::Signal).unwrap();
    operations.remove(signal);
    assert!(!check(&plan, None).unwrap().is_clean());
}
