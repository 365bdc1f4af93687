//! What a cell holds, as an expression over inputs.

use std::collections::{BTreeMap, HashMap, HashSet};

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

/// All expressions.
#[derive(Debug)]
pub(super) struct Values {
    all: Vec<Expression>,
    index: HashMap<Expression, Value>,
    /// Of each value that was asked for, its leaves and how often each counts.
    leaves: HashMap<Value, Leaves>,
}

/// The leaves of an expression. Counts saturate.
pub(super) type Leaves = BTreeMap<Expression, u64>;

impl Values {
    /// The value of what nobody has written.
    pub(super) const UNDEFINED: Value = Value(0);

    pub(super) fn new() -> Self {
        let mut values = Self { all: Vec::new(), index: HashMap::new(), leaves: HashMap::new() };
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

    /// Returns the leaves of a value. Children come before their parents, so there is no recursion.
    pub(super) fn leaves(&mut self, value: Value) -> &Leaves {
        let mut waiting = vec![value];
        while let Some(&next) = waiting.last() {
            if self.leaves.contains_key(&next) {
                waiting.pop();
                continue;
            }
            let leaves = match self.expression(next) {
                Expression::Combined { first, second, .. } => {
                    match (self.leaves.get(&first), self.leaves.get(&second)) {
                        (Some(one), Some(other)) => Some(union(one, other)),
                        (one, other) => {
                            waiting.extend(one.is_none().then_some(first));
                            waiting.extend(other.is_none().then_some(second));
                            None
                        }
                    }
                }
                leaf => Some(Leaves::from([(leaf, 1)])),
            };
            if let Some(leaves) = leaves {
                self.leaves.insert(next, leaves);
                waiting.pop();
            }
        }
        &self.leaves[&value]
    }

    /// Returns the operators of an expression, each once.
    pub(super) fn operators(&self, value: Value) -> Vec<Operator> {
        let (mut found, mut waiting, mut seen) = (Vec::new(), vec![value], HashSet::new());
        while let Some(next) = waiting.pop() {
            if let Expression::Combined { operator, first, second } = self.expression(next)
                && seen.insert(next)
            {
                waiting.extend([first, second]);
                if !found.contains(&operator) {
                    found.push(operator);
                }
            }
        }
        found
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

    /// Tells a value as a reader would write it.
    pub(super) fn told(&self, value: Value) -> String {
        let leaf = |expression| match expression {
            Expression::Input { rank, launch, cell } => {
                format!("rank {rank}'s unit {cell} of launch {launch}")
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

fn union(one: &Leaves, other: &Leaves) -> Leaves {
    let mut both = one.clone();
    for (leaf, count) in other {
        let entry = both.entry(*leaf).or_default();
        *entry = entry.saturating_add(*count);
    }
    both
}
