//! The largest record that fits a number of tokens. Knows no tokenizer: sizes are asked for.

/// The most units whose size is at most `tokens`. `size(units)` must not fall as units grow.
///
/// # Errors
/// The size of one unit, when even that is too large.
pub(crate) fn fit(tokens: usize, mut size: impl FnMut(usize) -> usize) -> Result<usize, usize> {
    let (mut fits, mut fits_size) = (1, size(1));
    if fits_size > tokens {
        return Err(fits_size);
    }
    let mut over = 2;
    let mut over_size = size(over);
    while over_size <= tokens {
        (fits, fits_size) = (over, over_size);
        over *= 2;
        over_size = size(over);
    }
    // Sizes are almost linear in units, so the secant lands near; every other step halves, whatever the sizes are.
    let mut halve = false;
    while over - fits > 1 {
        let (span, room) = (over - fits, tokens - fits_size);
        let step = if halve { span / 2 } else { span * room / (over_size - fits_size) };
        let guess = fits + step.clamp(1, span - 1);
        halve = !halve;
        match size(guess) {
            small if small <= tokens => (fits, fits_size) = (guess, small),
            large => (over, over_size) = (guess, large),
        }
    }
    Ok(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_fits() {
        for tokens in 10..3000 {
            let sizes = |units: usize| 10 + 7 * (units - 1) + units / 3;
            let units = fit(tokens, sizes).unwrap();
            assert!(sizes(units) <= tokens && sizes(units + 1) > tokens, "{tokens}");
        }
        assert_eq!(fit(9, |units| 9 + units), Err(10));
    }

    #[test]
    fn uneven_sizes_are_searched_in_few_steps() {
        let mut asked = 0;
        let sizes = |units: usize| if units < 900 { units } else { 1000 * units };
        let units = fit(5000, |units| {
            asked += 1;
            sizes(units)
        });
        assert_eq!(units, Ok(899));
        assert!(asked < 40, "{asked}");
    }
}
