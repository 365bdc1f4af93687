//! Objects and lists of JSON, one level at a time and bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::escape::escaped;
use crate::problem::{Place, Problem};

/// The most fields of an object.
const MAX_FIELDS: usize = 64;
/// The longest name or value that an error quotes, in characters.
const MAX_QUOTED: usize = 40;

/// The fields of an object that nobody has taken yet.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    by_name: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    /// Splits an object into its fields.
    pub(super) fn of(text: &'a str) -> Result<Self, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        let by_name = ObjectSeed.deserialize(&mut json).map_err(|error| error.to_string())?;
        json.end().map_err(|error| error.to_string())?;
        Ok(Self { by_name })
    }

    /// Takes a field. One that is `null` is taken for absent.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        self.by_name.remove(name).filter(|raw| raw.get() != "null")
    }

    /// Returns the first of the names that is there.
    pub(super) fn any(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.by_name.contains_key(*name))
    }
}

/// Collects what is wrong while a file is read.
#[derive(Debug)]
pub(super) struct PlanReader {
    problems: Vec<Problem>,
    unknown: BTreeSet<String>,
    warnings: BTreeSet<String>,
    /// How many operations may still come.
    operations: usize,
    max_problems: usize,
}

impl PlanReader {
    pub(super) fn new(operations: usize, max_problems: usize) -> Self {
        Self {
            problems: Vec::new(),
            unknown: BTreeSet::new(),
            warnings: BTreeSet::new(),
            operations,
            max_problems,
        }
    }

    /// Returns the problems and the warnings.
    pub(super) fn finish(self) -> (Vec<Problem>, Vec<String>) {
        let ignored = |name| format!("{name} is unknown, and ignored");
        (self.problems, self.unknown.into_iter().map(ignored).chain(self.warnings).collect())
    }

    /// Notes what looks unintended.
    pub(super) fn warn(&mut self, what: String) {
        self.warnings.insert(what);
    }

    /// Notes a problem.
    pub(super) fn problem(&mut self, place: Place, what: impl Into<String>) {
        if self.problems.len() < self.max_problems {
            self.problems.push(Problem::new(place, what));
        }
    }

    /// Notes that a file is of the layout that this one replaced.
    pub(super) fn old_layout(&mut self, place: Place, field: &str) {
        let what = format!(
            "`{field}` is of MSCCL++'s layout before August 2025; write the plan again with release 0.8 or later"
        );
        self.problem(place, what);
    }

    /// Counts operations. Returns false, with a problem, once there are too many.
    pub(super) fn count_operations(&mut self, place: Place, more: usize) -> bool {
        let left = self.operations.checked_sub(more);
        if left.is_none() {
            self.problem(place, "the operations of the plan exceed 1048576; split the plan");
        }
        self.operations = left.unwrap_or(0);
        left.is_some()
    }

