//! Which rows go through the layers next: those of every job that decodes, and of questions as many as fit beside them. Decides
//! only.

/// A job that waits for its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingJob {
    /// Job.
    pub job: u64,
    /// Rows it has to go through: what is left of its question, or one generated token.
    pub rows: usize,
    /// Rows of a step that has to be taken again as it was.
    pub again: Option<usize>,
    /// Shards of it that one host holds, at most.
    pub shards: usize,
}

/// What a step may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBudget {
    /// Rows, which bound the memory that a step takes.
    pub rows: usize,
    /// Rows times shards, which bound a host's answer.
    pub partials: usize,
}

impl StepBudget {
    /// Rows of this many shards each that fit.
    fn fits(self, shards: usize) -> usize {
        self.rows.min(self.partials / shards.max(1))
    }

    fn take(&mut self, rows: usize, shards: usize) {
        self.rows = self.rows.saturating_sub(rows);
        self.partials = self.partials.saturating_sub(rows * shards.max(1));
    }
}

/// Rows of the next step by job. A row alone holds nobody up, so that those who decode go together; a question is sure of a
/// quarter of the room, and takes what they leave. Who comes first changes with `turn`, the number of the step, so that each
/// gets on where not all fit. Whatever waits, one part is chosen.
pub fn choose(waiting: &[WaitingJob], turn: u64, room: StepBudget) -> Vec<(u64, usize)> {
    let of = |question: bool| {
        let mut jobs: Vec<&WaitingJob> =
            waiting.iter().filter(|one| one.rows > 0 && (one.rows > 1) == question).collect();
        let by = turn.checked_rem(jobs.len() as u64).unwrap_or(0);
        jobs.rotate_left(by as usize);
        jobs
    };
    let (questions, mut left, mut chosen) = (of(true), room, Vec::new());
    let quarter = StepBudget { rows: room.rows / 4, partials: room.partials / 4 };
    let sure = questions.first().map(|one| {
        let rows = one.again.unwrap_or(one.rows.min(quarter.fits(one.shards)).max(1));
        left.take(rows, one.shards);
        rows
    });
    for one in of(false) {
        if left.fits(one.shards) > 0 || (chosen.is_empty() && sure.is_none()) {
            chosen.push((one.job, 1));
            left.take(1, one.shards);
        }
    }
    for (one, sure) in questions.into_iter().zip(sure.into_iter().chain(std::iter::repeat(0))) {
        let fit = left.fits(one.shards);
        let more = match one.again {
            Some(rows) if rows - sure > fit => 0,
            Some(rows) => rows - sure,
            None => (one.rows - sure).min(fit),
        };
        if sure + more > 0 {
            chosen.push((one.job, sure + more));
            left.take(more, one.shards);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: StepBudget = StepBudget { rows: 100, partials: 400 };

    fn waiting(job: u64, rows: usize, shards: usize) -> WaitingJob {
        WaitingJob { job, rows, again: None, shards }
    }

    #[test]
    fn those_who_decode_go_together_and_a_question_takes_what_is_left() {
        let jobs = [waiting(1, 1000, 2), waiting(2, 1, 1), waiting(3, 1, 4), waiting(4, 50, 1)];
        assert_eq!(choose(&jobs, 0, ROOM), [(2, 1), (3, 1), (1, 98)]);
        assert_eq!(choose(&jobs, 1, ROOM), [(3, 1), (2, 1), (4, 50), (1, 48)]);
    }

    #[test]
    fn a_hosts_answer_fits_into_a_frame() {
        let jobs = [waiting(1, 1, 100), waiting(2, 1, 200), waiting(3, 1, 200), waiting(4, 7, 50)];
        assert_eq!(choose(&jobs, 0, ROOM), [(1, 1), (2, 1), (4, 2)]);
        assert_eq!(choose(&jobs, 1, ROOM), [(2, 1), (1, 1), (4, 2)]);
        assert_eq!(choose(&[waiting(1, 5, 1000)], 0, ROOM), [(1, 1)], "whatever waits, one part is chosen");
        assert_eq!(choose(&[waiting(1, 1, 1000)], 0, ROOM), [(1, 1)], "whatever waits, one part is chosen");
        assert_eq!(choose(&[], 3, ROOM), []);
    }

    #[test]
    fn a_step_that_is_taken_again_is_the_same() {
        let again = WaitingJob { again: Some(70), ..waiting(1, 200, 1) };
        assert_eq!(choose(&[again, waiting(2, 60, 1)], 1, ROOM), [(2, 60)]);
        assert_eq!(choose(&[again, waiting(2, 60, 1)], 2, ROOM), [(1, 70), (2, 30)]);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let jobs: Vec<WaitingJob> = (0..40).map(|job| waiting(job, 1 + job as usize % 3 * 90, 30)).collect();
        let mut served = [0; 40];
        for turn in 0..60 {
            choose(&jobs, turn, ROOM).into_iter().for_each(|(job, rows)| served[job as usize] += rows);
        }
        assert!(served.iter().all(|rows| *rows > 0), "{served:?}");
    }
}
