//! A chat template's own text, and its rendering within limits. Knows no tokens but by name.

mod engine;
mod python;
mod subject;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::marks::{Compared, Marks, Places, TemplateNames};
use super::refusal::TemplateRefusal;
use super::render::{Ending, Render, RenderOptions, Rendered};
use super::turn::{ChatTurn, Speaker};
use engine::Engine;
use subject::Subject;

/// A chat template as the checkpoint has it, with what it may name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TemplateSource {
    /// Where it was found: a file's name, or a key in one.
    pub(super) origin: String,
    pub(super) text: String,
    /// `bos_token` and its like.
    pub(super) variables: BTreeMap<String, String>,
    /// What special tokens are called.
    pub(super) names: Vec<String>,
    /// The same, as they are found; made once.
    #[serde(skip)]
    found: Arc<OnceLock<Result<TemplateNames, String>>>,
}

/// What transformers puts behind the message that is gone on with.
const CONTINUES: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl TemplateSource {
    /// A template's text and where it was found, `bos_token` and its like, and what special tokens are called.
    pub fn new(origin: String, text: String, variables: BTreeMap<String, String>, names: Vec<String>) -> Self {
        Self { origin, text, variables, names, found: Arc::default() }
    }

    /// Where it was found: a file's name, or a key in one.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The variable stands in its text.
    pub fn names_variable(&self, variable: &str) -> bool {
        self.text.contains(variable)
    }

    /// Renders within this process, whose memory and time nothing bounds but instructions and the length of what is written.
    pub fn in_process(self) -> Box<dyn Render> {
        Box::new(self)
    }
}

impl Render for TemplateSource {
    fn render(&self, turns: &[ChatTurn], options: &RenderOptions) -> Result<Rendered, TemplateRefusal> {
        let names = self.found.get_or_init(|| TemplateNames::new(&self.names).map_err(|error| error.to_string()));
        let names = names.as_ref().map_err(|error| TemplateRefusal::Unfit(error.clone()))?;
        let engine = Engine::new(&self.text, &self.variables, options)?;
        let subject = Subject { turns, options };
        let (texts, continued) = self.texts(subject)?;
        let plain = engine.write(&subject.input(&texts))?;
        let length = match continued {
            Some(last) => continued_length(&plain, last)?,
            None => plain.len(),
        };
        let rendering = Rendering { source: self, engine: &engine, names, subject, texts: &texts, plain: &plain };
        let (mut literals, question_at) = rendering.places(options.question)?;
        literals.retain(|literal| literal.start < length);
        literals.last_mut().into_iter().for_each(|last| last.end = last.end.min(length));
        let mut text = plain;
        text.truncate(length);
        let question_at = question_at.map(|at| at.min(length));
        Ok(Rendered { dated: engine.dated(), ..Rendered::new(text, literals, question_at) })
    }
}

impl TemplateSource {
    /// The texts as the template gets them, and the last message's own where it is gone on with.
    fn texts<'t>(&self, subject: Subject<'t>) -> Result<(Vec<Cow<'t, str>>, Option<&'t str>), TemplateRefusal> {
        let Subject { turns, options } = subject;
        let mut texts: Vec<Cow<str>> = subject.texts().into_iter().map(Cow::from).collect();
        let Some(last) = texts[..turns.len()].last_mut() else {
            return Err(TemplateRefusal::Unfit("a conversation has no message".to_owned()));
        };
        if options.ending != Ending::LastMessage {
            return Ok((texts, None));
        }
        if !self.text.contains("content") {
            let cause = "it names no \"content\", so that a last message cannot be gone on with";
            return Err(TemplateRefusal::Unfit(cause.to_owned()));
        }
        *last = format!("{last}{CONTINUES}").into();
        Ok((texts, turns.last().map(|turn| turn.text.as_str())))
    }
}

/// Where a rendering ends that goes on with its last message, as transformers has it.
fn continued_length(plain: &str, last: &str) -> Result<usize, TemplateRefusal> {
    let tag = plain.rfind(CONTINUES.trim_end()).filter(|_| plain.contains(python::strip(last)));
    let Some(tag) = tag else {
        let cause = "it does not write the last message as it is, so that it cannot be gone on with";
        return Err(TemplateRefusal::Unfit(cause.to_owned()));
    };
    match plain[tag..].starts_with(CONTINUES) {
        true => Ok(tag),
        false => Ok(python::rstrip(&plain[..tag]).len()),
    }
}

/// Literals, and where the question begins.
type FoundPlaces = (Vec<Range<usize>>, Option<usize>);

/// One rendering whose text is known.
struct Rendering<'r> {
    source: &'r TemplateSource,
    engine: &'r Engine,
    names: &'r TemplateNames,
    subject: Subject<'r>,
    texts: &'r [Cow<'r, str>],
    plain: &'r str,
}

