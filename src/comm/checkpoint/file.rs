//! The file of one rank: its heap, or the device memory that it has beside the heap.
//!
//! | bytes | contents |
//! |---|---|
//! | 0..8 | magic, of a heap or a device's memory, and version |
//! | 8..40 | generation, rank, number of ranks, number of regions, 8 bytes each |
//! | 16 for each region | offset in the heap, length |
//! | 4 | CRC32C of all before |
//! | for each chunk of each region | at most [`CHUNK`] bytes, and their CRC32C |
//!
//! Numbers are little-endian. A reader knows what it has to find, and compares: it believes no
//! number of a file. The last region of a device's memory has no bytes and tells where the memory
//! ends; the regions before it were in use.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::directory::{PartDigest, open};
use super::{CheckpointFault, at, io};
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::shm::Span;
use crate::shm::system::within_file_size;

/// The most bytes under one checksum.
const CHUNK: u64 = 1 << 20;

/// Whose memory a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckpointKind {
    /// A rank's part of the heap.
    Heap,
    /// A device's memory, with its own addresses.
    Device,
}

impl CheckpointKind {
    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Heap => *b"SMCKPT\x00\x01",
            Self::Device => *b"SMCKPD\x00\x01",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Heap => Self::Device,
            Self::Device => Self::Heap,
        }
    }

    /// Returns its name for errors.
    const fn name(self) -> &'static str {
        match self {
            Self::Heap => "what a job has allocated",
            Self::Device => "the memory of a pool's devices",
        }
    }
}

/// The length of the header before the regions.
const FIXED: usize = 40;

/// The most regions of a device's memory: every other chunk of 1 TiB, and its end.
const MOST_REGIONS: usize = 1 << 19;

/// The damaged part, where it is the header or the regions.
const BEGINNING: &str = "the header of the file";

/// The length of a checksum.
const SUM: usize = 4;

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) kind: CheckpointKind,
    pub(super) generation: u64,
    pub(super) rank: u64,
    pub(super) n_ranks: u64,
    /// The regions that are allocated, or were in use, in the order of offsets.
    pub(super) regions: Vec<Region>,
}

impl FileHeader {
    fn bytes(&self) -> Vec<u8> {
        let fixed = [self.generation, self.rank, self.n_ranks, self.regions.len() as u64];
        let regions = self.regions.iter().flat_map(|region| [region.offset.get(), region.len]);
        let words = fixed.into_iter().chain(regions).flat_map(u64::to_le_bytes);
        self.kind.magic().into_iter().chain(words).collect()
    }
}

/// Returns the chunks of a region of `len` bytes.
pub(super) fn chunks(len: u64) -> impl Iterator<Item = Region> {
    (0..len.div_ceil(CHUNK)).map(move |index| {
        let start = index * CHUNK;
        Region::new(HeapOffset::new(start), CHUNK.min(len - start))
    })
}

impl PartDigest {
    /// Adds `len` bytes of this checksum.
    fn add(&mut self, checksum: [u8; SUM], len: u64) {
        self.digest = crc32c::crc32c_append(self.digest, &checksum);
        self.len += len + SUM as u64;
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct PartWriter {
    path: PathBuf,
    file: File,
    written: PartDigest,
    buffer: Vec<u8>,
}

impl PartWriter {
    pub(super) fn create(path: &Path, header: &FileHeader) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| io(path, "making a file", error))?;
        let (path, written) = (path.to_owned(), PartDigest::default());
        let mut writer = Self { path, file, written, buffer: header.bytes() };
        writer.put(|_| {})?;
        Ok(writer)
    }

    /// Appends the bytes of `chunk` in `span`. `spoil` may change the written bytes, and the
    /// checksum does not notice.
    pub(super) fn write(&mut self, span: &Span, chunk: Region, spoil: impl FnOnce(&mut [u8])) -> Result<()> {
        self.buffer.resize(len_of(chunk), 0);
        span.copy_out(chunk.offset.get(), &mut self.buffer)?;
        self.put(spoil)
    }

    /// Writes what is in the buffer, and its checksum.
    fn put(&mut self, spoil: impl FnOnce(&mut [u8])) -> Result<()> {
        let checksum = crc32c::crc32c(&self.buffer).to_le_bytes();
        self.written.add(checksum, self.buffer.len() as u64);
        spoil(&mut self.buffer);
        self.buffer.extend(checksum);
        within_file_size(|| self.file.write_all(&self.buffer))
            .map_err(|error| io(&self.path, "writing", error))
    }

    /// Returns when everything is on the disk.
    pub(super) fn finish(self) -> Result<PartDigest> {
        let action = "waiting for the file to be on the disk";
        self.file.sync_all().map_err(|error| io(&self.path, action, error))?;
        Ok(self.written)
    }
}

/// A file that is read.
#[derive(Debug)]
pub(super) struct PartReader {
    pub(super) path: PathBuf,
    file: File,
    pub(super) regions: Vec<Region>,
    /// What comes before the data.
    head: PartDigest,
}