    /// Splits an object.
    pub(super) fn fields<'a>(&mut self, raw: &'a RawValue, place: Place, what: &str) -> Option<Fields<'a>> {
        Fields::of(raw.get())
            .map_err(|_| {
                let told =
                    format!("{what} is {}; expected an object of at most {MAX_FIELDS} fields", quote(raw));
                self.problem(place, told);
            })
            .ok()
    }

    /// Splits a list of `most` elements at most.
    pub(super) fn list<'a>(
        &mut self,
        raw: &'a RawValue,
        place: Place,
        what: &str,
        most: usize,
    ) -> Vec<&'a RawValue> {
        let mut json = serde_json::Deserializer::from_str(raw.get());
        ListSeed { most }.deserialize(&mut json).unwrap_or_else(|_| {
            let told = format!("`{what}` is {}; expected a list of at most {most} entries", quote(raw));
            self.problem(place, told);
            Vec::new()
        })
    }

    /// Takes a list that may be absent.
    pub(super) fn list_of<'a>(
        &mut self,
        fields: &mut Fields<'a>,
        place: Place,
        name: &str,
        most: usize,
    ) -> Vec<&'a RawValue> {
        fields.take(name).map_or_else(Vec::new, |raw| self.list(raw, place, name, most))
    }

    /// Takes a list of numbers that may be absent.
    pub(super) fn numbers(
        &mut self,
        fields: &mut Fields<'_>,
        place: Place,
        name: &str,
        most: usize,
    ) -> Vec<u32> {
        let raws = self.list_of(fields, place, name, most);
        raws.into_iter().map(|raw| self.value(raw, place, name).unwrap_or(0)).collect()
    }

    /// Takes a field that must be there. Stands in a default where it is not.
    pub(super) fn need<T: PlainValue>(&mut self, fields: &mut Fields<'_>, place: Place, name: &str) -> T {
        match fields.take(name) {
            Some(raw) => self.value(raw, place, name).unwrap_or_default(),
            None => {
                self.problem(place, format!("`{name}` is missing; expected {}", T::EXPECTED));
                T::default()
            }
        }
    }

    /// Takes a field that may be absent.
    pub(super) fn or<T: PlainValue>(
        &mut self,
        fields: &mut Fields<'_>,
        place: Place,
        name: &str,
        default: T,
    ) -> T {
        match fields.take(name) {
            Some(raw) => self.value(raw, place, name).unwrap_or(default),
            None => default,
        }
    }

    /// Takes one of a few names. Nothing comes of one that is absent, nor of one with a problem.
    pub(super) fn named<T>(
        &mut self,
        fields: &mut Fields<'_>,
        place: Place,
        name: &str,
        of_name: impl Fn(&str) -> Option<T>,
        default: Option<T>,
    ) -> Option<T> {
        let Some(raw) = fields.take(name) else {
            if default.is_none() {
                self.problem(place, format!("`{name}` is missing; expected a name of the format"));
            }
            return default;
        };
        let found = serde_json::from_str::<String>(raw.get()).ok().and_then(|text| of_name(&text));
        if found.is_none() {
            self.problem(place, format!("`{name}` is {}; expected a name of the format", quote(raw)));
        }
        found
    }

    /// Reads a value.
    fn value<T: PlainValue>(&mut self, raw: &RawValue, place: Place, name: &str) -> Option<T> {
        let value = T::parse(raw.get());
        if value.is_none() {
            self.problem(place, format!("`{name}` is {}; expected {}", quote(raw), T::EXPECTED));
        }
        value
    }

    /// Warns of fields that nobody has taken, once per name.
    pub(super) fn unknown(&mut self, fields: Fields<'_>, of: &str) {
        for name in fields.by_name.into_keys() {
            if self.unknown.len() < MAX_FIELDS {
                self.unknown.insert(format!("field `{}` of {of}", shorten(&name)));
            }
        }
    }
}

/// A value without parts.
pub(super) trait PlainValue: Default {
    const EXPECTED: &'static str;
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! values {
    ($($type:ty: $expected:literal,)*) => { $(
        impl PlainValue for $type {
            const EXPECTED: &'static str = $expected;
            fn parse(text: &str) -> Option<Self> {
                serde_json::from_str(text).ok()
            }
        }
    )* };
}

values! {
    bool: "true or false",
    String: "a text",
    u32: "a whole number below 2^32",
    u64: "a whole number below 2^64",
    usize: "a whole number below 2^64",
}

/// Returns the beginning of a value, for an error.
fn quote(raw: &RawValue) -> String {
    shorten(raw.get())
}

fn shorten(text: &str) -> String {
    let short: String = text.chars().take(MAX_QUOTED).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    escaped(&short) + more
}

/// Reads an object of [`MAX_FIELDS`] fields at most.
struct ObjectSeed;

impl<'de> DeserializeSeed<'de> for ObjectSeed {
    type Value = BTreeMap<String, &'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed {
    type Value = BTreeMap<String, &'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            let name_of_it = shorten(&name);
            if fields.insert(name, value).is_some() {
                return Err(A::Error::custom(format!("field `{name_of_it}` stands twice")));
            }
            if fields.len() > MAX_FIELDS {
                return Err(A::Error::custom(format!("more than {MAX_FIELDS} fields")));
            }
        }
        Ok(fields)
    }
}

/// Reads a list of `most` elements at most.
struct ListSeed {
    most: usize,
}

impl<'de> DeserializeSeed<'de> for ListSeed {
    type Value = Vec<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element::<&RawValue>()? {
            list.push(element);
            if list.len() > self.most {
                return Err(A::Error::custom("too long"));
            }
        }
        Ok(list)
    }
}
