//! The things that are traced, as numbers.

use crate::proxy::TriggerKind;

/// The kind of a span. The numbers of collective operations are their own; a trigger has that of
/// its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verb(u8);

/// The names of collective calls by their numbers, which this part of the crate does not know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallNames {
    /// Names an operation by its number.
    pub(crate) operation: fn(u8) -> Option<&'static str>,
    /// Says whether an operation is a message, whose tag is told.
    pub(crate) has_tag: fn(u8) -> bool,
    /// Names an algorithm by its number.
    pub(crate) algorithm: fn(u8) -> Option<&'static str>,
}

/// Higher than the numbers of operations.
const FIRST: u8 = 128;

/// The number of a trigger's kind is added to this.
const TRIGGER: u8 = 192;

macro_rules! verbs {
    ($($constant:ident = $name:literal,)*) => {
        /// The names of what is no collective operation, in the order of their numbers.
        const NAMES: &[&str] = &[$($name),*];

        #[repr(u8)]
        #[allow(clippy::upper_case_acronyms, non_camel_case_types, reason = "named as the constants")]
        enum Number { $($constant),* }

        impl Verb {
            $(pub(crate) const $constant: Self = Self(FIRST + Number::$constant as u8);)*
        }
    };
}

verbs! {
    PUT = "put",
    SIGNAL = "signal",
    PUT_WITH_SIGNAL = "put_with_signal",
    PUT_WITH_SIGNAL_AND_FLUSH = "put_with_signal_and_flush",
    FLUSH = "flush",
    WAIT = "wait",
    GET = "get",
    READ = "read",
    WRITE = "write",
    PUT_SLICE = "put_slice",
    RELAXED_SIGNAL = "relaxed_signal",
    RELAXED_WAIT = "relaxed_wait",
    PUT_PACKETS = "put_packets",
    UNPACK_PACKETS = "unpack_packets",
    PUT_REGISTERED = "put_registered",
    LONG_WAIT = "long wait",
    ATOMIC = "atomic",
    WAIT_UNTIL = "wait_until",
    LOCK = "lock",
    UNLOCK = "unlock",
}

impl Verb {
    /// Returns a collective operation, or a message, by its number.
    pub(crate) const fn operation(code: u8) -> Self {
        Self(code)
    }

    /// Returns a trigger that changes a word.
    pub(crate) const WORD_UPDATE: Self = Self(TRIGGER + 8);

    /// Returns a trigger of this kind.
    pub(crate) fn trigger(kind: TriggerKind) -> Self {
        let bits = [TriggerKind::DATA, TriggerKind::SIGNAL, TriggerKind::FLUSH];
        let number = (0..).zip(bits).filter(|(_, bit)| kind.contains(*bit)).map(|(place, _)| 1 << place);
        Self(TRIGGER + number.sum::<u8>())
    }

    /// Returns the name of a verb of a channel.
    pub(crate) fn name_of_verb(self) -> &'static str {
        NAMES[usize::from(self.0 - FIRST)]
    }

    pub(super) fn code(self) -> u8 {
        self.0
    }
}

impl Verb {
    pub(super) fn from_code(code: u8) -> Self {
        Self(code)
    }

    /// Returns whether its number is the tag of a message.
    pub(super) fn has_tag(self, calls: CallNames) -> bool {
        (calls.has_tag)(self.0)
    }

    /// Returns its name and kind; none for a number that nothing has.
    pub(super) fn name(self, calls: CallNames) -> Option<(&'static str, &'static str)> {
        /// By the bits of their kind: data, signal, flush. Then one without.
        const TRIGGERS: [&str; 9] = [
            "nothing",
            "data",
            "signal",
            "data, signal",
            "flush",
            "data, flush",
            "signal, flush",
            "data, signal, flush",
            "atomic",
        ];
        match self.0 {
            TRIGGER.. => TRIGGERS.get(usize::from(self.0 - TRIGGER)).map(|name| (*name, "trigger")),
            _ if self == Self::LONG_WAIT => Some(("long wait", "wait")),
            FIRST.. => NAMES.get(usize::from(self.0 - FIRST)).map(|name| (*name, "verb")),
            code => (calls.operation)(code).map(|name| (name, "operation")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: CallNames = CallNames {
        operation: |code| (code == 2).then_some("all_reduce"),
        has_tag: |_| false,
        algorithm: |_| None,
    };

    #[test]
    fn names_are_found_by_numbers() {
        let name = |verb: Verb| verb.name(CALLS);
        assert_eq!(name(Verb::PUT), Some(("put", "verb")));
        assert_eq!(name(Verb::PUT_REGISTERED), Some(("put_registered", "verb")));
        assert_eq!(name(Verb::LONG_WAIT), Some(("long wait", "wait")));
        assert_eq!(name(Verb::operation(2)), Some(("all_reduce", "operation")));
        assert_eq!(
            name(Verb::trigger(TriggerKind::DATA | TriggerKind::SIGNAL)),
            Some(("data, signal", "trigger"))
        );
        assert_eq!(
            name(Verb::trigger(TriggerKind::SIGNAL | TriggerKind::FLUSH)),
            Some(("signal, flush", "trigger"))
        );
        assert_eq!(name(Verb::WORD_UPDATE), Some(("atomic", "trigger")));
        assert_eq!([0, 127, 191, 255].map(|code| name(Verb::from_code(code))), [None; 4]);
    }
}