impl PartReader {
    /// Opens the file at `path`, which is to begin with `expected`.
    pub(super) fn open(path: &Path, expected: &FileHeader) -> Result<Self> {
        let file = open(path, "opening a file")?;
        let bytes = expected.bytes();
        let (path, regions, head) = (path.to_owned(), Vec::new(), PartDigest::default());
        let mut reader = Self { path, file, regions, head };
        let mut found = vec![0; FIXED];
        reader.fill(&mut found)?;
        if found[..8] == expected.kind.other().magic() {
            let (found, expected) = (expected.kind.other().name(), expected.kind.name());
            return Err(at(&reader.path, CheckpointFault::Kind { found, expected }));
        }
        if found[..FIXED - 8] != bytes[..FIXED - 8] {
            return Err(reader.damaged(BEGINNING));
        }
        reader.regions = match expected.kind {
            CheckpointKind::Heap => reader.compare_regions(&found, expected)?,
            CheckpointKind::Device => reader.take_regions(&found, expected)?,
        };
        let header = FileHeader { regions: reader.regions.clone(), ..expected.clone() }.bytes();
        reader.head.add(crc32c::crc32c(&header).to_le_bytes(), header.len() as u64);
        Ok(reader)
    }

    /// Calls `visit` with each region of the file. The `fixed` bytes, which are as written, have
    /// their number. Returns that number.
    fn each_region(&mut self, fixed: &[u8], mut visit: impl FnMut(u64, Region)) -> Result<u64> {
        let count = u64::from_le_bytes(fixed[FIXED - 8..].try_into().expect("8 bytes"));
        let mut checksum = crc32c::crc32c(fixed);
        let mut words = [0; 2];
        // A damaged count ends with the file.
        for index in 0..count {
            self.fill(bytemuck::bytes_of_mut(&mut words))?;
            checksum = crc32c::crc32c_append(checksum, bytemuck::bytes_of(&words));
            let [offset, len] = words.map(u64::from_le);
            visit(index, Region::new(HeapOffset::new(offset), len));
        }
        let mut sum = [0; SUM];
        self.fill(&mut sum)?;
        if sum == checksum.to_le_bytes() { Ok(count) } else { Err(self.damaged(BEGINNING)) }
    }

    /// Compares the regions of the file with the `expected` ones.
    fn compare_regions(&mut self, fixed: &[u8], expected: &FileHeader) -> Result<Vec<Region>> {
        let mut differing = None;
        let count = self.each_region(fixed, |index, region| {
            let mine = usize::try_from(index).ok().and_then(|index| expected.regions.get(index));
            if mine != Some(&region) {
                differing.get_or_insert(region.offset.get());
            }
        })?;
        let mine = expected.regions.len() as u64;
        if differing.is_some() || count != mine {
            let (found, expected, place) = (count, mine, differing);
            return Err(at(&self.path, CheckpointFault::Layout { found, expected, place }));
        }
        Ok(expected.regions.clone())
    }

    /// Takes the regions of a device's memory. The last one `expected` tells where the memory ends.
    fn take_regions(&mut self, fixed: &[u8], expected: &FileHeader) -> Result<Vec<Region>> {
        let end = expected.regions.last().map_or(0, |end| end.offset.get());
        let (mut regions, mut last, mut at_most) = (Vec::new(), Region::new(HeapOffset::new(0), 0), end);
        let count = self.each_region(fixed, |_, region| {
            // No more of them than there can be in order, one byte at the least in each.
            let is_behind = region.offset.get() >= last.offset.get().saturating_add(last.len);
            at_most = at_most.saturating_sub(region.len.max(1));
            if is_behind && at_most > 0 && regions.len() < MOST_REGIONS {
                regions.push(region);
            }
            last = region;
        })?;
        let (found, expected) = (last.offset.get(), end);
        if last.len > 0 {
            Err(self.damaged(BEGINNING))
        } else if found != expected {
            Err(at(&self.path, CheckpointFault::Memory { found, expected }))
        } else if regions.len() as u64 != count {
            Err(self.damaged(BEGINNING))
        } else {
            Ok(regions)
        }
    }

    /// Looks whether all of it is what was written.
    pub(super) fn check(&mut self) -> Result<PartDigest> {
        self.each_chunk(|_, _| Ok(()))
    }

    /// Hands each chunk that is what was written to `visit`, with its place in the heap.
    pub(super) fn each_chunk(&mut self, visit: impl Fn(Region, &[u8]) -> Result<()>) -> Result<PartDigest> {
        let mut read = self.head;
        self.file.seek(SeekFrom::Start(read.len)).map_err(|error| io(&self.path, "reading", error))?;
        let mut buffer = Vec::new();
        for region in self.regions.clone() {
            for chunk in chunks(region.len) {
                buffer.resize(len_of(chunk) + SUM, 0);
                self.fill(&mut buffer)?;
                let (bytes, sum) = buffer.split_at(buffer.len() - SUM);
                if crc32c::crc32c(bytes).to_le_bytes() != *sum {
                    return Err(self.damaged("a chunk of data"));
                }
                read.add(sum.try_into().expect("4 bytes"), chunk.len);
                let offset = HeapOffset::new(region.offset.get() + chunk.offset.get());
                visit(Region::new(offset, chunk.len), bytes)?;
            }
        }
        match self.file.read(&mut [0]) {
            Ok(0) => Ok(read),
            Ok(_) => Err(self.damaged("the end of the file")),
            Err(error) => Err(io(&self.path, "reading", error)),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.damaged("the length of the file"),
            _ => io(&self.path, "reading", error),
        })
    }

    fn damaged(&self, what: &'static str) -> crate::error::Error {
        at(&self.path, CheckpointFault::Damaged { what })
    }
}

fn len_of(chunk: Region) -> usize {
    usize::try_from(chunk.len).expect("at most a chunk")
}
