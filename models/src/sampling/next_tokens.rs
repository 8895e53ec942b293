//! Which tokens may come next in an answer that is held to a form: computed beside the thread that generates, while the model takes its
//! step, or by that thread where no other has begun. Chooses none of them.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use llguidance::{Matcher, toktrie::SimpleVob};

use super::closing::Closing;

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

    /// The parser of an answer.
    pub fn parser(&self, matcher: Matcher) -> AnswerParser {
        let (guesses, next, took) = (Vec::new(), NextMasks::Unwanted, WORTH_A_THREAD);
        let answer = Arc::new(Mutex::new(ParsedAnswer { matcher, guesses, next, took }));
        AnswerParser { answer, waiting: self.0.clone() }
    }
}

/// Computes what waits until nothing can come. An answer that was dropped meanwhile costs nothing.
fn compute_all(queue: &Mutex<mpsc::Receiver<Weak<Mutex<ParsedAnswer>>>>) {
    let next = || locked(queue).recv().ok();
    while let Some(answer) = next() {
        if let Some(answer) = answer.upgrade() {
            let mut answer = locked(&answer);
            if matches!(answer.next, NextMasks::Wanted) {
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

/// An answer so far, and what may come behind it.
struct ParsedAnswer {
    matcher: Matcher,
    /// What is guessed to come next.
    guesses: Vec<u32>,
    next: NextMasks,
    /// What each of the last masks took.
    took: Duration,
}

enum NextMasks {
    Unwanted,
    Wanted,
    Computed(Result<Vec<NextTokens>, String>),
}

/// What may come behind an answer so far.
pub struct NextTokens {
    /// The tokens, of the whole vocabulary.
    pub mask: SimpleVob,
    /// Whether the answer may end.
    pub ends: bool,
}

/// Whether what is open of an answer can be closed in the room that it has left.
pub enum ClosesBehind {
    /// Behind the chosen token, in so many.
    Chosen(usize),
    /// With another in its place; none where nothing is open.
    Other(Option<u32>),
    /// In neither case, as far as is known.
    Neither,
}

impl NextTokens {
    fn behind(matcher: &mut Matcher) -> Result<Self, String> {
        let mask = matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        let ends = matcher.is_accepting().is_ok_and(|accepting| accepting) || matcher.is_stopped();
        Ok(Self { mask, ends })
    }
}

impl ParsedAnswer {
    fn compute(&mut self) {
        let began = Instant::now();
        let next = NextTokens::behind(&mut self.matcher).map(|next| self.foreseen(next));
        self.took = began.elapsed() / next.as_ref().map_or(1, Vec::len) as u32;
        self.next = NextMasks::Computed(next);
    }

    /// What may come next, and behind each guess: up to the first that may not come, that nothing follows, or that the parser gives up
    /// at.
    fn foreseen(&self, next: NextTokens) -> Vec<NextTokens> {
        let mut all = vec![next];
        if self.guesses.is_empty() {
            return all;
        }
        // A copy: a parser that gave up takes nothing any more.
        let mut ahead = self.matcher.clone();
        for guess in &self.guesses {
            let allows = |next: &NextTokens| (*guess as usize) < next.mask.len() && next.mask.is_allowed(*guess);
            if !all.last().is_some_and(allows) || ahead.consume_token(*guess).is_err() || ahead.is_stopped() {
                break;
            }
            let Ok(next) = NextTokens::behind(&mut ahead) else { break };
            all.push(next);
        }
        all
    }
}

impl AnswerParser {
    /// Begins to compute what may come next and behind each of these guesses, beside the caller.
    pub fn look_ahead(&mut self, guesses: &[u32]) {
        let mut answer = locked(&self.answer);
        if answer.guesses != guesses || !matches!(answer.next, NextMasks::Computed(_)) {
            answer.guesses = guesses.to_vec();
            answer.next = NextMasks::Wanted;
        }
        let takes_long = answer.took * (1 + guesses.len() as u32) >= WORTH_A_THREAD;
        drop(answer);
        if takes_long {
            // Where there is no room or no thread, it is computed when it is asked for.
            drop(self.waiting.try_send(Arc::downgrade(&self.answer)));
        }
    }

    /// What may come next, and behind each guess that was looked ahead at, as far as that can be told; waits for the thread that has
    /// begun with it.
    pub fn next_tokens(&mut self) -> Result<Vec<NextTokens>, String> {
        let mut answer = locked(&self.answer);
        loop {
            match mem::replace(&mut answer.next, NextMasks::Unwanted) {
                NextMasks::Computed(next) => return next,
                NextMasks::Unwanted | NextMasks::Wanted => answer.compute(),
            }
        }
    }

    /// Whether what is open can be closed behind a token, where there is room for `left` with it.
    pub fn closes_behind(&self, chosen: u32, left: usize, closing: &Closing) -> ClosesBehind {
        let answer = locked(&self.answer);
        let mut ahead = answer.matcher.clone();
        let behind = ahead.consume_token(chosen).ok().and_then(|()| closing.path(&ahead, left - 1));
        match behind {
            Some(path) => ClosesBehind::Chosen(path.len()),
            None => match closing.path(&answer.matcher, left) {
                Some(path) => ClosesBehind::Other(path.first().copied()),
                None => ClosesBehind::Neither,
            },
        }
    }

    /// The answer goes on with this token. Returns whether it is whole, so that nothing can follow.
    pub fn accept(&mut self, id: u32) -> Result<bool, String> {
        let mut answer = locked(&self.answer);
        answer.matcher.consume_token(id).map_err(|error| error.to_string())?;
        answer.guesses.clear();
        answer.next = NextMasks::Unwanted;
        Ok(answer.matcher.is_stopped() && !answer.matcher.is_error())
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
        matches!(locked(&parser.answer).next, NextMasks::Computed(_))
    }

    #[test]
    fn a_mask_is_computed_before_it_is_asked_for() {
        let mut parser = MaskThreads::start(2).parser(matcher("ab*"));
        for letter in b"abb" {
            parser.look_ahead(b"bb".map(u32::from).as_slice());
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_computed(&parser) {
                assert!(Instant::now() < deadline, "nobody computed a mask");
                thread::yield_now();
            }
            // The next is computed beside, too, where this one took long.
            locked(&parser.answer).took = WORTH_A_THREAD;
            let all = parser.next_tokens().unwrap();
            assert!(all[0].mask.is_allowed(u32::from(*letter)) && all[0].ends == (*letter == b'b'));
            assert_eq!(all.len(), if *letter == b'a' { 1 } else { 3 }, "no mask behind what may not come");
            assert!(!parser.accept(u32::from(*letter)).unwrap());
        }
    }

    #[test]
    fn without_threads_masks_are_computed_when_they_are_asked_for() {
        let mut parser = MaskThreads::start(0).parser(matcher("ab"));
        for (letter, whole) in [(b'a', false), (b'b', true)] {
            assert!(!is_computed(&parser));
            assert_eq!(parser.next_tokens().unwrap()[0].mask.num_set(), 1);
            assert_eq!(parser.accept(u32::from(letter)).unwrap(), whole);
        }
        assert!(parser.accept(u32::from(b'b')).is_err());
    }

    #[test]
    fn guesses_are_looked_ahead_at_and_forgotten() {
        let mut parser = MaskThreads::start(0).parser(matcher("ab{3}c"));
        let masks = |parser: &mut AnswerParser, guesses: &[u8]| {
            parser.look_ahead(&guesses.iter().copied().map(u32::from).collect::<Vec<_>>());
            let tokens =
                |next: &NextTokens| (0..256).filter(|id| next.mask.is_allowed(*id)).map(|id| id as u8).collect();
            parser.next_tokens().unwrap().iter().map(tokens).collect::<Vec<Vec<u8>>>()
        };
        assert_eq!(masks(&mut parser, b"abbbc"), [b"a", b"b", b"b", b"b", b"c"], "nothing follows the last");
        assert_eq!(masks(&mut parser, b"acb"), [b"a", b"b"]);
        assert_eq!(masks(&mut parser, b""), [b"a"]);
        assert!(!parser.accept(u32::from(b'a')).unwrap());
        // What was looked ahead at before is not what comes now.
        assert_eq!(masks(&mut parser, b"b"), [b"b", b"b"]);
        for (letter, whole) in b"bbbc".iter().zip([false, false, false, true]) {
            assert_eq!(parser.accept(u32::from(*letter)).unwrap(), whole);
        }
    }

    #[test]
    fn a_thread_computes_nothing_for_who_is_gone_and_ends_with_the_last() {
        let (waiting, queue) = mpsc::sync_channel(WAITING_MASKS);
        let queue = Mutex::new(queue);
        let threads = MaskThreads(waiting);
        let (mut gone, mut stays) = (threads.parser(matcher("a*")), threads.parser(matcher("b*")));
        gone.look_ahead(&[]);
        stays.look_ahead(&[]);
        let answer = stays.answer.clone();
        let gone_answer = Arc::downgrade(&gone.answer);
        drop((gone, stays, threads));
        // Returns, as nothing can come any more.
        compute_all(&queue);
        assert!(gone_answer.upgrade().is_none());
        assert!(matches!(locked(&answer).next, NextMasks::Computed(_)));
    }
}
