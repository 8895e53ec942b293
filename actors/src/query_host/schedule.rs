//! Which rows go through the layers next: fairly between keys, by the time that they take, and no more than the time between tokens
//! allows. Decides only: no clock, no tensor.
//!
//! Each key that has something waiting earns an equal part of a step's time, and what a key does not need goes to the others. The
//! key that has saved the most comes next, each with the job that has waited longest; what it takes is taken off. So a key with one
//! row has it in every step, whatever others ask for, and a step takes as many times as long as that row alone as there are keys.
//! What nobody waits for makes a step no more than a quarter longer, on average, where there is something else; steps that it had for
//! itself a moment before count.
//! A row's bits do not depend on its company, so that any choice gives the same tokens.

mod step_cost;

use std::{collections::BTreeMap, time::Duration};

use step_cost::StepCost;
pub use step_cost::StepSize;

use crate::messages::BACKGROUND_TENANT;

/// A step takes at least so many times what one with nothing in it takes: rows together share the reading of weights.
const FULL: f64 = 4.0;
/// Of its key's part of a step, a question is sure of one in so many.
const QUESTION_SHARE: usize = 4;
/// What jobs that nobody waits for may take of a step beside others, in parts of what those take.
const BACKGROUND_SHARE: f64 = 0.25;
/// Seconds of steps for themselves that are held against jobs that nobody waits for, at most.
const MOST_AHEAD: f64 = 0.5;
/// Steps after one that somebody waited for in which others take no more of a step's time than that part of it: whoever comes
/// next waits for no more.
const SOMEBODY_LATELY: u64 = 256;
/// Seconds that sums may be off by.
const SUM_ERROR: f64 = 1e-9;

/// A job that waits for its next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitingJob {
    /// Job.
    pub job: u64,
    /// Whose it is: the number of a key.
    pub tenant: u64,
    /// Rows it has to go through: what is left of its question, or one generated token.
    pub rows: usize,
    /// Rows of a step that has to be taken again as it was.
    pub again: Option<usize>,
    /// Rows that it may bring besides: guesses of its next tokens.
    pub guesses: usize,
    /// How likely each of them is right, where those before it are.
    pub chance: f64,
    /// Shards of it that one host holds, at most.
    pub shards: usize,
    /// Keys of its context, which each row reads.
    pub keys: u64,
}

impl WaitingJob {
    /// So many rows of it, as a part of a step.
    pub fn size(&self, rows: usize) -> StepSize {
        StepSize::of(rows, self.keys, self.shards)
    }
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

/// Chooses step after step.
#[derive(Debug)]
pub struct StepScheduler {
    /// Seconds that a step may take.
    interval: f64,
    cost: StepCost,
    turn: u64,
    /// The last one that somebody waited for.
    awaited: Option<u64>,
    /// Seconds that jobs nobody waits for have had for themselves, beyond their part of others' steps since.
    ahead: f64,
    /// Seconds that each key with something waiting has saved, or owes.
    saved: BTreeMap<u64, f64>,
    /// When each job was in a step last, or came.
    served: BTreeMap<u64, u64>,
}

/// What a key has waiting.
struct Line<'a> {
    key: u64,
    /// In the order of their turns: rows that decode and a part of the question that has waited longest, then of other questions, then
    /// more of those that are in the step.
    parts: Vec<(&'a WaitingJob, usize)>,
    next: usize,
}

/// A step as it fills.
struct Filling {
    room: StepBudget,
    /// Seconds that are left.
    left: f64,
    chosen: BTreeMap<u64, usize>,
}

impl StepScheduler {
    /// No step before; one takes no longer than `interval` where that can be helped.
    pub fn new(interval: Duration) -> Self {
        let (cost, awaited, ahead, saved, served) = Default::default();
        Self { interval: interval.as_secs_f64(), cost, turn: 0, awaited, ahead, saved, served }
    }

