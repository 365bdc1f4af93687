//! The rings as a file of events, one object each, as trace viewers read them.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::{Value, json};

use super::Rings;
use super::recorder::{FAILED, PORT, bytes_and_peer};
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
/// Fails as `to` does.
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

    /// Converts `ticks` into nanoseconds, which never fall as `ticks` rise.
    fn nanos(self, ticks: u64) -> u64 {
        let passed =
            u128::from(ticks.saturating_sub(self.start)) * u128::from(self.nanos) / u128::from(self.ticks);
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

/// Where the file says which process has written it.
pub(super) const WRITER: &str = "writer";

/// The head of the file.
#[derive(Serialize)]
struct Other {
    written_by: &'static str,
    /// The process that has written it.
    writer: Creator,
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
                    what.insert(format!("rank {} {}", lane.rank, lane.author.name()), count);
                }
            };
            tell(&mut overwritten, kept.overwritten);
            tell(&mut unfinished, kept.unfinished);
        }
        let written_by = concat!("shmccl ", env!("CARGO_PKG_VERSION"));
        Self { written_by, writer: Creator::this_process(), overwritten, unfinished }
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

impl RingView {
    fn thread(&self, number: u64) -> u64 {
        number + if self.author == Author::Proxy { PROXY } else { 0 }
    }

    /// Returns the threads that have noted something, by their numbers.
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
            let args = json!({ "name": format!("rank {rank}") });
            events.serialize_element(&label("process_name", rank, None, args))?;
            let args = json!({ "sort_index": rank.get() });
            events.serialize_element(&label("process_sort_index", rank, None, args))?;
        }
        for lane in lanes(self.rings) {
            for (thread, name) in lane.names() {
                let args = json!({ "name": name });
                events.serialize_element(&label("thread_name", lane.rank, Some(thread), args))?;
                let args = json!({ "sort_index": thread });
                events.serialize_element(&label("thread_sort_index", lane.rank, Some(thread), args))?;
            }
            let KeptRecords { records, overwritten, .. } = lane.cells.ring().kept();
            if overwritten > 0 {
                let text = format!("{overwritten} earlier records of its {} overwritten", lane.author.name());
                let args = json!({ "labels": text });
                events.serialize_element(&label("process_labels", lane.rank, None, args))?;
            }
            let span = |record| self.event(&lane, record);
            let mut spans: Vec<_> = records.into_iter().filter_map(span).collect();
            // What encloses others comes first.
            spans.sort_by(|one, other| one.ts.total_cmp(&other.ts).then(other.dur.total_cmp(&one.dur)));
            spans.iter().try_for_each(|span| events.serialize_element(span))?;
        }
        events.end()
    }
}

/// Returns an event that names something in the picture: a process, or one of its threads.
fn label(name: &str, rank: Rank, thread: Option<u64>, args: Value) -> Value {
    let mut label = json!({ "name": name, "ph": "M", "pid": rank.get(), "args": args });
    if let Some(thread) = thread {
        label["tid"] = thread.into();
    }
    label
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
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<u64>,
    epoch: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
}

/// A record as a viewer reads it: times are in microseconds.
#[derive(Serialize)]
struct TraceEvent {
    name: &'static str,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u64,
    args: Args,
}

impl Events<'_> {
    /// Decodes a record of `lane`; none for one that no writer makes.
    #[expect(clippy::cast_precision_loss, reason = "a time of days is exact to the nanosecond")]
    fn event(&self, lane: &RingView, [begun, ended, what, rest]: [u64; RECORD_WORDS]) -> Option<TraceEvent> {
        let [verb, ..] = what.to_le_bytes();
        let (bytes, peer) = bytes_and_peer(what);
        let [_lap, epoch, thread, manner, ..] = rest.to_le_bytes();
        let verb = Verb::from_code(verb);
        let (name, cat) = verb.name(self.calls)?;
        let ended = self.scale.nanos(ended);
        let begun = match verb {
            Verb::LONG_WAIT => ended.saturating_sub(begun),
            _ => self.scale.nanos(begun).min(ended),
        };
        let number = Some(rest >> 32).filter(|number| *number > 0);
        let (tag, sequence) = if verb.has_tag(self.calls) { (number, None) } else { (None, number) };
        let has_manner = cat == "operation" && manner & !FAILED != 0;
        let args = Args {
            bytes,
            peer,
            algorithm: (self.calls.algorithm)(manner & (PORT - 1)),
            channel: has_manner.then_some(if manner & PORT == 0 { "memory" } else { "port" }),
            sequence,
            tag,
            epoch: epoch.into(),
            failed: manner & FAILED != 0,
        };
        let [ts, dur] = [begun, ended - begun].map(|nanos| nanos as f64 / 1000.0);
        let (pid, tid) = (lane.rank.get(), lane.thread(thread.into()));
        Some(TraceEvent { name, cat, ph: "X", ts, dur, pid, tid, args })
    }
}
