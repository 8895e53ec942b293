//! How what is open of a form is closed in few tokens. Chooses them by the form alone, whatever a model likes, so that a device may not
//! have looked at them: how likely they were is then told as [`Logprobs::of_another`](super::Logprobs::of_another) says.

use llguidance::{Matcher, toktrie::TokTrie};

/// Most tokens that are tried one after another, and most that the form is asked about for that: forms come from outside.
const MOST_TRIED: usize = 64;
const MOST_ASKED: usize = 512;
/// Bytes of what a form forces that are looked at for the next token.
const FORCED_BYTES: usize = 256;

/// Tokens that close what is open.
#[derive(Clone, Default)]
pub struct Closing {
    /// Those that only a text within JSON, or one that is free, has.
    letters: Vec<u32>,
    /// Those that some texts have to have.
    marks: Vec<u32>,
    /// What ends a text.
    quote: Vec<u32>,
    /// Those that close most first.
    others: Vec<u32>,
    /// All of one letter.
    singles: Vec<u32>,
}

impl Closing {
    /// Of the tokens that `find` finds by their bytes.
    pub fn new(find: impl Fn(&[u8]) -> Option<u32>) -> Self {
        let of = |letters: &[u8]| letters.iter().filter_map(|letter| find(&[*letter])).collect::<Vec<_>>();
        let singles: Vec<u8> = (b'0'..=b'9').chain(b'a'..=b'z').chain(b'A'..=b'Z').chain(b'!'..=b'~').collect();
        Self {
            letters: of(b"x~A"),
            marks: of(b"@.:/-"),
            quote: of(b"\""),
            others: of(b"}]\",:n01tf"),
            singles: of(&[&singles[..], b" \n"].concat()),
        }
    }

    /// Tokens behind which an answer may end, `most` of them at most: empty where it may end as it is, none where no way there is found.
    pub fn path(&self, answer: &Matcher, most: usize) -> Option<Vec<u32>> {
        // Texts whose pattern wants marks never end by letters, and free ones have no end of marks.
        let orders = [[&self.letters, &self.marks], [&self.marks, &self.letters]];
        orders.into_iter().find_map(|order| {
            let mut ahead = answer.clone();
            let trie = ahead.tok_env().ok()?;
            let (mut bytes, mut asks) = (Vec::new(), MOST_ASKED);
            for _ in 0..=MOST_TRIED {
                if ahead.is_error() {
                    return None;
                }
                if ahead.is_stopped() || ahead.is_accepting().ok()? {
                    let path = trie.tok_trie().greedy_tokenize(&bytes);
                    return Some(path).filter(|path| path.len() <= most);
                }
                let next = self.next((&mut ahead, &mut asks), order, trie.tok_trie())?;
                ahead.consume_token(next).ok()?;
                bytes.extend_from_slice(trie.tok_trie().token(next));
            }
            None
        })
    }

    /// The next of them, where so many may still be asked about.
    fn next(&self, (ahead, asks): (&mut Matcher, &mut usize), order: [&Vec<u32>; 2], trie: &TokTrie) -> Option<u32> {
        let forced = ahead.compute_ff_bytes();
        if !forced.is_empty() {
            return trie.greedy_tokenize(&forced[..forced.len().min(FORCED_BYTES)]).first().copied();
        }
        let mut allows = |id: &u32| {
            *asks = asks.saturating_sub(1);
            *asks > 0 && ahead.validate_tokens(&[*id]).is_ok_and(|valid| valid == 1)
        };
        // Within a text brackets close nothing.
        let is_text = self.letters.iter().any(&mut allows);
        let tokens = match is_text {
            true => [&self.quote, order[0], order[1]],
            false => [&self.others, &self.singles, &self.marks],
        };
        tokens.into_iter().flatten().copied().find(allows)
    }
}