    /// How long a step may take.
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval)
    }

    /// A step of this size took so long.
    pub fn took(&mut self, size: StepSize, took: Duration) {
        self.cost.learn(size, took);
    }

    /// Rows of the next step by job. Whatever waits, one part is chosen.
    pub fn choose(&mut self, waiting: &[WaitingJob], room: StepBudget) -> Vec<(u64, usize)> {
        self.turn += 1;
        self.note(waiting);
        let (awaited, background): (Vec<WaitingJob>, Vec<WaitingJob>) =
            waiting.iter().filter(|one| one.rows > 0).copied().partition(|one| one.tenant & BACKGROUND_TENANT == 0);
        let stands_back = !awaited.is_empty() && !background.is_empty() && self.ahead > 0.0;
        let waiting = if stands_back { &awaited } else { waiting };
        let budget = self.budget(waiting);
        let left = self.deal(self.demands(waiting), budget);
        let mut lines = self.lines(waiting, left, room);
        let mut filling = Filling { room, left, chosen: BTreeMap::new() };
        while self.take_next(&mut lines, &mut filling) {}
        self.fill_up(waiting, &mut filling);
        self.guess(waiting, &mut filling);
        if filling.chosen.is_empty()
            && let Some(part) = lines.iter().flat_map(|line| &line.parts).min_by_key(|(one, _)| self.served[&one.job])
        {
            filling.chosen.insert(part.0.job, part.1);
        }
        self.served.extend(filling.chosen.keys().map(|job| (*job, self.turn)));
        self.settle(&lines, &filling.chosen);
        let seconds = self.cost.base() + left - filling.left;
        if stands_back {
            self.ahead -= BACKGROUND_SHARE * seconds;
        } else if awaited.is_empty() && !background.is_empty() {
            self.ahead = MOST_AHEAD.min(self.ahead + seconds);
        }
        filling.chosen.into_iter().collect()
    }

    /// Seconds of the next step beside what one with nothing in it takes.
    fn budget(&mut self, waiting: &[WaitingJob]) -> f64 {
        if waiting.iter().any(|one| one.rows > 0 && one.tenant & BACKGROUND_TENANT == 0) {
            self.awaited = Some(self.turn);
        }
        let (base, all) = (self.cost.base(), self.interval.max(FULL * self.cost.base()));
        let is_between = self.awaited.is_some_and(|last| (1..=SOMEBODY_LATELY).contains(&(self.turn - last)));
        if is_between { (BACKGROUND_SHARE * all - base).max(0.0) } else { all - base }
    }

    /// Jobs and keys that have nothing waiting are forgotten; those that came stand behind those that were there.
    fn note(&mut self, waiting: &[WaitingJob]) {
        let waits: BTreeMap<u64, u64> =
            waiting.iter().filter(|one| one.rows > 0).map(|one| (one.job, one.tenant)).collect();
        self.served.retain(|job, _| waits.contains_key(job));
        self.saved.retain(|key, _| waits.values().any(|waiting| waiting == key));
        for (job, key) in waits {
            self.served.entry(job).or_insert(self.turn - 1);
            self.saved.entry(key).or_default();
        }
    }

    fn seconds(&self, one: &WaitingJob, rows: usize) -> f64 {
        self.cost.of(one.size(rows))
    }

    /// Of rows that join others of their job.
    fn seconds_beside_own(&self, one: &WaitingJob, rows: usize) -> f64 {
        self.cost.of(one.size(rows).beside_own())
    }

    /// That they add to a step as it is.
    fn seconds_in(&self, filling: &Filling, one: &WaitingJob, rows: usize) -> f64 {
        match filling.chosen.contains_key(&one.job) {
            true => self.seconds_beside_own(one, rows),
            false => self.seconds(one, rows),
        }
    }

    /// Rows of a question that take so long, one at least.
    fn rows_within(&self, one: &WaitingJob, seconds: f64) -> usize {
        1 + self.more_within(one, seconds - self.seconds(one, 1)).min(one.rows.saturating_sub(1))
    }

    /// Rows of a question that take so long where others of it are in the step.
    fn more_within(&self, one: &WaitingJob, seconds: f64) -> usize {
        let each = self.seconds_beside_own(one, 1);
        match each {
            _ if seconds < 0.0 => 0,
            0.0 => one.rows,
            // What is more than fits becomes the most there is.
            each => (seconds / each) as usize,
        }
    }

    /// Seconds that all that every key has waiting takes.
    fn demands(&self, waiting: &[WaitingJob]) -> BTreeMap<u64, f64> {
        let mut demands = BTreeMap::new();
        for one in waiting.iter().filter(|one| one.rows > 0) {
            *demands.entry(one.tenant).or_default() += self.seconds(one, one.again.unwrap_or(one.rows));
        }
        demands
    }

    /// Deals the next step's seconds out, and returns them: those who wait come first.
    fn deal(&mut self, demands: BTreeMap<u64, f64>, budget: f64) -> f64 {
        let (background, awaited): (BTreeMap<_, _>, BTreeMap<_, _>) =
            demands.into_iter().partition(|(key, _)| key & BACKGROUND_TENANT != 0);
        if awaited.is_empty() || background.is_empty() {
            let demands = if awaited.is_empty() { background } else { awaited };
            let left = self.fair(&demands, budget);
            self.earn(&demands, left);
            return left;
        }
        let first = self.fair(&awaited, budget).min(awaited.values().sum());
        let others =
            (BACKGROUND_SHARE * (self.cost.base() + first)).min(BACKGROUND_SHARE / (1.0 + BACKGROUND_SHARE) * budget);
        let first = first.min(budget - others);
        self.earn(&awaited, first);
        self.earn(&background, others);
        first + others
    }

    /// Seconds of a step in which each of several keys finds as much as whoever asks for least would take alone.
    fn fair(&self, demands: &BTreeMap<u64, f64>, budget: f64) -> f64 {
        let least = demands.values().copied().fold(f64::INFINITY, f64::min);
        match demands.len() {
            0 | 1 => budget,
            keys => (keys as f64 * (self.cost.base() + least) - self.cost.base()).min(budget),
        }
    }

    /// Deals the seconds of a step out: equal parts, of what those leave too that need less.
    fn earn(&mut self, demands: &BTreeMap<u64, f64>, seconds: f64) {
        let mut by_demand: Vec<(f64, u64)> = demands.iter().map(|(key, demand)| (*demand, *key)).collect();
        by_demand.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (mut left, mut keys) = (seconds, by_demand.len());
        for (demand, key) in by_demand {
            let part = demand.min(left / keys as f64);
            *self.saved.entry(key).or_default() += part;
            (left, keys) = (left - part, keys - 1);
        }
    }

    /// What every key has waiting, of `seconds` that there are: the question that has waited longest is sure of a part.
    fn lines<'a>(&self, waiting: &'a [WaitingJob], seconds: f64, room: StepBudget) -> Vec<Line<'a>> {
        let mut of_keys: BTreeMap<u64, Vec<&WaitingJob>> = BTreeMap::new();
        for one in waiting.iter().filter(|one| one.rows > 0) {
            of_keys.entry(one.tenant).or_default().push(one);
        }
        let sure = seconds / (QUESTION_SHARE * of_keys.len().max(1)) as f64;
        let line = |(key, mut jobs): (u64, Vec<&'a WaitingJob>)| {
            jobs.sort_by_key(|one| (self.served[&one.job], one.rows == 1, one.job));
            let oldest = jobs.iter().find(|one| one.rows > 1).map(|one| one.job);
            let (first, others): (Vec<_>, Vec<_>) =
                jobs.into_iter().partition(|one| one.rows == 1 || Some(one.job) == oldest);
            let chunk = |one: &'a WaitingJob| {
                let fits = room.fits(one.shards) / QUESTION_SHARE;
                (one, one.again.unwrap_or(self.rows_within(one, sure).min(fits)).max(1))
            };
            Line { key, parts: first.into_iter().chain(others).map(chunk).collect(), next: 0 }
        };
        of_keys.into_iter().map(line).collect()
    }

    /// Takes the next part of whoever has saved the most of those whose part fits, or is saved for. A part that takes too long holds
    /// up its own key alone, which saves for it. Whether there was one.
    fn take_next(&mut self, lines: &mut [Line<'_>], filling: &mut Filling) -> bool {
        let mut first: Option<(f64, usize)> = None;
        for (at, line) in lines.iter_mut().enumerate() {
            let has_room = |(one, rows): &(&WaitingJob, usize)| filling.room.fits(one.shards) >= *rows;
            while line.parts.get(line.next).is_some_and(|part| !has_room(part)) {
                line.next += 1;
            }
            let (Some((one, rows)), saved) = (line.parts.get(line.next), self.saved[&line.key]) else { continue };
            let seconds = self.seconds_in(filling, one, *rows);
            let has_time = seconds <= filling.left || seconds <= saved + SUM_ERROR;
            if has_time && first.is_none_or(|(most, _)| saved > most) {
                first = Some((saved, at));
            }
        }
        let Some((_, at)) = first else { return false };
        let line = &mut lines[at];
        let (one, rows) = line.parts[line.next];
        line.next += 1;
        self.put(one, rows, filling);
        let more = one.rows.saturating_sub(filling.chosen[&one.job]);
        if one.again.is_none() && more > 0 {
            line.parts.push((one, rows.min(more)));
        }
        true
    }

    fn put(&mut self, one: &WaitingJob, rows: usize, filling: &mut Filling) {
        let seconds = self.seconds_in(filling, one, rows);
        *filling.chosen.entry(one.job).or_default() += rows;
        filling.room.take(rows, one.shards);
        filling.left -= seconds;
        *self.saved.entry(one.tenant).or_default() -= seconds;
    }

    /// More rows of questions that are in the step, where there is room: of those first whose keys have saved the most.
    fn fill_up(&mut self, waiting: &[WaitingJob], filling: &mut Filling) {
        let is_cut = |one: &&WaitingJob| one.again.is_none() && one.rows > 1;
        let mut questions: Vec<&WaitingJob> = waiting.iter().filter(is_cut).collect();
        questions.sort_by(|one, other| self.saved[&other.tenant].total_cmp(&self.saved[&one.tenant]));
        for one in questions {
            let Some(rows) = filling.chosen.get(&one.job) else { continue };
            let more = self.more_within(one, filling.left).min(filling.room.fits(one.shards)).min(one.rows - rows);
            self.put(one, more, filling);
        }
    }

    /// Rows of guesses, where there is room: the likeliest first, as long as a row brings more tokens for its time than the step
    /// without it does.
    fn guess(&mut self, waiting: &[WaitingJob], filling: &mut Filling) {
        let decodes = |one: &&WaitingJob| one.rows == 1 && one.again.is_none() && filling.chosen.contains_key(&one.job);
        let decoding: Vec<&WaitingJob> = waiting.iter().filter(decodes).collect();
        let chosen = |one: &WaitingJob| filling.chosen.get(&one.job).map_or(0.0, |rows| self.seconds(one, *rows));
        let mut seconds = self.cost.base() + waiting.iter().map(chosen).sum::<f64>();
        let mut tokens = decoding.len() as f64;
        let mut guesses: Vec<(f64, &WaitingJob)> = Vec::new();
        for one in decoding {
            guesses.extend((0..one.guesses).scan(1.0, |chance, _| {
                *chance *= one.chance;
                Some((*chance, one))
            }));
        }
        // Of a job's guesses the first is the likeliest, so that no later one is taken without it.
        let rate = |(chance, one): &(f64, &WaitingJob)| chance / self.seconds_beside_own(one, 1);
        guesses.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
        let mut taken = Vec::new();
        for (chance, one) in guesses {
            let takes = self.seconds_beside_own(one, 1);
            if chance * seconds <= tokens * takes {
                break;
            }
            (seconds, tokens) = (seconds + takes, tokens + chance);
            taken.push(one);
        }
        for one in taken {
            if filling.left >= self.seconds_beside_own(one, 1) && filling.room.fits(one.shards) > 0 {
                self.put(one, 1, filling);
            }
        }
    }

    /// A key that got all it has waiting saves nothing, and owes nothing where all did; another saves no more than what it waits for
    /// takes.
    fn settle(&mut self, lines: &[Line<'_>], chosen: &BTreeMap<u64, usize>) {
        let lacks = |(one, _): &&(&WaitingJob, usize)| {
            chosen.get(&one.job).is_none_or(|rows| *rows < one.again.unwrap_or(one.rows))
        };
        let all = !lines.iter().flat_map(|line| &line.parts).any(|part| lacks(&part));
        for line in lines {
            let lacking = line.parts.iter().filter(lacks).map(|(one, rows)| self.seconds(one, *rows));
            let most = lacking.fold(0.0, f64::max);
            if let Some(saved) = self.saved.get_mut(&line.key) {
                *saved = if all { 0.0 } else { saved.clamp(-self.interval, most) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const ROOM: StepBudget = StepBudget { rows: 100, partials: 400 };
    const WIDE: StepBudget = StepBudget { rows: 512, partials: 1 << 20 };
    const INTERVAL: Duration = Duration::from_millis(50);
    const EMPTY_STEP: f64 = 0.002;

    fn waiting(job: u64, rows: usize, shards: usize) -> WaitingJob {
        WaitingJob { job, tenant: 0, rows, again: None, guesses: 0, chance: 0.0, shards, keys: 0 }
    }

    fn took(size: StepSize) -> f64 {
        EMPTY_STEP + 5e-4 * size.rows as f64 + 1e-6 * size.pairs as f64
    }

    fn untaught() -> StepScheduler {
        StepScheduler::new(INTERVAL)
    }

    fn taught() -> StepScheduler {
        let mut scheduler = untaught();
        for step in 0..60_usize {
            let size = StepSize::of(1 + step * 7 % 30, (step as u64 * 37 % 9) * 300, 1);
            scheduler.took(size, Duration::from_secs_f64(took(size)));
        }
        scheduler
    }

    /// Keys by job, of those that decode without end: one row each, over so many keys.
    fn decoding(jobs: &[(u64, u64)]) -> Vec<WaitingJob> {
        let one = |(job, (key, keys)): (usize, &(u64, u64))| WaitingJob {
            tenant: *key,
            keys: *keys,
            ..waiting(job as u64, 1, 1)
        };
        jobs.iter().enumerate().map(one).collect()
    }

    fn size(jobs: &[WaitingJob], chosen: &[(u64, usize)]) -> StepSize {
        let part = |(job, rows): &(u64, usize)| jobs.iter().find(|one| one.job == *job).expect("it waits").size(*rows);
        chosen.iter().map(part).fold(StepSize::default(), StepSize::and)
    }

    #[test]
    fn those_who_decode_go_together_and_a_question_takes_what_is_left() {
        let jobs = [waiting(1, 1000, 2), waiting(2, 1, 1), waiting(3, 1, 4), waiting(4, 50, 1)];
        let mut scheduler = untaught();
        assert_eq!(scheduler.choose(&jobs, ROOM), [(1, 73), (2, 1), (3, 1), (4, 25)]);
        assert_eq!(scheduler.choose(&jobs[..3], ROOM), [(1, 98), (2, 1), (3, 1)]);
    }

    #[test]
    fn a_hosts_answer_fits_into_a_frame() {
        let jobs = [waiting(1, 1, 100), waiting(2, 1, 200), waiting(3, 1, 200), waiting(4, 7, 50)];
        let mut scheduler = untaught();
        assert_eq!(scheduler.choose(&jobs, ROOM), [(1, 1), (2, 1), (4, 2)]);
        assert_eq!(scheduler.choose(&jobs, ROOM), [(1, 1), (3, 1), (4, 2)], "who waited longest comes first");
        assert_eq!(untaught().choose(&[waiting(1, 5, 1000)], ROOM), [(1, 1)], "whatever waits, one part is chosen");
        assert_eq!(untaught().choose(&[waiting(1, 1, 1000)], ROOM), [(1, 1)], "whatever waits, one part is chosen");
        assert_eq!(untaught().choose(&[], ROOM), []);
    }

    #[test]
    fn a_step_that_is_taken_again_is_the_same() {
        let again = WaitingJob { again: Some(70), ..waiting(1, 200, 1) };
        let mut scheduler = untaught();
        for _ in 0..4 {
            let chosen = scheduler.choose(&[again, waiting(2, 60, 1)], ROOM);
            assert!(chosen.iter().all(|(job, rows)| *job == 2 || *rows == 70), "{chosen:?}");
        }
        assert_eq!(scheduler.choose(&[again], ROOM), [(1, 70)]);
    }

    #[test]
    fn a_question_is_cut_where_its_rows_would_take_too_long() {
        let jobs = [WaitingJob { keys: 400, ..waiting(1, 400, 1) }, WaitingJob { keys: 400, ..waiting(2, 1, 1) }];
        let chosen = taught().choose(&jobs, WIDE);
        let takes = took(size(&jobs, &chosen));
        assert!(chosen.len() == 2 && (0.8 * 0.05..1.1 * 0.05).contains(&takes), "{chosen:?} take {takes}");
    }

    /// Of as many rows of another key a step takes twice as long.
    #[test]
    fn what_nobody_waits_for_makes_a_step_a_quarter_longer_and_goes_on() {
        let mut jobs = vec![(1, 300)];
        jobs.extend([(2 | BACKGROUND_TENANT, 1000); 32]);
        let (jobs, mut scheduler) = (decoding(&jobs), taught());
        let (mut served, mut took_all, alone) = ([0; 33], 0.0, took(jobs[0].size(1)));
        for _ in 0..400 {
            let chosen = scheduler.choose(&jobs, WIDE);
            assert!(chosen.iter().any(|(job, _)| *job == 0), "{chosen:?}");
            took_all += took(size(&jobs, &chosen));
            chosen.iter().for_each(|(job, _)| served[*job as usize] += 1);
        }
        assert!(took_all < 400.0 * 1.3 * alone, "{took_all} for 400 steps, alone {alone} each");
        assert!(served[1..].iter().all(|steps| *steps > 2), "{served:?}");
        // A question that fills all steps leaves it a part, too.
        let long = [WaitingJob { tenant: 1, ..waiting(0, 100_000, 1) }, jobs[1]];
        let steps = (0..40).filter(|_| scheduler.choose(&long, WIDE).iter().any(|(job, _)| *job == 1)).count();
        assert!(steps >= 10, "{steps} of 40");
        // Where there is nothing else, it has a part, since somebody may come again, and then all.
        let mut alone = || {
            let chosen = scheduler.choose(&jobs[1..], WIDE);
            (chosen.len(), took(size(&jobs, &chosen)))
        };
        let (_, takes) = alone();
        assert!(takes < 1.1 * BACKGROUND_SHARE * INTERVAL.as_secs_f64(), "{takes}");
        (0..SOMEBODY_LATELY).for_each(|_| _ = alone());
        assert!(alone().0 > 25);
    }

    #[test]
    fn what_had_steps_for_itself_is_not_in_those_of_who_comes() {
        let (jobs, mut scheduler) = (decoding(&[(1, 300), (2 | BACKGROUND_TENANT, 1000)]), taught());
        (0..10).for_each(|_| drop(scheduler.choose(&jobs[1..], WIDE)));
        let ahead = 10.0 * took(jobs[1].size(1));
        (0..1000).for_each(|_| drop(scheduler.choose(&[], WIDE)));
        let apart = (0..100).take_while(|_| scheduler.choose(&jobs, WIDE) == [(0, 1)]).count() as f64;
        let expected = ahead / (BACKGROUND_SHARE * took(jobs[0].size(1)));
        assert!((0.8 * expected..1.2 * expected).contains(&apart), "{apart} steps, {expected} expected");
    }

    #[test]
    fn a_short_question_is_not_cut_for_what_others_wait_for() {
        for others in [2, 2 | BACKGROUND_TENANT] {
            let mut jobs = decoding(&[(others, 200); 12]);
            let mut scheduler = taught();
            // Others have had all steps so far.
            (0..40).for_each(|_| drop(scheduler.choose(&jobs, WIDE)));
            jobs.push(WaitingJob { tenant: 1, keys: 200, ..waiting(12, 7, 1) });
            let rows = scheduler.choose(&jobs, WIDE).into_iter().find(|(job, _)| *job == 12).map(|(_, rows)| rows);
            assert_eq!(rows, Some(7), "beside {others:x}");
        }
    }

    #[test]
    fn a_key_with_one_row_waits_for_no_more_than_twice_what_it_takes() {
        let mut jobs = vec![(1, 300)];
        jobs.extend([(2, 5000); 32]);
        let (jobs, mut scheduler) = (decoding(&jobs), taught());
        let (mut served, alone) = ([0; 33], took(jobs[0].size(1)));
        for _ in 0..400 {
            let chosen = scheduler.choose(&jobs, WIDE);
            assert!(chosen.iter().any(|(job, _)| *job == 0), "{chosen:?}");
            let takes = took(size(&jobs, &chosen));
            assert!(takes < 2.0 * alone + took(jobs[1].size(1)), "{chosen:?} take {takes}, alone {alone}");
            chosen.iter().for_each(|(job, _)| served[*job as usize] += 1);
            scheduler.took(size(&jobs, &chosen), Duration::from_secs_f64(takes));
        }
        let others = &served[1..];
        assert!(
            others.iter().min() > Some(&5)
                && others.iter().max() <= others.iter().min().map(|least| least + 2).as_ref()
        );
    }

    #[test]
    fn who_does_not_fit_into_a_frame_comes_next() {
        let jobs: Vec<WaitingJob> = (0..40).map(|job| waiting(job, 1 + job as usize % 3 * 90, 30)).collect();
        let (mut scheduler, mut served) = (taught(), [0; 40]);
        for _ in 0..60 {
            scheduler.choose(&jobs, ROOM).into_iter().for_each(|(job, rows)| served[job as usize] += rows);
        }
        assert!(served.iter().all(|rows| *rows > 0), "{served:?}");
    }

    #[test]
    fn many_keys_with_little_each_fill_their_steps() {
        let (jobs, mut scheduler) = (decoding(&(0..100).map(|key| (key, 2000)).collect::<Vec<_>>()), taught());
        let mut served = [0; 100];
        for _ in 0..100 {
            let chosen = scheduler.choose(&jobs, WIDE);
            let takes = took(size(&jobs, &chosen));
            assert!((0.8 * 0.05..1.1 * 0.05).contains(&takes), "{chosen:?} take {takes}");
            chosen.iter().for_each(|(job, _)| served[*job as usize] += 1);
        }
        assert!(served.iter().max() <= served.iter().min().map(|least| least + 2).as_ref(), "{served:?}");
    }

    /// The rows of a step of jobs that decode behind so many keys each, whose guesses are right as often as that.
    fn guessing(jobs: &[(u64, f64)]) -> Vec<usize> {
        let decoding = decoding(&jobs.iter().map(|(keys, _)| (0, *keys)).collect::<Vec<_>>());
        let jobs: Vec<WaitingJob> = decoding
            .into_iter()
            .zip(jobs)
            .map(|(one, (_, chance))| WaitingJob { guesses: 15, chance: *chance, ..one })
            .collect();
        taught().choose(&jobs, WIDE).into_iter().map(|(_, rows)| rows).collect()
    }

    #[test]
    fn guesses_come_along_where_they_bring_more_tokens_than_they_take_time() {
        assert_eq!(guessing(&[(0, 1.0)]), [16], "what is sure");
        assert_eq!(guessing(&[(0, 0.0)]), [1]);
        // A row takes a fifth of a step of one.
        let rows: Vec<usize> = [0.1, 0.3, 0.6, 0.9].map(|chance| guessing(&[(0, chance)])[0]).into();
        assert!(rows[..3] == [1, 2, 3] && rows[3] > 5, "{rows:?}");
        // With 30 jobs a step is as full as it is worth, and a row takes as long as any other.
        assert!(guessing(&[(0, 0.5); 30]).iter().all(|rows| *rows == 1));
        assert_eq!(guessing(&[(0, 0.1), (0, 0.8)])[0], 1);
        assert!(guessing(&[(0, 0.1), (0, 0.8)])[1] > 1, "of two jobs the one that pays");
        assert!(guessing(&[(20_000, 0.5)]) < guessing(&[(0, 0.5)]), "a row that reads much has to be likelier");
    }

    #[test]
    fn guesses_take_what_others_leave() {
        let chat = WaitingJob { guesses: 15, chance: 1.0, ..waiting(1, 1, 1) };
        assert_eq!(
            taught().choose(&[chat, waiting(2, 1000, 1)], ROOM),
            taught().choose(&[waiting(1, 1, 1), waiting(2, 1000, 1)], ROOM)
        );
        assert_eq!(taught().choose(&[WaitingJob { again: Some(3), ..chat }], WIDE), [(1, 3)], "as it was");
        assert_eq!(untaught().choose(&[chat], WIDE), [(1, 1)], "nothing is known yet");
        assert_eq!(taught().choose(&[WaitingJob { shards: 100, ..chat }], ROOM), [(1, 4)], "what a frame holds");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Every row gets on, whatever others ask for, and no step takes longer than is allowed and one part of each key.
        #[test]
        fn nobody_waits_for_ever_and_steps_are_bounded(
            jobs in vec((0..5_u64, 0..4_u32, 1..30_usize, 0..9000_u64), 1..60),
        ) {
            let one = |(job, (key, long, shards, keys)): (usize, &(u64, u32, usize, u64))| {
                let rows = if *long == 0 { 200 } else { 1 };
                WaitingJob { tenant: *key, keys: *keys, ..waiting(job as u64, rows, *shards) }
            };
            let jobs: Vec<WaitingJob> = jobs.iter().enumerate().map(one).collect();
            let (mut scheduler, mut waited) = (taught(), vec![0; jobs.len()]);
            let lump: f64 = jobs.iter().map(|one| took(one.size(1))).fold(0.0, f64::max);
            for _ in 0..250 {
                let chosen = scheduler.choose(&jobs, WIDE);
                prop_assert!(!chosen.is_empty());
                waited.iter_mut().for_each(|waited| *waited += 1);
                chosen.iter().for_each(|(job, _)| waited[*job as usize] = 0);
                prop_assert!(waited.iter().all(|waited| *waited < 200), "{waited:?}");
                let takes = took(size(&jobs, &chosen));
                prop_assert!(takes <= 1.25 * INTERVAL.as_secs_f64() + 5.0 * lump, "{chosen:?} take {takes}");
                scheduler.took(size(&jobs, &chosen), Duration::from_secs_f64(takes));
            }
        }
    }
}
