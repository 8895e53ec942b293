//! 95% intervals of scores. Plain numbers, from 0 to 1.

/// Quantile of the normal distribution that leaves 2.5% on either side.
const Z: f64 = 1.959_963_984_540_054;

/// A mean and its 95% interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Lower and upper end; absent when one score says nothing about its spread.
    pub interval: Option<(f64, f64)>,
}

/// The mean of one task's scores. Wilson's interval when every score is 0 or 1; else the normal one, within 0 and 1.
pub fn of_task(scores: &[f64]) -> Estimate {
    let (n, mean) = (scores.len() as f64, mean(scores));
    let interval = match all_or_nothing(scores) {
        true => Some(wilson(mean, n)),
        false => variance(scores).map(|variance| {
            let half = Z * (variance / n).sqrt();
            ((mean - half).max(0.0), (mean + half).min(1.0))
        }),
    };
    Estimate { mean, interval }
}

/// The mean of tasks' means, and the normal interval from the variance of each. A task of right and wrong answers has the
/// variance of Agresti and Coull (two successes and two failures more), which is not 0 when all are right.
pub fn of_tasks(tasks: &[Vec<f64>]) -> Estimate {
    let mean_variance = |scores: &Vec<f64>| match all_or_nothing(scores) {
        true => {
            let n = scores.len() as f64 + 4.0;
            let share = (scores.iter().sum::<f64>() + 2.0) / n;
            Some(share * (1.0 - share) / n)
        }
        false => variance(scores).map(|variance| variance / scores.len() as f64),
    };
    let estimate = averaged(tasks, mean_variance);
    let clamped = |(low, high): (f64, f64)| (low.max(0.0), high.min(1.0));
    Estimate { interval: estimate.interval.map(clamped), ..estimate }
}

/// The mean of tasks' mean differences, question by question, and the normal interval from their variances.
pub fn of_differences(tasks: &[Vec<f64>]) -> Estimate {
    averaged(tasks, |differences| variance(differences).map(|variance| variance / differences.len() as f64))
}

/// The middle of `values`, the mean of two middles; 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

fn averaged(tasks: &[Vec<f64>], mean_variance: impl Fn(&Vec<f64>) -> Option<f64>) -> Estimate {
    let count = tasks.len() as f64;
    let mean = tasks.iter().map(|scores| mean(scores)).sum::<f64>() / count;
    let sum: Option<f64> = tasks.iter().map(mean_variance).sum();
    let half = sum.map(|sum| Z * sum.sqrt() / count);
    Estimate { mean, interval: half.map(|half| (mean - half, mean + half)) }
}

fn wilson(share: f64, n: f64) -> (f64, f64) {
    let scale = 1.0 + Z * Z / n;
    let middle = (share + Z * Z / (2.0 * n)) / scale;
    let half = Z / scale * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

fn all_or_nothing(scores: &[f64]) -> bool {
    scores.iter().all(|score| *score == 0.0 || *score == 1.0)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The unbiased variance; `None` of a single value.
fn variance(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| squares / (values.len() - 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-4, "{got}, expected {expected}");
    }

    fn scores(right: usize, n: usize) -> Vec<f64> {
        (0..n).map(|index| f64::from(u8::from(index < right))).collect()
    }

    /// Values of `statsmodels.stats.proportion.proportion_confint(method="wilson")`.
    #[test]
    fn wilsons_intervals() {
        for (right, n, low, high) in
            [(8, 10, 0.490162, 0.943318), (10, 10, 0.722467, 1.0), (0, 1, 0.0, 0.793450), (45, 100, 0.356142, 0.547558)]
        {
            let (got_low, got_high) = of_task(&scores(right, n)).interval.unwrap();
            near(got_low, low);
            near(got_high, high);
        }
    }

    #[test]
    fn fractions_have_a_normal_interval() {
        // Mean 0.5, variance 0.125, standard error 0.25.
        let (low, high) = of_task(&[0.25, 0.75]).interval.unwrap();
        near(low, 0.5 - 0.489991);
        near(high, 0.5 + 0.489991);
        assert_eq!(of_task(&[0.5]), Estimate { mean: 0.5, interval: None });
    }

    #[test]
    fn averages_add_variances() {
        // Agresti and Coull: 10/14 and 14/24; errors 0.120736 and 0.100637, of the mean half their root sum of squares.
        let average = of_tasks(&[scores(8, 10), scores(12, 20)]);
        near(average.mean, 0.7);
        let (low, high) = average.interval.unwrap();
        near(high - low, 2.0 * 1.959964 * 0.5 * (0.120736f64.powi(2) + 0.100637f64.powi(2)).sqrt());
        assert_eq!(of_tasks(&[scores(8, 10), vec![0.5]]).interval, None);
        let (low, high) = of_tasks(&[scores(10, 10)]).interval.unwrap();
        assert!(low < 0.95 && high == 1.0);
    }

    #[test]
    fn differences_are_paired() {
        let same = of_differences(&[vec![0.0, 0.0], vec![-0.5, -0.5]]);
        assert_eq!(same, Estimate { mean: -0.25, interval: Some((-0.25, -0.25)) });
        let (low, high) = of_differences(&[vec![-1.0, 0.0, 0.0, 0.0]]).interval.unwrap();
        near((low + high) / 2.0, -0.25);
        near(high - low, 2.0 * 1.959964 * 0.25);
        assert_eq!(of_differences(&[vec![-1.0]]).interval, None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![]), 0.0);
    }
}