impl Rendering<'_> {
    /// Which names are text, and where the question begins.
    fn places(&self, question: Option<(usize, usize)>) -> Result<FoundPlaces, TemplateRefusal> {
        let plain = self.subject.texts();
        let within: Vec<Places> = plain.iter().map(|text| self.names.within(text)).collect();
        if let Some(key) = self.subject.keys().into_iter().find(|key| !self.names.within(key).names.is_empty()) {
            let cause = format!("the field {key:?} of a tool or call names a special token; call it something else");
            return Err(TemplateRefusal::Unfit(cause));
        }
        let question = question.map(|at| self.checked(at)).transpose()?;
        if question.is_none() && within.iter().all(Places::is_empty) {
            return Ok((Vec::new(), None));
        }
        let known = [self.source.text.as_str()].into_iter().chain(self.source.variables.values().map(String::as_str));
        let marks = Marks::apart_from(known.chain(plain))
            .ok_or_else(|| TemplateRefusal::Unfit("messages have each character of private use".to_owned()))?;
        if let Some(found) = self.marked(marks, &within, question)? {
            return Ok(found);
        }
        // The template looks at what the marks changed.
        let literals = match self.marked(marks, &within, None)? {
            Some((literals, _)) => literals,
            None => self.marked_apart(marks, within)?,
        };
        let question = question.map(|at| self.where_questions_part(marks, at)).transpose()?;
        Ok((literals, question))
    }

    /// The turn and the byte, if there is such a character.
    fn checked(&self, (turn, byte): (usize, usize)) -> Result<(usize, usize), TemplateRefusal> {
        match self.subject.turns.get(turn).filter(|turn| turn.text.is_char_boundary(byte)) {
            Some(_) => Ok((turn, byte)),
            None => Err(TemplateRefusal::Unfit(format!("no character begins at byte {byte} of message {turn}"))),
        }
    }

    /// What marks tell that change nothing else.
    fn marked(
        &self,
        marks: Marks,
        within: &[Places],
        question: Option<(usize, usize)>,
    ) -> Result<Option<FoundPlaces>, TemplateRefusal> {
        let texts = self.texts.iter().zip(within).enumerate().map(|(at, (text, places))| {
            let question = question.filter(|(turn, _)| *turn == at).map(|(_, byte)| byte);
            match places.is_empty() && question.is_none() {
                true => Cow::Borrowed(text.as_ref()),
                false => marks.put(text, places, question).into(),
            }
        });
        let texts: Vec<Cow<str>> = texts.collect();
        let mut compared = Compared::with(self.plain, marks);
        match self.engine.write_to(&self.subject.input(&texts), &mut compared) {
            Err(TemplateRefusal::Limit(cause)) if !compared.differs() => return Err(TemplateRefusal::Limit(cause)),
            Err(_) => return Ok(None),
            Ok(()) => {}
        }
        let found = compared.places(self.names);
        Ok(found.filter(|(_, at)| at.is_some() == question.is_some()))
    }

    /// Which names are text, where the template looks for some of them: in an answer they are what it makes of them, and a
    /// message of somebody else is refused, since nothing tells whose they are.
    fn marked_apart(&self, marks: Marks, mut within: Vec<Places>) -> Result<Vec<Range<usize>>, TemplateRefusal> {
        let nowhere = vec![Places::default(); within.len()];
        for at in 0..within.len() {
            let mut alone = nowhere.clone();
            alone[at] = std::mem::take(&mut within[at]);
            if !alone[at].is_empty() && self.marked(marks, &alone, None)?.is_none() {
                // One that looks at how a message begins or ends puts no name together there.
                alone[at].points.clear();
            }
            if !alone[at].is_empty() && self.marked(marks, &alone, None)?.is_none() {
                if self.subject.turns.get(at).is_none_or(|turn| turn.speaker != Speaker::Assistant) {
                    return Err(self.looked_for(at, &alone[at]));
                }
                continue;
            }
            within[at] = alone.swap_remove(at);
        }
        let found = self.marked(marks, &within, None)?;
        let cause = "names of special tokens in several messages change what it writes; take them out";
        found.map(|(literals, _)| literals).ok_or_else(|| TemplateRefusal::Unfit(cause.to_owned()))
    }

    fn looked_for(&self, at: usize, places: &Places) -> TemplateRefusal {
        let text = self.subject.texts()[at];
        let name = places.names.first().map_or("", |name| &text[name.clone()]);
        let place = if at < self.subject.turns.len() { format!("message {at}") } else { "a tool or call".to_owned() };
        TemplateRefusal::Unfit(format!(
            "it looks for {name:?}, which names a special token, in {place}; take that out, or ask without the template"
        ))
    }

    /// The byte up to which nothing depends on the question: where the rendering of another one begins to differ.
    fn where_questions_part(&self, marks: Marks, (turn, byte): (usize, usize)) -> Result<usize, TemplateRefusal> {
        let mut texts = self.texts.to_vec();
        texts[turn] = format!("{}{}", &self.subject.turns[turn].text[..byte], marks.stand_in()).into();
        let other = match self.engine.write(&self.subject.input(&texts)) {
            Ok(other) => other,
            Err(TemplateRefusal::Limit(cause)) => return Err(TemplateRefusal::Limit(cause)),
            // It takes no other question: nothing is known to be the same.
            Err(_) => return Ok(0),
        };
        let same = self.plain.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
        Ok((0..=same).rev().find(|at| self.plain.is_char_boundary(*at)).unwrap_or(0))
    }
}
