//! What a cell holds, as an expression over inputs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use crate::plan::Operator;

/// The index of an expression. Equal expressions have equal indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Value(u32);

/// An expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Expression {
    /// What memory held before the first launch, or torn bytes.
    Undefined,
    /// A cell of the input of a rank in a launch.
    Input { rank: u32, launch: u32, cell: u32 },
    /// Two values combined.
    Combined { operator: Operator, first: Value, second: Value },
}

/// The most parts of an expression that are told.
const MAX_TOLD: usize = 40;
/// The most parts of results that are looked at. Tests reach it.
pub(super) const MAX_PARTS: usize = if cfg!(test) { 1 << 16 } else { 1 << 26 };

/// The most leaves of results that are kept to be asked again.
const MAX_KEPT: usize = 1 << 20;

/// All expressions.
#[derive(Debug)]
pub(super) struct Expressions {
    all: Vec<Expression>,
    index: HashMap<Expression, Value>,
    /// What was asked before, as ranks have the same results, and of how many leaves that is.
    parts: HashMap<Value, Rc<ValueParts>>,
    kept: usize,
    /// How many parts of results were looked at.
    looked: usize,
}

/// The leaves of an expression, and how often each counts. Counts saturate.
pub(super) type Leaves = BTreeMap<Expression, u64>;

/// Says that results have more parts than a check looks at.
#[derive(Debug)]
pub(super) struct TooManyParts;

/// What a value is made of.
#[derive(Debug, Default)]
pub(super) struct ValueParts {
    pub(super) leaves: Leaves,
    pub(super) operators: BTreeSet<Operator>,
}

impl Expressions {
    /// The value of what nobody has written.
    pub(super) const UNDEFINED: Value = Value(0);

    pub(super) fn new() -> Self {
        let mut values =
            Self { all: Vec::new(), index: HashMap::new(), parts: HashMap::new(), kept: 0, looked: 0 };
        values.of(Expression::Undefined);
        values
    }

    /// Returns the value of an expression.
    pub(super) fn of(&mut self, expression: Expression) -> Value {
        *self.index.entry(expression).or_insert_with(|| {
            self.all.push(expression);
            Value(u32::try_from(self.all.len() - 1).unwrap_or(u32::MAX))
        })
    }

    pub(super) fn expression(&self, value: Value) -> Expression {
        self.all[value.0 as usize]
    }

    /// Returns what a value is made of.
    pub(super) fn parts(&mut self, value: Value) -> Result<Rc<ValueParts>, TooManyParts> {
        if let Some(parts) = self.parts.get(&value) {
            return Ok(Rc::clone(parts));
        }
        let (mut parts, mut counts) = (ValueParts::default(), BTreeMap::from([(value, 1_u64)]));
        // Children come before their parents, so the count of the last one is complete.
        while let Some((next, count)) = counts.pop_last() {
            self.looked += 1;
            if self.looked > MAX_PARTS {
                return Err(TooManyParts);
            }
            match self.expression(next) {
                Expression::Combined { operator, first, second } => {
                    parts.operators.insert(operator);
                    for child in [first, second] {
                        let entry = counts.entry(child).or_default();
                        *entry = entry.saturating_add(count);
                    }
                }
                leaf => drop(parts.leaves.insert(leaf, count)),
            }
        }
        let parts = Rc::new(parts);
        self.kept += parts.leaves.len();
        if self.kept <= MAX_KEPT {
            self.parts.insert(value, Rc::clone(&parts));
        }
        Ok(parts)
    }

    /// Tells which ranks' inputs a value combines, in which order.
    pub(super) fn told_in_ranks(&self, value: Value) -> String {
        let leaf = |expression| match expression {
            Expression::Input { rank, .. } => rank.to_string(),
            _ => "?".to_owned(),
        };
        let mut left = MAX_TOLD;
        self.told_with(value, &mut left, &leaf)
    }

    /// Tells a value as a reader would write it. `unit` numbers the cells of inputs.
    pub(super) fn told(&self, value: Value, unit: &impl Fn(u32) -> usize) -> String {
        let leaf = |expression| match expression {
            Expression::Input { rank, launch, cell } => {
                format!("rank {rank}'s unit {} of launch {launch}", unit(cell))
            }
            _ => "undefined bytes".to_owned(),
        };
        let mut left = MAX_TOLD;
        self.told_with(value, &mut left, &leaf)
    }

    /// Tells a value, of which `left` parts may still be told.
    fn told_with(&self, value: Value, left: &mut usize, leaf: &impl Fn(Expression) -> String) -> String {
        if *left == 0 {
            return "...".to_owned();
        }
        *left -= 1;
        match self.expression(value) {
            Expression::Combined { operator, first, second } => {
                let first = self.told_with(first, left, leaf);
                let second = self.told_with(second, left, leaf);
                format!("({first} {operator} {second})")
            }
            expression => leaf(expression),
        }
    }
}
