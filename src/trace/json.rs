//! The rings as a file of events, one object each, as trace viewers read them.

use std::collections::BTreeMap;
use std::io::Write;

use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use super::Rings;
use super::recorder::{FAILED, PORT};
use super::rings::{Author, NAME_WORDS, RingCells};
use super::verb::{CallNames, Verb};
use crate::rank::Rank;
use crate::sync::header::Creator;
use crate::sync::{KeptRecords, RECORD_WORDS, plain};

/// The proxy's thread is number one above this.
const PROXY: u64 = 64;

/// Writes all that is in `rings`, with collective calls named by `calls`.
///
/// # Errors
/// Those of `to`.
pub(super) fn write(rings: &Rings, calls: CallNames, to: impl Write) -> std::io::Result<()> {
    let mut serializer = serde_json::Serializer::new(to);
    let mut file = serializer.serialize_map(None)?;
    file.serialize_entry("displayTimeUnit", "ns")?;
    file.serialize_entry("otherData", &Other::of(rings))?;
    file.serialize_entry("traceEvents", &Events { rings, calls, scale: TickScale::of(rings) })?;
    SerializeMap::end(file)?;
    Ok(())
}

/// Turns ticks into nanoseconds since the start.
#[derive(Clone, Copy, Debug)]
struct TickScale {
    start: u64,
    ticks: u64,
    nanos: u64,
}

impl TickScale {
    fn of(rings: &Rings) -> Self {
        let ((start, begun), (end, now)) = (rings.start(), rings.source().pair());
        Self { start, ticks: end.saturating_sub(start).max(1), nanos: now.saturating_sub(begun) }
    }

    /// Never falls as `ticks` rise.
    fn nanos(self, ticks: u64) -> u64 {
        let passed =
            u128::from(ticks.saturating_sub(self.start)) * u128::from(self.nanos) / u128::from(self.ticks);
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

/// Where the file says which process has written it.
pub(super) const WRITER: &str = "writer";

/// A process, and when it began, in the system's steps since its start.
#[derive(Serialize, Deserialize)]
pub(super) struct TraceWriter {
    pub(super) pid: u64,
    pub(super) start: u64,
}

/// The head of the file.
#[derive(Serialize)]
struct Other {
    written_by: &'static str,
    writer: TraceWriter,
    /// By rank and author, how many records were overwritten.
    overwritten: BTreeMap<String, u64>,
    /// By rank and author, how many records their writers did not finish.
    unfinished: BTreeMap<String, u64>,
}

impl Other {
    fn of(rings: &Rings) -> Self {
        let (mut overwritten, mut unfinished) = (BTreeMap::new(), BTreeMap::new());
        for lane in lanes(rings) {
            let kept = lane.cells.ring().kept();
            let tell = |what: &mut BTreeMap<_, _>, count| {
                if count > 0 {
                    what.insert(lane.to_string(), count);
                }
            };
            tell(&mut overwritten, kept.overwritten);
            tell(&mut unfinished, kept.unfinished);
        }
        let Creator { pid, start } = Creator::this_process();
        let (written_by, writer) =
            (concat!("shmccl ", env!("CARGO_PKG_VERSION")), TraceWriter { pid, start });
        Self { written_by, writer, overwritten, unfinished }
    }
}

/// One lane that something was noted in.
struct RingView {
    rank: Rank,
    author: Author,
    cells: RingCells,
}

fn lanes(rings: &Rings) -> impl Iterator<Item = RingView> {
    let authors = |rank| [Author::Threads, Author::Proxy].map(|author| (rank, author));
    let lane = |(rank, author)| Some(RingView { rank, author, cells: rings.ring(rank, author)? });
    rings.ranks().flat_map(authors).filter_map(lane).filter(|lane| lane.cells.ring().taken() > 0)
}

impl std::fmt::Display for RingView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let author = match self.author {
            Author::Threads => "threads",
            Author::Proxy => "proxy",
        };
        write!(f, "rank {} {author}", self.rank)
    }
}

impl RingView {
    fn thread(&self, number: u64) -> u64 {
        number + if self.author == Author::Proxy { PROXY } else { 0 }
    }

    /// The threads that have noted something, by their numbers.
    fn names(&self) -> impl Iterator<Item = (u64, String)> {
        let named = |(number, words): (u64, &[_])| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| plain::load(word).to_le_bytes()).collect();
            let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
            (!text.is_empty()).then(|| match self.author {
                Author::Threads => (self.thread(number), text),
                Author::Proxy => (self.thread(number), "proxy".to_owned()),
            })
        };
        (0..).zip(self.cells.names.chunks_exact(NAME_WORDS)).filter_map(named)
    }
}

