//! How long a step takes, by its rows and the keys that they read: learnt from the steps before. No clock.

use std::time::Duration;

/// Keys that the answer of a shard costs as much as, about: it is sent, checked and merged.
const KEYS_OF_A_SHARD: u64 = 64;
/// What is left of what a step taught at each later one.
const KEPT: f64 = 0.95;
/// How much the costs known stay where steps do not tell them apart.
const INERTIA: f64 = 1e-2;
/// A step that took longer than so many times what was expected was held up, and teaches no more than that.
const HELD_UP: f64 = 4.0;
/// Rows, keys that are read, and pairs of both that weigh as much as a step of none, so that no cost is learnt faster than another.
/// Steps of one row a job do not tell what reading a key costs from what a pair does: reading is taken for it, which rows of one job
/// share.
const SCALE: [f64; COSTS] = [1.0, 16.0, 32_768.0, 16.0 * 32_768.0];
const COSTS: usize = 4;

type Costs = [f64; COSTS];

/// What goes through the layers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSize {
    /// Rows.
    pub rows: u64,
    /// Keys that are read: once for all rows of a job.
    pub keys: u64,
    /// Pairs of a row and a key.
    pub pairs: u64,
}

impl StepSize {
    /// So many rows of a job over as many keys in so many shards.
    pub fn of(rows: usize, keys: u64, shards: usize) -> Self {
        let (rows, keys) = (rows as u64, keys.saturating_add(KEYS_OF_A_SHARD.saturating_mul(shards as u64)));
        Self { rows, keys, pairs: rows.saturating_mul(keys) }
    }

    /// What it adds to a step that others of its job are in: their keys are read already.
    #[must_use]
    pub fn beside_own(self) -> Self {
        Self { keys: 0, ..self }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows.saturating_add(other.rows),
            keys: self.keys.saturating_add(other.keys),
            pairs: self.pairs.saturating_add(other.pairs),
        }
    }

    fn features(self) -> Costs {
        let [_, rows, keys, pairs] = SCALE;
        [1.0, self.rows as f64 / rows, self.keys as f64 / keys, self.pairs as f64 / pairs]
    }
}

/// Seconds of a step with nothing in it, of a row, of a key that is read and of a pair: least squares over the steps before, the later ones the most.
#[derive(Clone, Debug, Default)]
pub struct StepCost {
    costs: Costs,
    /// Sums over steps of what they had in common with each other, and with the seconds that they took.
    products: [Costs; COSTS],
    seconds: Costs,
}

impl StepCost {
    /// Seconds of a step with nothing in it, such as reading all weights.
    pub fn base(&self) -> f64 {
        self.costs[0]
    }

    /// Seconds that something adds to a step.
    pub fn of(&self, size: StepSize) -> f64 {
        self.costs.iter().zip(size.features()).skip(1).map(|(cost, feature)| cost * feature).sum()
    }

    /// A step of this size took so long.
    pub fn learn(&mut self, size: StepSize, took: Duration) {
        let (features, expected) = (size.features(), self.base() + self.of(size));
        let most = if expected > 0.0 { HELD_UP * expected } else { f64::INFINITY };
        let took = took.as_secs_f64().min(most);
        for (at, feature) in features.iter().enumerate() {
            for (product, other) in self.products[at].iter_mut().zip(features) {
                *product = KEPT * *product + feature * other;
            }
            self.seconds[at] = KEPT * self.seconds[at] + feature * took;
        }
        let (mut matrix, mut right) = (self.products, self.seconds);
        for at in 0..COSTS {
            matrix[at][at] += INERTIA;
            right[at] += INERTIA * self.costs[at];
        }
        self.costs = solved(matrix, right).map(|cost| cost.max(0.0));
    }
}

