//! How likely a model held its tokens: logarithms of the softmax over all logits. Neither temperature nor nucleus changes them.

use asterism_kernels::{RowChoice, RowToken, TokenChoice};

/// The least that is told, in place of what no token has, and of what nobody looked at: OpenAI's API tells a token outside of the
/// likeliest so (`logprob` of its chat completions), since JSON has no number for it.
const LEAST: f32 = -9999.0;

/// Logarithms of probabilities at one place of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the token that was asked about.
    pub chosen: f32,
    /// The likeliest tokens, likeliest first and of equal ones the lower id first.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Of the token `chosen`, and of the `most` likeliest of `logits (vocab)`. NaN has no probability.
    pub fn of(logits: &[f32], chosen: u32, most: usize) -> Self {
        Self::of_row(&RowChoice { token: TokenChoice::Known(chosen), shape: None, top: most }.of(logits))
    }

    /// Of what was told of a row, for a token in place of the one that it is of, as where a form was closed with another than was
    /// chosen. A device tells the logits of its choice and of the likeliest that were asked for: a token beside those has the least, as
    /// OpenAI's API tells one that is outside of them.
    pub fn of_another(row: &RowToken, id: u32) -> Self {
        let logit = row.top.iter().find(|(other, _)| *other == id).map_or(f32::NAN, |(_, logit)| *logit);
        let logit = if row.token == id { row.logit } else { logit };
        Self::of_row(&RowToken { token: id, logit, ..row.clone() })
    }

    /// Of what was told of a row.
    pub fn of_row(row: &RowToken) -> Self {
        let logprob = |logit: f32| match row.log_probability(logit) as f32 {
            reported if reported > LEAST => reported,
            // Minus infinity and NaN are no numbers of JSON.
            _ => LEAST,
        };
        Self { chosen: logprob(row.logit), top: row.top.iter().map(|(id, logit)| (*id, logprob(*logit))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_softmax_of_all_logits() {
        let logits = [1.5f32, -2.0, 4.0, 4.0, 0.25, -30.0];
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let expected = |id: usize| (f64::from(logits[id]).exp() / sum).ln();
        // As near as a number of 32 bits can be.
        let near =
            |reported: f32, id: usize| (f64::from(reported) - expected(id)).abs() <= 1e-7 * expected(id).abs() + 1e-7;
        for most in 0..=8 {
            for chosen in 0..logits.len() {
                let Logprobs { chosen: reported, top } = Logprobs::of(&logits, chosen as u32, most);
                assert!(near(reported, chosen), "token {chosen}: {reported}");
                let ids: Vec<u32> = top.iter().map(|(id, _)| *id).collect();
                assert_eq!(ids, [2, 3, 0, 4, 1, 5][..most.min(6)]);
                assert!(top.iter().all(|(id, reported)| near(*reported, *id as usize)));
            }
        }
        let all: f64 = Logprobs::of(&logits, 0, 6).top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        assert!((all - 1.0).abs() < 1e-6, "{all}");
    }

    #[test]
    fn what_has_no_probability_is_told_as_a_number() {
        let logits = [f32::NAN, 0.0, f32::NEG_INFINITY, -20_000.0];
        let Logprobs { chosen, top } = Logprobs::of(&logits, 0, 4);
        assert_eq!((chosen, top), (LEAST, vec![(1, 0.0), (3, LEAST), (2, LEAST)]));
        assert_eq!(Logprobs::of(&[0.0], 7, 0), Logprobs { chosen: LEAST, top: vec![] });
    }

    #[test]
    fn a_token_that_nobody_looked_at_has_the_least() {
        let logits = [2.0f32, 1.0, 0.0, -1.0];
        let row = RowChoice { token: TokenChoice::Known(3), shape: None, top: 2 }.of(&logits);
        let told = |id: u32| Logprobs::of_another(&row, id);
        assert_eq!(
            (told(0), told(1), told(3)),
            (Logprobs::of(&logits, 0, 2), Logprobs::of(&logits, 1, 2), Logprobs::of(&logits, 3, 2))
        );
        assert_eq!(told(2), Logprobs { chosen: LEAST, top: told(3).top });
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let Logprobs { chosen, .. } = Logprobs::of(&[3e38, 3e38], 1, 0);
        assert!((f64::from(chosen) - 0.5f64.ln()).abs() < 1e-6, "{chosen}");
    }
}