/// All events, one lane after the other.
struct Events<'r> {
    rings: &'r Rings,
    calls: CallNames,
    scale: TickScale,
}

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut events = serializer.serialize_seq(None)?;
        for rank in self.rings.ranks() {
            events.serialize_element(&Label::process(
                "process_name",
                rank,
                Named::text(format!("rank {rank}")),
            ))?;
            events.serialize_element(&Label::process(
                "process_sort_index",
                rank,
                Named::place(rank.get().into()),
            ))?;
        }
        for lane in lanes(self.rings) {
            for (thread, name) in lane.names() {
                events.serialize_element(&Label::thread("thread_name", &lane, thread, Named::text(name)))?;
                events.serialize_element(&Label::thread(
                    "thread_sort_index",
                    &lane,
                    thread,
                    Named::place(thread),
                ))?;
            }
            let KeptRecords { records, overwritten, .. } = lane.cells.ring().kept();
            if overwritten > 0 {
                let text = format!(
                    "{overwritten} earlier records of its {} overwritten",
                    if lane.author == Author::Proxy { "proxy" } else { "threads" }
                );
                events.serialize_element(&Label::process(
                    "process_labels",
                    lane.rank,
                    Named::labels(text),
                ))?;
            }
            let span = |record| DecodedSpan::of(&lane, record, self.scale, self.calls);
            let mut spans: Vec<_> = records.into_iter().filter_map(span).collect();
            // What encloses others comes first.
            spans.sort_by_key(|span| (span.begun, std::cmp::Reverse(span.ended)));
            spans.iter().try_for_each(|span| events.serialize_element(&span.event()))?;
        }
        events.end()
    }
}

/// Names something in the picture.
#[derive(Serialize)]
struct Label {
    name: &'static str,
    ph: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u64>,
    args: Named,
}

#[derive(Default, Serialize)]
struct Named {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<String>,
}

impl Named {
    fn text(name: String) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    fn place(sort_index: u64) -> Self {
        Self { sort_index: Some(sort_index), ..Self::default() }
    }

    fn labels(labels: String) -> Self {
        Self { labels: Some(labels), ..Self::default() }
    }
}

impl Label {
    fn process(name: &'static str, rank: Rank, args: Named) -> Self {
        Self { name, ph: "M", pid: rank.get(), tid: None, args }
    }

    fn thread(name: &'static str, lane: &RingView, thread: u64, args: Named) -> Self {
        Self { name, ph: "M", pid: lane.rank.get(), tid: Some(thread), args }
    }
}

/// One record, in nanoseconds.
struct DecodedSpan {
    rank: Rank,
    thread: u64,
    begun: u64,
    ended: u64,
    name: &'static str,
    kind: &'static str,
    args: Args,
}

#[derive(Clone, Serialize)]
struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    epoch: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
}

/// An event as a viewer reads it: times are in microseconds.
#[derive(Serialize)]
struct TraceEvent<'s> {
    name: &'static str,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u64,
    args: &'s Args,
}

impl DecodedSpan {
    /// Decodes a record; none for one that no writer makes.
    fn of(
        lane: &RingView,
        [begun, ended, what, rest]: [u64; RECORD_WORDS],
        scale: TickScale,
        calls: CallNames,
    ) -> Option<Self> {
        let [verb, peer, ..] = what.to_le_bytes();
        let [_lap, epoch, thread, manner, ..] = rest.to_le_bytes();
        let verb = Verb::from_code(verb);
        let (name, kind) = verb.name(calls)?;
        let ended = scale.nanos(ended);
        let begun =
            if verb == Verb::LONG_WAIT { ended.saturating_sub(begun) } else { scale.nanos(begun).min(ended) };
        let has_manner = kind == "operation" && manner & !FAILED != 0;
        let args = Args {
            bytes: Some(what >> 16).filter(|bytes| *bytes > 0),
            peer: u64::from(peer).checked_sub(1),
            algorithm: (calls.algorithm)(manner & (PORT - 1)),
            channel: has_manner.then_some(if manner & PORT == 0 { "memory" } else { "port" }),
            sequence: Some(rest >> 32).filter(|sequence| *sequence > 0),
            epoch: epoch.into(),
            failed: manner & FAILED != 0,
        };
        Some(Self { rank: lane.rank, thread: lane.thread(thread.into()), begun, ended, name, kind, args })
    }

    #[expect(clippy::cast_precision_loss, reason = "a time of days is exact to the nanosecond")]
    fn event(&self) -> TraceEvent<'_> {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        TraceEvent {
            name: self.name,
            cat: self.kind,
            ph: "X",
            ts: micros(self.begun),
            dur: micros(self.ended - self.begun),
            pid: self.rank.get(),
            tid: self.thread,
            args: &self.args,
        }
    }
}
