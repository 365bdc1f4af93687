//! The elements of MSCCL's XML.

use crate::plan::{Buffer, MAX_RANKS};
use crate::read::{MAX_BLOCKS, MAX_OPERATIONS};

/// A program.
#[derive(Debug, Default)]
pub(super) struct MscclAlgorithm {
    pub(super) name: String,
    pub(super) collective: String,
    pub(super) in_place: bool,
    pub(super) min_bytes: u64,
    pub(super) max_bytes: u64,
    /// How many ranks, and chunks of the message, its head says that there are.
    told_ranks: Option<usize>,
    told_chunks: Option<u32>,
    pub(super) ranks: Vec<Gpu>,
}

/// What one rank does.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) input_chunks: u32,
    pub(super) output_chunks: u32,
    pub(super) scratch_chunks: u32,
    pub(super) blocks: Vec<Threadblock>,
}

/// A thread block: its peers, and its steps.
#[derive(Debug)]
pub(super) struct Threadblock {
    pub(super) send: Option<usize>,
    pub(super) receive: Option<usize>,
    pub(super) channel: u32,
    pub(super) steps: Vec<MscclStep>,
}

/// A step.
#[derive(Debug)]
pub(super) struct MscclStep {
    pub(super) kind: String,
    pub(super) source: ChunkPlace,
    pub(super) target: ChunkPlace,
    pub(super) count: u32,
    /// The block and step that this one waits for.
    pub(super) after: Option<(usize, usize)>,
}

/// The first chunk of what a step reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkPlace {
    pub(super) buffer: Buffer,
    pub(super) index: u32,
}

/// The attributes of an element.
struct XmlElement<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, &'a str)>,
    /// Where it stands, for errors.
    line: usize,
}

/// Parses a program.
pub(super) fn parse(text: &str) -> Result<MscclAlgorithm, String> {
    let mut algorithm = None;
    let (mut rest, mut line) = (text, 1);
    while let Some(element) = next_element(&mut rest, &mut line)? {
        match (element.name, &mut algorithm) {
            ("algo", found @ None) => *found = Some(head(&element)?),
            ("gpu", Some(algorithm)) => gpu(&element, algorithm)?,
            ("tb", Some(algorithm)) => block(&element, algorithm)?,
            ("step", Some(algorithm)) => step(&element, algorithm)?,
            (name, _) => {
                return Err(format!(
                    "line {}: element <{name}> is out of place; give algo, gpu, tb, step",
                    element.line
                ));
            }
        }
    }
    let algorithm = algorithm
        .filter(|found| !found.ranks.is_empty())
        .ok_or_else(|| "no <algo> with a <gpu>; name a file of MSCCL".to_owned())?;
    agrees(&algorithm)?;
    Ok(algorithm)
}

/// Checks that the head of a program counts the ranks and chunks that there are.
fn agrees(algorithm: &MscclAlgorithm) -> Result<(), String> {
    let ranks = algorithm.ranks.len();
    if let Some(told) = algorithm.told_ranks.filter(|&told| told != ranks) {
        return Err(format!("`ngpus` of <algo> is {told}, and there are {ranks} <gpu>; make them agree"));
    }
    for (rank, of) in algorithm.ranks.iter().enumerate() {
        let chunks = of.input_chunks.max(of.output_chunks);
        if let Some(told) = algorithm.told_chunks.filter(|&told| told != chunks) {
            return Err(format!(
                "`nchunksperloop` of <algo> is {told}, and rank {rank} has {chunks} chunks; make them agree"
            ));
        }
    }
    Ok(())
}

/// Returns the next opening tag of `rest`, which begins in `line`; both go on behind it. Comments,
/// declarations and closing tags are passed over.
fn next_element<'a>(rest: &mut &'a str, line: &mut usize) -> Result<Option<XmlElement<'a>>, String> {
    let lines = |text: &str| text.matches('\n').count();
    loop {
        let Some(start) = rest.find('<') else { return Ok(None) };
        let (before, tag) = rest.split_at(start);
        let at = *line + lines(before);
        let end = if tag.starts_with("<!--") { "-->" } else { ">" };
        let Some(length) = tag.find(end) else {
            return Err(format!("line {at}: a tag does not end; close it"));
        };
        let (whole, after) = tag.split_at(length + end.len());
        (*rest, *line) = (after, at + lines(whole));
        if !tag.starts_with("<!") && !tag.starts_with("<?") && !tag.starts_with("</") {
            return element(tag[1..length].trim_end_matches('/'), at).map(Some);
        }
    }
}

