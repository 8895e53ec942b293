//! Which tokens may come next in an answer that is held to a form: computed beside the thread that generates, while the model takes its
//! step, or by that thread where no other has begun. Chooses none of them.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use llguidance::{Matcher, toktrie::SimpleVob};

/// Masks that wait for a thread, at most; others are computed when they are asked for.
const WAITING_MASKS: usize = 256;
/// A mask is computed beside the thread that generates where the one before took as long: waking another thread takes about as much.
const WORTH_A_THREAD: Duration = Duration::from_micros(50);

/// Threads that compute masks. They end when this and the parsers that it started are dropped.
pub struct MaskThreads(mpsc::SyncSender<Weak<Mutex<ParsedAnswer>>>);

impl MaskThreads {
    /// Starts so many, or as many as the system has. Without any, masks are computed when they are asked for.
    pub fn start(count: usize) -> Self {
        let (waiting, queue) = mpsc::sync_channel(WAITING_MASKS);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let queue = queue.clone();
            drop(thread::Builder::new().name("masks".to_owned()).spawn(move || compute_all(&queue)));
        }
        Self(waiting)
    }

    /// The parser of an answer, whose first mask is computed beside the caller.
    pub fn parser(&self, matcher: Matcher) -> AnswerParser {
        let answer = Arc::new(Mutex::new(ParsedAnswer { matcher, next: NextMask::Wanted, took: Duration::ZERO }));
        let parser = AnswerParser { answer, waiting: self.0.clone() };
        parser.compute_beside();
        parser
    }
}

/// Computes what waits until nothing can come. An answer that was dropped meanwhile costs nothing.
fn compute_all(queue: &Mutex<mpsc::Receiver<Weak<Mutex<ParsedAnswer>>>>) {
    let next = || locked(queue).recv().ok();
    while let Some(answer) = next() {
        if let Some(answer) = answer.upgrade() {
            let mut answer = locked(&answer);
            if matches!(answer.next, NextMask::Wanted) {
                answer.compute();
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parser of one answer. Its errors are what llguidance says.
pub struct AnswerParser {
    answer: Arc<Mutex<ParsedAnswer>>,
    waiting: mpsc::SyncSender<Weak<Mutex<ParsedAnswer>>>,
}

/// An answer so far, and the mask behind it.
struct ParsedAnswer {
    matcher: Matcher,
    next: NextMask,
    /// What the last mask took.
    took: Duration,
}

enum NextMask {
    Unwanted,
    Wanted,
    Computed(Result<NextTokens, String>),
}

/// What may come behind an answer so far.
pub struct NextTokens {
    /// The tokens, of the whole vocabulary.
    pub mask: SimpleVob,
    /// Whether the answer may end.
    pub ends: bool,
}

impl ParsedAnswer {
    fn compute(&mut self) {
        let began = Instant::now();
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string());
        let ends = self.matcher.is_accepting().is_ok_and(|accepting| accepting) || self.matcher.is_stopped();
        self.next = NextMask::Computed(mask.map(|mask| NextTokens { mask, ends }));
        self.took = began.elapsed();
    }
}

impl AnswerParser {
    /// What may come next; waits for the thread that has begun with it.
    pub fn next_tokens(&mut self) -> Result<NextTokens, String> {
        let mut answer = locked(&self.answer);
        loop {
            match mem::replace(&mut answer.next, NextMask::Unwanted) {
                NextMask::Computed(next) => return next,
                NextMask::Unwanted | NextMask::Wanted => answer.compute(),
            }
        }
    }

    /// The answer goes on with this token. Returns whether it is whole, so that nothing can follow.
    pub fn accept(&mut self, id: u32) -> Result<bool, String> {
        let mut answer = locked(&self.answer);
        answer.matcher.consume_token(id).map_err(|error| error.to_string())?;
        let whole = answer.matcher.is_stopped() && !answer.matcher.is_error();
        answer.next = if whole { NextMask::Unwanted } else { NextMask::Wanted };
        let takes_long = answer.took >= WORTH_A_THREAD;
        drop(answer);
        if !whole && takes_long {
            self.compute_beside();
        }
        Ok(whole)
    }

    fn compute_beside(&self) {
        // Where there is no room or no thread, it is computed when it is asked for.
        drop(self.waiting.try_send(Arc::downgrade(&self.answer)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use llguidance::{
        ParserFactory,
        api::TopLevelGrammar,
        toktrie::{ApproximateTokEnv, InferenceCapabilities},
    };

    use super::*;

    fn matcher(regex: &str) -> Matcher {
        let env = ApproximateTokEnv::single_byte_env();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &[]).unwrap();
        factory.quiet();
        Matcher::new(factory.create_parser(TopLevelGrammar::from_regex(regex)))
    }

    fn is_computed(parser: &AnswerParser) -> bool {
        matches!(locked(&parser.answer).next, NextMask::Computed(_))
    }

    #[test]
    fn a_mask_is_computed_before_it_is_asked_for() {
        let mut parser = MaskThreads::start(2).parser(matcher("ab*"));
        for letter in b"abb" {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_computed(&parser) {
                assert!(Instant::now() < deadline, "nobody computed a mask");
                thread::yield_now();
            }
            // The next is computed beside, too, where this one took long.
            locked(&parser.answer).took = WORTH_A_THREAD;
            let next = parser.next_tokens().unwrap();
            assert!(next.mask.is_allowed(u32::from(*letter)) && next.ends == (*letter == b'b'));
            assert!(!parser.accept(u32::from(*letter)).unwrap());
        }
    }

    #[test]
    fn without_threads_masks_are_computed_when_they_are_asked_for() {
        let mut parser = MaskThreads::start(0).parser(matcher("ab"));
        for (letter, whole) in [(b'a', false), (b'b', true)] {
            assert!(!is_computed(&parser));
            assert_eq!(parser.next_tokens().unwrap().mask.num_set(), 1);
            assert_eq!(parser.accept(u32::from(letter)).unwrap(), whole);
        }
        assert!(parser.accept(u32::from(b'b')).is_err());
    }

    #[test]
    fn a_thread_computes_nothing_for_who_is_gone_and_ends_with_the_last() {
        let (waiting, queue) = mpsc::sync_channel(WAITING_MASKS);
        let queue = Mutex::new(queue);
        let threads = MaskThreads(waiting);
        let (gone, stays) = (threads.parser(matcher("a*")), threads.parser(matcher("b*")));
        let answer = stays.answer.clone();
        let gone_answer = Arc::downgrade(&gone.answer);
        drop((gone, stays, threads));
        // Returns, as nothing can come any more.
        compute_all(&queue);
        assert!(gone_answer.upgrade().is_none());
        assert!(matches!(locked(&answer).next, NextMask::Computed(_)));
    }
}
