//! Requests that name what is not theirs, cost too much, or hold numbers that cannot be meant.
