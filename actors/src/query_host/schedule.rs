//! Which rows go through the layers next: those of every job that decodes, and of questions as many as fit beside them. Decides
//! only.

/// A job that waits for its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
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
pub struct Room {
    /// Rows, which bound the memory that a step takes.
    pub rows: usize,
    /// Rows times shards, which bound a host's answer.
    pub partials: usize,
}

/// Rows of the next step by job. Jobs after `last` come first, so that each has its turn where not all fit. Whatever waits, one
/// part is chosen.
pub fn choose(waiting: &[Waiting], last: u64, room: Room) -> Vec<(u64, usize)> {
    let mut turn: Vec<&Waiting> = waiting.iter().filter(|one| one.rows > 0).collect();
    // A row alone holds nobody up: those who decode go before questions.
    turn.sort_by_key(|one| (one.rows > 1, one.job <= last, one.job));
    let (mut left, mut chosen) = (room, Vec::new());
    for one in turn {
        let shards = one.shards.max(1);
        let fit = left.rows.min(left.partials / shards);
        let rows = match (one.again, chosen.is_empty()) {
            (Some(rows), true) => rows,
            (Some(rows), false) if rows > fit => continue,
            (Some(rows), false) => rows,
            (None, first) => one.rows.min(fit).max(usize::from(first)),
        };
        if rows > 0 {
            chosen.push((one.job, rows));
            left.rows = left.rows.saturating_sub(rows);
            left.partials = left.partials.saturating_sub(rows * shards);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { rows: 100, partials: 400 };

    fn waiting(job: u64, rows: usize, shards: usize) -> Waiting {
        Waiting { job, rows, again: None, shards }
    }

    #[test]
    fn those_who_decode_go_together_and_a_question_takes_what_is_left() {
        let jobs = [waiting(1, 1000, 2), waiting(2, 1, 1), waiting(3, 1, 4), waiting(4, 50, 1)];
        assert_eq!(choose(&jobs, 0, ROOM), [(2, 1), (3, 1), (1, 98)]);
        assert_eq!(choose(&jobs, 1, ROOM), [(2, 1), (3, 1), (4, 50), (1, 48)]);
    }

    #[test]
    fn a_hosts_answer_fits_into_a_frame() {
        let jobs = [waiting(1, 1, 100), waiting(2, 1, 300), waiting(3, 1, 200), waiting(4, 7, 50)];
        assert_eq!(choose(&jobs, 0, ROOM), [(1, 1), (2, 1)]);
        assert_eq!(choose(&jobs, 2, ROOM), [(3, 1), (1, 1), (4, 2)]);
        assert_eq!(choose(&[waiting(1, 5, 1000)], 0, ROOM), [(1, 1)], "whatever waits, one part is chosen");
    }

    #[test]
    fn a_step_that_is_taken_again_is_the_same() {
        let again = Waiting { again: Some(70), ..waiting(1, 200, 1) };
        assert_eq!(choose(&[again, waiting(2, 60, 1)], 1, ROOM), [(2, 60)]);
        assert_eq!(choose(&[again, waiting(2, 60, 1)], 2, ROOM), [(1, 70), (2, 30)]);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let jobs: Vec<Waiting> = (0..40).map(|job| waiting(job, 1 + job as usize % 3 * 90, 30)).collect();
        let (mut last, mut served) = (u64::MAX, [0; 40]);
        for _ in 0..60 {
            for (job, rows) in choose(&jobs, last, ROOM) {
                served[job as usize] += rows;
                last = job;
            }
        }
        assert!(served.iter().all(|rows| *rows > 0), "{served:?}");
    }
}
