//! The metrics of a coordinator, parsed as by Prometheus.

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;

use regex::Regex;

use crate::coordinator::pool::Pool;

/// Returns all samples, by name and labels, after checking every line.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let help = Regex::new(r"^# HELP (shmccl_[a-z_]+) [A-Z][^\\]*\.$").unwrap();
    let kind = Regex::new(r"^# TYPE (shmccl_[a-z_]+) (counter|gauge)$").unwrap();
    let sample =
        Regex::new(r#"^((shmccl_[a-z_]+)(\{[a-z_]+="[a-z_0-9]+"\})?) ([0-9]+(\.[0-9]+)?)$"#).unwrap();
    let (mut samples, mut families, mut family) = (BTreeMap::new(), Vec::new(), String::new());
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(found) = help.captures(line) {
            family = found[1].to_owned();
            assert!(!families.contains(&family), "{family} comes twice");
            families.push(family.clone());
            let typed = kind.captures(lines.next().unwrap()).expect("a type after each help");
            assert_eq!(typed[1], family);
            assert_eq!(&typed[2] == "counter", family.ends_with("_total"), "{family}");
            continue;
        }
        let found = sample.captures(line).unwrap_or_else(|| panic!("this is no sample: {line}"));
        assert_eq!(found[2], family, "samples come after their type");
        assert!(
            samples.insert(found[1].to_owned(), found[4].parse().unwrap()).is_none(),
            "{line} comes twice"
        );
    }
    samples
}

fn metrics(pool: &Pool) -> BTreeMap<String, f64> {
    parse(&(pool.ctl("metrics").line() + "\n"))
}

#[test]
fn every_line_of_the_metrics_is_of_the_format_and_what_has_happened_is_counted() {
    let mut pool = Pool::start("metrics", 3);
    let before = metrics(&pool);
    assert_eq!(before["shmccl_devices{state=\"free\"}"], 3.0);
    assert_eq!(before["shmccl_connections{role=\"device\"}"], 3.0);
    assert_eq!(before["shmccl_connections{role=\"client\"}"], 1.0);
    assert!(before["shmccl_coordinator_uptime_seconds"] > 0.0);
    pool.ctl("init 2").line();
    pool.ctl("call 1 all_reduce -n 4 --send 0x1000").line();
    pool.ctl("status 1 --wait").line();
    pool.ctl("grow 1").line();
    pool.ctl("grow 1").error();
    let lost = pool.kill_device(0);
    pool.ctl_until("status 1", |line| line.contains(": failed"));
    let failed = metrics(&pool);
    assert_eq!(failed["shmccl_communicators{state=\"failed\"}"], 1.0, "without {lost}");
    pool.ctl("go-on 1").line();
    let after = metrics(&pool);
    for (name, expected) in [
        ("shmccl_devices{state=\"free\"}", 0.0),
        ("shmccl_devices{state=\"allocated\"}", 2.0),
        ("shmccl_communicators{state=\"ready\"}", 1.0),
        ("shmccl_communicators{state=\"failed\"}", 0.0),
        ("shmccl_communicator_epoch{communicator=\"1\"}", 3.0),
        ("shmccl_communicator_devices{communicator=\"1\"}", 2.0),
        ("shmccl_devices_registered_total", 3.0),
        ("shmccl_devices_lost_total", 1.0),
        ("shmccl_devices_joined_total", 1.0),
        ("shmccl_epochs_begun_total{cause=\"init\"}", 1.0),
        ("shmccl_epochs_begun_total{cause=\"growth\"}", 1.0),
        ("shmccl_epochs_begun_total{cause=\"loss\"}", 1.0),
        ("shmccl_groups_started_total", 1.0),
        ("shmccl_groups_ended_total{outcome=\"succeeded\"}", 1.0),
        ("shmccl_groups_ended_total{outcome=\"failed\"}", 0.0),
        ("shmccl_requests_total{outcome=\"refused\"}", 1.0),
    ] {
        assert_eq!(after[name], expected, "{name}");
    }
    let counters = before.iter().filter(|(name, _)| name.contains("_total"));
    assert!(counters.into_iter().all(|(name, count)| after[name] >= *count), "counters do not fall");
}

#[test]
fn metrics_are_scraped_over_http() {
    let mut pool = Pool::empty("scrape");
    let mut stderr = pool.start_fleet(0, &["--metrics", "127.0.0.1:0"]);
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let address =
        line.trim().strip_prefix("metrics are at http://").unwrap().strip_suffix("/metrics").unwrap();
    let ask = |question: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(question.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    };
    let (status, body) = ask("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!(parse(&body)["shmccl_connections{role=\"client\"}"], 1.0);
    assert_eq!(ask("GET / HTTP/1.1\r\n\r\n").0, "HTTP/1.1 404 Not Found");
    assert_eq!(ask("POST /metrics HTTP/1.1\r\n\r\n").0, "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(ask("\u{0}nonsense\r\n\r\n").0, "HTTP/1.1 405 Method Not Allowed");
    drop(TcpStream::connect(address).unwrap());
    assert_eq!(ask("GET /metrics HTTP/1.1\r\n\r\n").0, "HTTP/1.1 200 OK", "it is not disturbed by that");
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(ask("GET /metrics HTTP/1.1\r\n\r\n").0, "HTTP/1.1 200 OK", "nor by those who say nothing");
    drop(silent);
}