fn element(tag: &str, line: usize) -> Result<XmlElement<'_>, String> {
    let (name, mut rest) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
    let mut attributes = Vec::new();
    let wrong =
        || format!("line {line}: an attribute of <{name}> is not written name=\"value\"; write it so");
    while !rest.trim().is_empty() {
        let (attribute, after) = rest.split_once('=').ok_or_else(wrong)?;
        let quoted = after.trim_start();
        let quote = quoted.chars().next().filter(|quote| matches!(quote, '"' | '\'')).ok_or_else(wrong)?;
        let (value, after) = quoted[1..].split_once(quote).ok_or_else(wrong)?;
        attributes.push((attribute.trim(), value));
        rest = after;
    }
    Ok(XmlElement { name, attributes, line })
}

impl XmlElement<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(given, _)| *given == name).map(|(_, value)| *value)
    }

    /// Returns a number, or a default where one is given and the attribute is absent.
    fn number<T: std::str::FromStr>(&self, name: &str, default: Option<T>) -> Result<T, String> {
        match (self.text(name), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(format!("line {}: <{}> has no `{name}`; give one", self.line, self.name)),
            (Some(text), _) => text.trim().parse().map_err(|_| {
                let short: String = text.chars().take(20).collect();
                format!("line {}: `{name}` of <{}> is {short}; expected a whole number", self.line, self.name)
            }),
        }
    }

    /// Returns a number that may be absent.
    fn told<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        self.text(name).map(|_| self.number(name, None)).transpose()
    }

    /// Returns an index of which -1 means none.
    fn index(&self, name: &str) -> Result<Option<usize>, String> {
        let number: i64 = self.number(name, Some(-1))?;
        Ok(usize::try_from(number).ok())
    }

    fn buffer(&self, name: &str) -> Result<Buffer, String> {
        let refused = || format!("line {}: `{name}` of a step is none of i, o, s; give one", self.line);
        self.text(name).and_then(Buffer::of_name).ok_or_else(refused)
    }

    fn out_of_place<T>(&self) -> Result<T, String> {
        Err(format!(
            "line {}: <{}> is out of place, or not in order of ids; order them",
            self.line, self.name
        ))
    }
}

fn head(element: &XmlElement<'_>) -> Result<MscclAlgorithm, String> {
    let collective = match element.text("coll") {
        Some("reduce_scatter") => "reducescatter".to_owned(),
        Some(name) => name.to_owned(),
        None => return Err(format!("line {}: <algo> has no `coll`; give one", element.line)),
    };
    let in_place =
        element.number("inplace", Some(0u8))? == 1 && element.number("outofplace", Some(1u8))? == 0;
    Ok(MscclAlgorithm {
        name: element.text("name").unwrap_or("imported").to_owned(),
        collective,
        in_place,
        min_bytes: element.number("minBytes", Some(0))?,
        max_bytes: element.number("maxBytes", Some(0))?,
        told_ranks: element.told("ngpus")?,
        told_chunks: element.told("nchunksperloop")?,
        ranks: Vec::new(),
    })
}

fn gpu(element: &XmlElement<'_>, algorithm: &mut MscclAlgorithm) -> Result<(), String> {
    if element.number::<usize>("id", None)? != algorithm.ranks.len() || algorithm.ranks.len() >= MAX_RANKS {
        return element.out_of_place();
    }
    algorithm.ranks.push(Gpu {
        input_chunks: element.number("i_chunks", Some(0))?,
        output_chunks: element.number("o_chunks", Some(0))?,
        scratch_chunks: element.number("s_chunks", Some(0))?,
        blocks: Vec::new(),
    });
    Ok(())
}

fn block(element: &XmlElement<'_>, algorithm: &mut MscclAlgorithm) -> Result<(), String> {
    let Some(rank) = algorithm.ranks.last_mut() else { return element.out_of_place() };
    if element.number::<usize>("id", None)? != rank.blocks.len() || rank.blocks.len() >= MAX_BLOCKS {
        return element.out_of_place();
    }
    rank.blocks.push(Threadblock {
        send: element.index("send")?,
        receive: element.index("recv")?,
        channel: element.number("chan", Some(0))?,
        steps: Vec::new(),
    });
    Ok(())
}

fn step(element: &XmlElement<'_>, algorithm: &mut MscclAlgorithm) -> Result<(), String> {
    let block = algorithm.ranks.last_mut().and_then(|rank| rank.blocks.last_mut());
    let Some(block) = block else { return element.out_of_place() };
    if element.number::<usize>("s", None)? != block.steps.len() || block.steps.len() >= MAX_OPERATIONS / 16 {
        return element.out_of_place();
    }
    let after = element.index("depid")?.zip(element.index("deps")?);
    // Offsets of what a step does not use may be -1.
    let offset =
        |name| Ok::<_, String>(element.index(name)?.and_then(|index| u32::try_from(index).ok()).unwrap_or(0));
    block.steps.push(MscclStep {
        kind: element.text("type").unwrap_or_default().to_owned(),
        source: ChunkPlace { buffer: element.buffer("srcbuf")?, index: offset("srcoff")? },
        target: ChunkPlace { buffer: element.buffer("dstbuf")?, index: offset("dstoff")? },
        count: offset("cnt")?,
        after,
    });
    Ok(())
}