/// The solution of a system of equations whose matrix is positive definite.
fn solved(mut matrix: [Costs; COSTS], mut right: Costs) -> Costs {
    for at in 0..COSTS {
        let pivot = matrix[at];
        for below in at + 1..COSTS {
            let factor = matrix[below][at] / pivot[at];
            matrix[below].iter_mut().zip(pivot).for_each(|(value, pivot)| *value -= factor * pivot);
            right[below] -= factor * right[at];
        }
    }
    for at in (0..COSTS).rev() {
        let known: f64 = (at + 1..COSTS).map(|other| matrix[at][other] * right[other]).sum();
        right[at] = (right[at] - known) / matrix[at][at];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: f64 = 0.004;

    fn took(size: StepSize) -> Duration {
        Duration::from_secs_f64(EMPTY + 1e-4 * size.rows as f64 + 2e-8 * size.pairs as f64)
    }

    fn learnt(steps: usize) -> StepCost {
        let mut cost = StepCost::default();
        for step in 0..steps {
            let size = StepSize::of(1 + step * 7 % 60, 500 + (step * 37 % 9) as u64 * 900, 2);
            cost.learn(size, took(size));
        }
        cost
    }

    #[test]
    fn the_cost_of_a_step_is_learnt_from_steps() {
        let cost = learnt(40);
        assert!((cost.base() - EMPTY).abs() < 0.1 * EMPTY, "{cost:?}");
        for size in [StepSize::of(1, 2000, 2), StepSize::of(50, 8000, 2)] {
            let (expected, added) = (took(size).as_secs_f64(), cost.of(size));
            assert!((cost.base() + added - expected).abs() < 0.05 * expected, "{expected} {added} {cost:?}");
        }
    }

    #[test]
    fn what_was_learnt_stays_while_steps_are_alike() {
        let mut cost = learnt(40);
        let size = StepSize::of(32, 2000, 2);
        (0..2000).for_each(|_| cost.learn(size, took(size)));
        assert!((cost.base() - EMPTY).abs() < 0.3 * EMPTY, "{cost:?}");
    }

    /// Of an answer behind many keys, whose questions before taught what rows together cost: each of its tokens reads all keys, and so do
    /// all rows of a question at once.
    #[test]
    fn tokens_of_one_job_do_not_teach_that_each_row_of_a_question_reads_all_keys() {
        let (keys, mut cost) = (170_000, StepCost::default());
        let takes = |size: StepSize| {
            Duration::from_secs_f64(
                0.006 + 2e-5 * size.rows as f64 + 5e-8 * size.keys as f64 + 2e-9 * size.pairs as f64,
            )
        };
        let question = StepSize::of(64, keys, 1);
        for rows in [64, 64, 1, 16, 1, 16, 64, 1] {
            cost.learn(StepSize::of(rows, keys, 1), takes(StepSize::of(rows, keys, 1)));
        }
        for _ in 0..2000 {
            cost.learn(StepSize::of(1, keys, 1), takes(StepSize::of(1, keys, 1)));
        }
        let (expected, told) = (takes(question).as_secs_f64(), cost.base() + cost.of(question));
        assert!((told - expected).abs() < 0.2 * expected, "{told} {expected} {cost:?}");
        // Whoever has seen nothing but tokens takes keys to be shared, too.
        let mut untaught = StepCost::default();
        (0..2000).for_each(|_| untaught.learn(StepSize::of(1, keys, 1), takes(StepSize::of(1, keys, 1))));
        assert!(untaught.base() + untaught.of(question) < 2.0 * expected, "{untaught:?}");
    }

    #[test]
    fn a_step_that_was_held_up_teaches_little() {
        let (mut cost, size) = (learnt(40), StepSize::of(8, 2000, 2));
        cost.learn(size, Duration::from_secs(300));
        assert!(cost.base() + cost.of(size) < 3.0 * took(size).as_secs_f64(), "{cost:?}");
        let nothing = StepCost::default();
        assert_eq!((nothing.base(), nothing.of(size)), (0.0, 0.0), "nothing is known yet");
    }
}
